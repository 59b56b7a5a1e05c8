package mwl

import (
	"errors"
	"fmt"
)

var errGoexit = errors.New("it ended its goroutine (runtime.Goexit)")

// isolated runs a caller's function on a goroutine of its own and waits for it. A
// panic, and the end of the goroutine, are errors.
func isolated(run func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { done <- err }()
		err = recovered(run)
	}()
	return <-done
}

// recovered runs a caller's function. A panic is an error.
func recovered(run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panicked: %s", panicText(p))
		}
	}()
	return run()
}
