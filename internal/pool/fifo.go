package pool

// fifo is a first-in, first-out queue in a ring that grows and shrinks.
type fifo[T any] struct {
	ring  []T // its length is a power of two
	first int
	count int
	peak  int // the largest count since the last trim
}

// small is the size up to which a ring does not shrink.
const small = 1024

func (f *fifo[T]) len() int { return f.count }

func (f *fifo[T]) push(item T) {
	if f.count == len(f.ring) {
		f.resize(max(2*len(f.ring), 16))
	}
	f.ring[(f.first+f.count)&(len(f.ring)-1)] = item
	f.count++
	f.peak = max(f.peak, f.count)
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

// trim gives back memory that was not needed since the last trim. It is called when the
// queue is empty: a ring that shrinks as it is drained only grows again with the next burst.
func (f *fifo[T]) trim() {
	if len(f.ring) > small && f.peak <= len(f.ring)/4 {
		f.resize(len(f.ring) / 2)
	}
	f.peak = f.count
}

func (f *fifo[T]) resize(size int) {
	ring := make([]T, size)
	n := copy(ring, f.ring[f.first:min(f.first+f.count, len(f.ring))])
	copy(ring[n:], f.ring[:f.count-n])
	f.ring, f.first = ring, 0
}
