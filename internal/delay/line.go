package delay

// pieceEntries is how many entries of a line share an allocation.
const pieceEntries = 64

// line is a queue of entries, each due after those before it. It grows without
// moving what it has, and gives its memory back as it empties, but for one piece.
type line[T any] struct {
	first, last *piece[T] // nil until first needed
	popped      int       // of first
	n           int
}

type piece[T any] struct {
	entries [pieceEntries]entry[T]
	used    int
	next    *piece[T]
}

// takes reports whether e is due after all that the line has.
func (l *line[T]) takes(e *entry[T]) bool {
	return l.n == 0 || !e.before(&l.last.entries[l.last.used-1])
}

func (l *line[T]) push(e entry[T]) {
	switch {
	case l.last == nil:
		l.first = new(piece[T])
		l.last = l.first
	case l.last.used == pieceEntries:
		l.last.next = new(piece[T])
		l.last = l.last.next
	}
	l.last.entries[l.last.used] = e
	l.last.used++
	l.n++
}

func (l *line[T]) head() *entry[T] { return &l.first.entries[l.popped] }

func (l *line[T]) pop() T {
	e := l.head()
	item := e.item
	*e = entry[T]{} // for the garbage collector
	l.popped++
	l.n--
	switch {
	case l.n == 0:
		l.first.used, l.popped = 0, 0
	case l.popped == pieceEntries:
		l.first, l.popped = l.first.next, 0
	}
	return item
}

// appendTo appends what the line has to entries.
func (l *line[T]) appendTo(entries []entry[T]) []entry[T] {
	from := l.popped
	for p := l.first; p != nil; p = p.next {
		entries = append(entries, p.entries[from:p.used]...)
		from = 0
	}
	return entries
}

// agenda is what a queue has to hand over, earliest first. What is added in the order
// in which it is due, as retries after equal delays are, waits in a line, where an
// entry costs the same however many there are; the rest in a heap.
type agenda[T any] struct {
	line line[T]
	heap heap[T]
}

func (a *agenda[T]) len() int { return a.line.n + len(a.heap) }

func (a *agenda[T]) push(e entry[T]) {
	if a.line.takes(&e) {
		a.line.push(e)
	} else {
		a.heap.push(e)
	}
}

// inLine reports whether the head is the line's. There must be one.
func (a *agenda[T]) inLine() bool {
	return len(a.heap) == 0 || a.line.n > 0 && a.line.head().before(&a.heap[0])
}

func (a *agenda[T]) head() *entry[T] {
	if a.inLine() {
		return a.line.head()
	}
	return &a.heap[0]
}

func (a *agenda[T]) pop() T {
	if a.inLine() {
		return a.line.pop()
	}
	return a.heap.pop()
}

// entries are all that there are, in no order.
func (a *agenda[T]) entries() []entry[T] {
	return append(a.line.appendTo(make([]entry[T], 0, a.len())), a.heap...)
}
