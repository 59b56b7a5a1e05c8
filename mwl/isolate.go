package mwl

import (
	"errors"
	"fmt"
)

var errGoexit = errors.New("it ended its goroutine (runtime.Goexit)")

// isolated runs somebody else's function and waits for it. A panic, and the end of
// its goroutine, are errors; that is why it gets one of its own.
func isolated(run func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("it panicked: %s", panicText(p))
			}
			done <- err
		}()
		err = run()
	}()
	return <-done
}
