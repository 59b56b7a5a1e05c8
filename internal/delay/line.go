package delay

// pieceEntries is how many entries of a line share an allocation: with pointers as
// items, one of 512 bytes. To more the runtime adds a pointer, see newPiece.
const pieceEntries = 31

// line is a queue of entries, each due after those before it. It grows without
// moving what it has, and gives its memory back as it empties, but for one piece.
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

// lineEntry is an entry whose place tells when it was added.
type lineEntry[T any] struct {
	at   int64
	item T
}

// newPiece makes a piece for what is due at an instant.
func newPiece[T any](at int64) *piece[T] {
	p := new(piece[T])
	p.entries[0].at = at // before any pointer, which may read the memory that is new
	return p
}

// takes reports whether what is due at an instant is due after all that the line has.
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

// agenda is what a queue has to hand over, earliest first. What is added in the order
// in which it is due, as retries after equal delays are, waits in a line, where an
// entry costs the same however many there are; the rest in a heap.
//
// Of what is due at the same instant in both, the line's was added first: as long as
// the heap has an entry, the line has one that is due later, which closes it to that.
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

// inLine reports whether the head is the line's. There must be one.
func (a *agenda[T]) inLine() bool {
	return len(a.heap) == 0 || a.line.n > 0 && a.line.head().at <= a.heap[0].at
}

// next is when the head is due.
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
