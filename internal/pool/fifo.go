package pool

// fifo is a first-in, first-out queue in a ring that grows.
type fifo[T any] struct {
	ring  []T // its length is a power of two
	first int
	count int
}

// small is the size up to which an empty ring is kept: 256 KiB of dispatches. With less, a
// busy bus that drains its queue occasionally would grow the ring each time.
const small = 16 << 10

func (f *fifo[T]) len() int { return f.count }

func (f *fifo[T]) push(item T) {
	if f.count == len(f.ring) {
		f.grow()
	}
	f.ring[(f.first+f.count)&(len(f.ring)-1)] = item
	f.count++
}

func (f *fifo[T]) pop() (item T, ok bool) {
	if f.count == 0 {
		return item, false
	}
	at := &f.ring[f.first]
	var none T
	item, *at = *at, none
	f.first = (f.first + 1) & (len(f.ring) - 1)
	f.count--
	return item, true
}

func (f *fifo[T]) each(visit func(T)) {
	for i := range f.count {
		visit(f.ring[(f.first+i)&(len(f.ring)-1)])
	}
}

func (f *fifo[T]) grow() {
	ring := make([]T, max(2*len(f.ring), 16))
	n := copy(ring, f.ring[f.first:])
	copy(ring[n:], f.ring[:f.first])
	f.ring, f.first = ring, 0
}

// trim frees an empty ring that grew in a burst.
func (f *fifo[T]) trim() {
	if f.count == 0 && len(f.ring) > small {
		f.ring, f.first = nil, 0
	}
}
