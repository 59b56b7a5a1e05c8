package delay

// pieceEntries is the number of entries of a line that share an allocation: with pointers
// as items, 512 bytes. For larger objects the runtime adds a header.
const pieceEntries = 31

// line is a queue of entries in the order of their due times. It grows without moving
// entries. It frees its memory as it empties, except for one piece.
type line[T any] struct {
	first, last *piece[T] // nil until first needed
	popped      int       // of first
	used        int       // of last
	n           int
}

type piece[T any] struct {
	entries [pieceEntries]lineEntry[T]
	next    *piece[T]
}

// lineEntry is an entry of a line. Its position gives the order of insertion.
type lineEntry[T any] struct {
	at   int64
	item T
}

// newPiece returns a piece whose first entry is due at an instant.
func newPiece[T any](at int64) *piece[T] {
	p := new(piece[T])
	p.entries[0].at = at // a plain write first: a pointer write may read the new memory
	return p
}

// takes reports whether an entry with this due time can be appended to the line.
func (l *line[T]) takes(at int64) bool {
	return l.n == 0 || at >= l.last.entries[l.used-1].at
}

func (l *line[T]) push(at int64, item T) {
	switch {
	case l.last == nil:
		l.first = newPiece[T](at)
		l.last = l.first
	case l.used == pieceEntries:
		l.last.next = newPiece[T](at)
		l.last, l.used = l.last.next, 0
	}
	l.last.entries[l.used] = lineEntry[T]{at, item}
	l.used++
	l.n++
}

func (l *line[T]) head() *lineEntry[T] { return &l.first.entries[l.popped] }

func (l *line[T]) pop() T {
	e := l.head()
	item := e.item
	*e = lineEntry[T]{} // for the garbage collector
	l.popped++
	l.n--
	switch {
	case l.n == 0:
		l.used, l.popped = 0, 0
	case l.popped == pieceEntries:
		l.first, l.popped = l.first.next, 0
	}
	return item
}

func (l *line[T]) each(f func(at int64, item T)) {
	i, p := l.popped, l.first
	for range l.n {
		if i == pieceEntries {
			i, p = 0, p.next
		}
		f(p.entries[i].at, p.entries[i].item)
		i++
	}
}

// agenda holds the entries of a queue, earliest first. Entries that are added in the order
// of their due times, such as retries after equal delays, go into a line, where an entry
// has constant cost. The others go into a heap.
//
// If entries of both are due at the same instant, the line's was added first: while the
// heap has an entry, the line has a later one, and takes no entry that is due before that.
type agenda[T any] struct {
	line line[T]
	heap heap[T]
	seq  uint64 // of the entry added to the heap last
}

func (a *agenda[T]) len() int { return a.line.n + len(a.heap) }

func (a *agenda[T]) push(at int64, item T) {
	if a.line.takes(at) {
		a.line.push(at, item)
		return
	}
	a.seq++
	a.heap.push(entry[T]{at: at, seq: a.seq, item: item})
}

// inLine reports whether the head is in the line. The agenda must not be empty.
func (a *agenda[T]) inLine() bool {
	return len(a.heap) == 0 || a.line.n > 0 && a.line.head().at <= a.heap[0].at
}

// next returns when the head is due.
func (a *agenda[T]) next() int64 {
	if a.inLine() {
		return a.line.head().at
	}
	return a.heap[0].at
}

func (a *agenda[T]) pop() T {
	if a.inLine() {
		return a.line.pop()
	}
	return a.heap.pop()
}

func (a *agenda[T]) each(f func(at int64, item T)) {
	a.line.each(f)
	for i := range a.heap {
		f(a.heap[i].at, a.heap[i].item)
	}
}
