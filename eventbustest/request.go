package eventbustest

import (
	"context"
	"sync"
)

// RequestContext imitates the request context of web frameworks that reuse contexts. Publish with it to test that
// handlers keep the user or tenant of their own request after Reuse:
//
//	ctx := eventbustest.NewRequestContext(t.Context())
//	ctx.Set(userKey, "ann")
//	service.Place(ctx, order)
//	ctx.Reuse()
//	ctx.Set(userKey, "bob") // the next request
//	eventbustest.WaitSettled(t, bus)
//
// Its methods are safe for concurrent use. NewRequestContext returns one.
type RequestContext struct {
	context.Context

	mu     sync.Mutex // guards the following
	values map[any]any
}

// NewRequestContext returns the context of a first request, with the values of parent only.
func NewRequestContext(parent context.Context) *RequestContext {
	return &RequestContext{Context: parent}
}

// Set sets a value of the request.
func (c *RequestContext) Set(key, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = make(map[any]any)
	}
	c.values[key] = value
}

// Reuse forgets the values, as before the next request.
func (c *RequestContext) Reuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.values)
}

// Value returns a value of the present request, or of the parent.
func (c *RequestContext) Value(key any) any {
	c.mu.Lock()
	value, ok := c.values[key]
	c.mu.Unlock()
	if ok {
		return value
	}
	return c.Context.Value(key)
}
