package lane

import "sync/atomic"

// chunk is a piece of the queue. Positions are counted from the pool's beginning,
// and never come again, though chunks do: a worker that comes back to a chunk that
// has been refilled meanwhile finds its position gone.
type chunk[T any] struct {
	items  [chunkItems]T
	_      cacheLine    // the two ends of a chunk are written by different cores
	next   *chunk[T]    // guarded by Pool.mu
	spare  bool         // guarded by Pool.mu
	end    atomic.Int64 // the position after the last one
	filled atomic.Int64 // the next position to fill; written under Pool.mu
	// gated has a bit for each item that is to be shown to Enter.
	gated  [chunkItems / 64]atomic.Uint64
	_      cacheLine
	cursor atomic.Int64 // the next position to take
	left   atomic.Int64 // items that are still to be taken out
	_      cacheLine
}

// cacheLine keeps apart what different cores write.
type cacheLine [64]byte

// begin makes an empty chunk of c, whose items have all been taken out.
func (c *chunk[T]) begin(position int64) {
	c.next, c.spare = nil, false
	c.left.Store(chunkItems)
	for i := range c.gated {
		c.gated[i].Store(0)
	}
	// In this order: an old position must not pass for a new one.
	c.cursor.Store(position)
	c.filled.Store(position)
	c.end.Store(position + chunkItems)
}

func (c *chunk[T]) setGated(position int64) {
	i := position % chunkItems
	word := &c.gated[i/64]
	word.Store(word.Load() | 1<<(i%64))
}

func (c *chunk[T]) isGated(position int64) bool {
	i := position % chunkItems
	return c.gated[i/64].Load()>>(i%64)&1 != 0
}

// chunkAfterLocked makes the chunk that comes after the full tail; the tail
// itself, if it has been emptied.
func (p *Pool[T, W]) chunkAfterLocked(tail *chunk[T]) *chunk[T] {
	end := tail.end.Load()
	if tail.left.Load() == 0 && p.head.Load() == tail {
		tail.begin(end)
		return tail
	}
	c, _ := p.spares.Get().(*chunk[T])
	if c == nil {
		c = new(chunk[T])
		c.touch()
	}
	c.begin(end)
	tail.next, p.tail = c, c
	return c
}

// TryTake puts the next item into place, if there is one. Whoever took it outside
// of a worker calls Finish when it is done with it.
func (p *Pool[T, W]) TryTake(place *T) bool {
	var s seen[T]
	defer p.report(&s)
	for !p.tryTake(place, &s) {
		if !s.behind {
			return false
		}
	}
	return true
}

// seen is what a worker knows of a chunk.
type seen[T any] struct {
	chunk  *chunk[T]
	filled int64 // to look again at what the publishers write slows down both
	out    int64 // items that it has taken out, and not reported
	period int64 // in which it has looked last
	empty  int64 // the position when there was nothing to take
	streak int64 // items between that and the time before
	behind bool  // Enter has kept the last item, or is being asked by another worker
}

// turns is how often others are to run before a worker that has found nothing looks
// again. Looking takes the line of memory from whoever is about to write it: a worker
// that is as fast as the publishers, and at their heels, held up both for each item.
func (s *seen[T]) turns() int {
	if s.streak >= streak {
		return streakTurns
	}
	return 1
}

// report says how many items have been taken out of the chunk that a worker has seen
// last. That of a worker that is stuck is not used again.
func (p *Pool[T, W]) report(s *seen[T]) {
	if s.out > 0 && s.chunk.left.Add(-s.out) == 0 {
		p.emptied(s.chunk)
	}
	s.out = 0
}

func (p *Pool[T, W]) tryTake(place *T, seen *seen[T]) bool {
	seen.behind = false
	for {
		c := p.head.Load()
		position := c.cursor.Load()
		if c != seen.chunk {
			p.report(seen)
		}
		if c != seen.chunk || position >= seen.filled {
			seen.chunk, seen.filled = c, c.filled.Load()
			p.looks(seen)
		}
		if position >= seen.filled {
			p.report(seen)
			if position == c.end.Load() && p.advance(c) {
				continue
			}
			seen.empty, seen.streak = position, position-seen.empty
			return false
		}
		if c.isGated(position) {
			taken, through := p.enter(c, position, place)
			if taken {
				seen.out++
			}
			if !through && !p.sifting.Load() {
				p.report(seen)
				seen.behind = true
				return false
			}
			if !through {
				continue
			}
		} else {
			if !c.cursor.CompareAndSwap(position, position+1) {
				continue
			}
			c.takeOut(position, place)
			seen.out++
		}
		if p.thirsty.Load() {
			p.mu.Lock()
			p.tellWaitersLocked()
			p.mu.Unlock()
		}
		return true
	}
}

// takeAhead puts the next item into place if it is at hand. Who takes ahead has not ended
// yet what it runs, and must not wait for a lock, nor look through what Enter keeps.
func (p *Pool[T, W]) takeAhead(place *T, seen *seen[T]) bool {
	c := p.head.Load()
	position := c.cursor.Load()
	if c != seen.chunk || p.thirsty.Load() {
		return false
	}
	if position >= seen.filled {
		seen.filled = c.filled.Load()
	}
	if position >= seen.filled || c.isGated(position) || !c.cursor.CompareAndSwap(position, position+1) {
		return false
	}
	c.takeOut(position, place)
	seen.out++
	return true
}

// enter takes a gated item, if nobody else does and Enter lets it through.
//
// Two workers that took two items of a key one after the other could ask Enter in
// the other order, so they ask before they take, one at a time. And a worker that
// comes late from a chunk may find that it has been begun again, behind others: what
// is in these comes first. The head stays the head while its item is not taken.
func (p *Pool[T, W]) enter(c *chunk[T], position int64, place *T) (taken, through bool) {
	if !p.gate.TryLock() {
		if !p.sifting.Load() {
			return false, false
		}
		p.gate.Lock()
	}
	if p.head.Load() != c || c.cursor.Load() != position {
		p.gate.Unlock()
		return false, false
	}
	if through = p.cfg.Enter(&c.items[position%chunkItems]); !through {
		p.parked.Add(1) // first, or there would seem to be room for one more
	}
	c.cursor.Store(position + 1)
	p.gate.Unlock()
	if !through {
		p.finished.Add(1)
		place = nil
	}
	c.takeOut(position, place)
	return true, through
}

// takeOut moves the item of a position that has been taken into place, if there is
// one.
func (c *chunk[T]) takeOut(position int64, place *T) {
	var none T
	item := &c.items[position%chunkItems]
	if place != nil {
		*place = *item
	}
	*item = none
}

// advance goes past a chunk from which everything has been taken. It reports
// whether there is another one.
func (p *Pool[T, W]) advance(c *chunk[T]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head.Load() == c && c.cursor.Load() == c.end.Load() && c.next != nil {
		p.head.Store(c.next)
	}
	return p.head.Load() != c
}

// emptied keeps a chunk for later. Since the last item was taken out it may have
// been begun again, even filled, and emptied by somebody else.
func (p *Pool[T, W]) emptied(c *chunk[T]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	head := p.head.Load()
	switch {
	case c.left.Load() > 0 || c.spare:
		return
	case c == p.tail:
		return // chunkAfterLocked may begin it again
	case c == head:
		p.head.Store(c.next)
	case c.end.Load() > head.end.Load():
		return // still to come: workers that were late have emptied it early
	}
	c.next = nil // or a spare would keep all that have come after it
	c.spare = true
	p.spares.Put(c)
}

func (p *Pool[T, W]) lenLocked() int { return int(p.putsLocked() - p.takenLocked()) }

func (p *Pool[T, W]) putsLocked() int64 { return p.tail.filled.Load() }

func (p *Pool[T, W]) takenLocked() int64 { return p.head.Load().cursor.Load() }
