package pool

// Take removes the items that wait for a worker and for which takes returns true, and returns them, for the caller to run. Their
// room is free. takes is called under the locks of the pool: it must be quick and must not use the pool. Items that Enter
// keeps, and items that a worker is taking, are left out.
func (p *Pool[T, W]) Take(takes func(T) bool) (taken []T) {
	p.out.Lock()
	defer p.out.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	taken = p.released.take(takes)
	for _, queue := range []*fifo[entry[T]]{&p.outbox, &p.inbox} {
		for _, e := range queue.take(func(e entry[T]) bool { return takes(e.item) }) {
			taken = append(taken, e.item)
		}
	}
	p.countAheadLocked()
	p.goneLocked(len(taken))
	return taken
}

// Gone frees the room of n items that Enter has kept, and that do not come back by Release.
func (p *Pool[T, W]) Gone(n int) {
	p.out.Lock()
	defer p.out.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goneLocked(n)
}

// goneLocked frees the room of n items. The caller holds out, too.
func (p *Pool[T, W]) goneLocked(n int) {
	p.begun.Store(p.begun.Load() + int64(n))
	p.admitWaitersLocked()
}

// take removes the items for which takes returns true. The others keep their order.
func (f *fifo[T]) take(takes func(T) bool) (taken []T) {
	for range f.count {
		if item, _ := f.pop(); takes(item) {
			taken = append(taken, item)
		} else {
			f.push(item)
		}
	}
	return taken
}
