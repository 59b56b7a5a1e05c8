package benchmarks

import (
	"sync"
	"testing"
	"time"
)

// openGoroutine starts a goroutine for each event and subscriber. Its retry is to
// sleep there.
func openGoroutine(_ testing.TB, s setup) system {
	attempts := func(handle func(uint64) error, n uint64) {
		for handle(n) != nil {
			time.Sleep(s.retry)
		}
	}
	return system{
		publisher: func(topic string) func(*note) {
			handlers := s.handlers(topic)
			if s.wait {
				return func(x *note) {
					var all sync.WaitGroup
					for _, handle := range handlers {
						all.Go(func() { check(handle(x.n)) })
					}
					all.Wait()
				}
			}
			if s.retry > 0 {
				return func(x *note) {
					for _, handle := range handlers {
						go attempts(handle, x.n)
					}
				}
			}
			return func(x *note) {
				for _, handle := range handlers {
					go func() { check(handle(x.n)) }()
				}
			}
		},
		unbounded: true,
		few:       16,
		close:     func() {},
	}
}
