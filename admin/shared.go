package admin

import (
	"context"
	"sync"
	"time"
)

// Bounds of a shared read.
const (
	cheapRead  = 20 * time.Millisecond // takes so little that each page makes its own
	shareOfCPU = 20                    // an expensive one takes at most 1/20 of the time
)

// shared is an answer that many pages show. While it is cheap to read, each page reads it. An expensive answer is kept for
// 20 times as long as its read took, so that the number of open pages does not matter. The zero value is empty.
type shared[T any] struct {
	mu     sync.Mutex // guards the following; a leaf
	value  T
	known  bool      // value is of an expensive read
	until  time.Time // value is current
	reader chan struct{}
}

// get returns the answer of read, or a recent one. It waits for a read in progress only if there is no recent one.
func (s *shared[T]) get(ctx context.Context, read func(context.Context) (T, error)) (value T, err error) {
	for {
		s.mu.Lock()
		if s.known && (s.reader != nil || time.Now().Before(s.until)) {
			defer s.mu.Unlock()
			return s.value, nil
		}
		reading := s.reader
		if reading == nil {
			s.reader = make(chan struct{})
			s.mu.Unlock()
			return s.renew(ctx, read)
		}
		s.mu.Unlock()
		select {
		case <-reading: // if that read was cheap, it may be of before what this page must show
		case <-ctx.Done():
			return value, ctx.Err()
		}
	}
}

// renew reads. Other callers wait meanwhile, also if read panics.
func (s *shared[T]) renew(ctx context.Context, read func(context.Context) (T, error)) (value T, err error) {
	began, done := time.Now(), false
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.reader)
		s.reader = nil
		if took := time.Since(began); done && took > cheapRead {
			s.value, s.known, s.until = value, true, time.Now().Add(shareOfCPU*took)
		} else if done {
			s.forgetLocked()
		}
	}()
	value, err = read(ctx)
	done = err == nil
	return value, err
}

// forget makes the next call of get read: an operator must see what a change has done.
func (s *shared[T]) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked()
}

func (s *shared[T]) forgetLocked() {
	var none T
	s.value, s.known = none, false
}
