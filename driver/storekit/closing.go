package storekit

import (
	"context"
	"fmt"
	"sync"
)

// Closing is the end of a store. Its methods are safe for concurrent use. Make it with NewClosing.
type Closing struct {
	once  sync.Once
	began chan struct{}
	ended chan struct{}
	err   error // of the work; written before ended is closed
}

// NewClosing returns the end of a store that is open.
func NewClosing() *Closing {
	return &Closing{began: make(chan struct{}), ended: make(chan struct{})}
}

// Began is closed when the first Close begins.
func (c *Closing) Began() <-chan struct{} { return c.began }

// Ended is closed when the work of the first Close has ended.
func (c *Closing) Ended() <-chan struct{} { return c.ended }

// Close calls begin, unless an earlier call has done it, and waits until the work has ended. begin must not wait for
// the work: it passes end to those who do it, who call it once. If ctx ends first, Close returns its error, and the
// work continues. Only the first Close returns the error of the work.
func (c *Closing) Close(ctx context.Context, begin func(end func(error))) error {
	first := false
	c.once.Do(func() {
		first = true
		close(c.began)
		begin(func(err error) {
			c.err = err
			close(c.ended)
		})
	})
	select {
	case <-c.ended:
	default:
		select {
		case <-c.ended:
		case <-ctx.Done():
			return fmt.Errorf("Close: %w", ctx.Err())
		}
	}
	if first && c.err != nil {
		return fmt.Errorf("Close: %w", c.err)
	}
	return nil
}
