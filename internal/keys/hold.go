package keys

// Hold is Take, but the items keep their places until End: those behind them are not admitted.
func (g *Gate[T]) Hold(takes func(T) bool) (held []T) {
	for i := range g.shards {
		held = append(held, g.shards[i].hold(takes)...)
	}
	return held
}

func (s *shard[T]) hold(takes func(T) bool) (held []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if l == nil {
			continue
		}
		for n := l.first; n != nil; n = n.next {
			if !s.holds(n) && takes(n.item) {
				s.holdLocked(n, false)
				held = append(held, n.item)
			}
		}
	}
	return held
}

func (s *shard[T]) holdLocked(n *node[T], turn bool) {
	if s.held == nil {
		s.held = make(map[*node[T]]bool)
	}
	s.held[n] = turn
}

// Keep holds a place for an item that never runs, behind the items of its key, until End.
func (g *Gate[T]) Keep(key string, item T) {
	s, hash := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	turn := s.beginsLocked(hash)
	s.holdLocked(s.waitLocked(hash, item), turn)
}

// End ends the place of an item of Hold or Keep. If it was the item's turn, End admits and returns the next item of the key, if one
// waits.
func (g *Gate[T]) End(key string, item T) (next T, ok bool) {
	s, hash := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[hash]
	var before *node[T]
	n := l.first
	for n.item != item || !s.holds(n) {
		before, n = n, n.next
	}
	if before == nil {
		l.first = n.next
	} else {
		before.next = n.next
	}
	if l.last == n {
		l.last = before
	}
	turn := s.held[n]
	if delete(s.held, n); len(s.held) == 0 {
		s.held = nil // a map keeps the memory of removed keys
	}
	s.keepLocked(n)
	if turn {
		return s.leaveLocked(hash)
	}
	return next, false
}
