package delay

// shrinkFloor is the capacity up to which a heap keeps its memory.
const shrinkFloor = 64

type entry[T any] struct {
	at   int64
	seq  uint64 // breaks ties: first added, first due
	item T
}

func (e *entry[T]) before(o *entry[T]) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// heap is a binary min-heap with the earliest entry at index 0. It does not use
// container/heap, which boxes every entry in an interface.
type heap[T any] []entry[T]

func (h *heap[T]) push(e entry[T]) {
	s := append(*h, e)
	*h = s
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&s[parent]) {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = e
}

// pop removes the head and returns its item. At a quarter of the capacity it moves the
// entries to an array of half the capacity, so that the amortized cost of a move is
// constant.
func (h *heap[T]) pop() T {
	s := *h
	item := s[0].item
	n := len(s) - 1
	last := s[n]
	s[n] = entry[T]{} // for the garbage collector
	s = s[:n]
	if n > 0 {
		s.down(last)
	}
	if c := cap(s); c > shrinkFloor && n <= c/4 {
		s = append(make(heap[T], 0, c/2), s...)
	}
	*h = s
	return item
}

// down puts e at the root and moves it down to its position.
func (h heap[T]) down(e entry[T]) {
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if r := child + 1; r < len(h) && h[r].before(&h[child]) {
			child = r
		}
		if !h[child].before(&e) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = e
}
