package storekit

import (
	"fmt"

	"github.com/surebus/eventbus/driver"
)

// OptionError reports an invalid option of a store. It matches driver.ErrInvalidOption.
type OptionError struct {
	Option string // the name of the option, such as "WithLockWait"
	Value  string // the offending value; empty for none
	Reason string // the problem, and what to do
}

// Error returns the text of the error.
func (e *OptionError) Error() string {
	return fmt.Sprintf("%v: %s(%s): %s", driver.ErrInvalidOption, e.Option, e.Value, e.Reason)
}

// Unwrap returns driver.ErrInvalidOption.
func (e *OptionError) Unwrap() error { return driver.ErrInvalidOption }
