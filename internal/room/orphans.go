package room

import "sync"

// Orphans counts the deliveries that a Quota does not count because their subscription is missing, by its name. The zero
// Orphans is ready to use. Its methods are safe for concurrent use.
type Orphans struct {
	mu    sync.Mutex // guards the following; a leaf
	names map[string]int64
	total int64
}

// Set replaces all counts. It keeps the map: do not change it afterwards.
func (o *Orphans) Set(names map[string]int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names, o.total = names, 0
	for _, n := range names {
		o.total += n
	}
}

// Add adds a delivery.
func (o *Orphans) Add(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names == nil {
		o.names = make(map[string]int64)
	}
	o.names[name]++
	o.total++
}

// Adopt removes the counts of names, and returns their sum.
func (o *Orphans) Adopt(names ...string) (n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range names {
		n += o.names[name]
		delete(o.names, name)
	}
	o.total -= n
	return n
}

// Remove removes a delivery of a name. It returns 1, or 0 if none is counted.
func (o *Orphans) Remove(name string) (n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names[name] == 0 {
		return 0
	}
	if o.names[name]--; o.names[name] == 0 {
		delete(o.names, name)
	}
	o.total--
	return 1
}

// Of returns the number of deliveries of a name.
func (o *Orphans) Of(name string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.names[name]
}

// Total returns the number of deliveries of all names.
func (o *Orphans) Total() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total
}
