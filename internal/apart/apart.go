// Package apart runs user code on a goroutine of its own.
package apart

import "time"

// Grace is how long Run waits, by the real clock, for user code after one of its channels is closed.
const Grace = 100 * time.Millisecond

// Run runs user code outside a call, such as observers, RetryIf and the methods of errors. The code may panic or end
// its goroutine: the caller's goroutine, which may own a dispatch, continues. After stop or late is closed, Run waits
// for at most Grace. It returns the text of a panic, "" for none, and whether the code has returned. textOf returns the
// text of a panic's value.
func Run(stop, late <-chan struct{}, textOf func(any) string, f func()) (panicked string, done bool) {
	ended := make(chan string, 1)
	go func() {
		text := ""
		defer func() { ended <- text }()
		defer func() {
			if r := recover(); r != nil {
				if text = textOf(r); text == "" {
					text = `""` // the panic has no text
				}
			}
		}()
		f()
	}()
	select {
	case panicked = <-ended:
		return panicked, true
	case <-stop:
	case <-late:
	}
	select {
	case panicked = <-ended:
		return panicked, true
	case <-time.After(Grace):
		return "", false
	}
}
