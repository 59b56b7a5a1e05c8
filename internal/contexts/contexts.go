// Package contexts has what a context of its own kind needs so that context.Cause works with it.
package contexts

import "context"

// Cancelled returns a context that has ended with a cause. context.Cause reads a cause only from contexts of the
// standard library: the Value of another one passes CauseKey on to this.
func Cancelled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

// CauseKey is the key that context.Cause passes to a context's Value. Only the standard library
// knows it.
var CauseKey = func() any {
	var c keyCatcher
	_ = context.Cause(&c)
	return c.key
}()

type keyCatcher struct {
	context.Context
	key any
}

func (*keyCatcher) Err() error { return context.Canceled }

func (c *keyCatcher) Value(key any) any {
	c.key = key
	return nil
}
