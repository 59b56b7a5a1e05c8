package lane

import "unsafe"

// touch writes to each page of a new chunk, before anybody puts pointers there: while
// the garbage collector marks, the first of these would read what was there, and the
// system maps new memory twice that is read first, the second time at the price of
// interrupting all processors.
func (c *chunk[T]) touch() {
	const page = 4096
	for at := uintptr(0); at < unsafe.Sizeof(*c); at += page {
		*(*byte)(unsafe.Add(unsafe.Pointer(c), at)) = 0
	}
}
