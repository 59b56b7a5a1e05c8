package recent

import (
	"maps"
	"slices"
	"sync"
)

// Calls knows which calls are in progress, by the name of their method. The zero Calls has none. It is safe for
// concurrent use.
type Calls struct {
	mu      sync.Mutex // guards the following; a leaf
	running map[string]int
}

// Begin counts a call. It ends with the function that Begin returns.
func (c *Calls) Begin(method string) (end func()) {
	c.count(method, 1)
	return func() { c.count(method, -1) }
}

func (c *Calls) count(method string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = make(map[string]int)
	}
	if c.running[method] += n; c.running[method] == 0 {
		delete(c.running, method)
	}
}

// InProgress returns the methods that have not returned, sorted.
func (c *Calls) InProgress() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.running))
}
