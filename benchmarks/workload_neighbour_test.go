package benchmarks

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkNeighbour is how late a fast subscriber gets its 10,000 events a second,
// alone and beside one that sleeps 50 ms for each of its 20.
func BenchmarkNeighbour(b *testing.B) {
	const fastEvery, slowEvery = 100 * time.Microsecond, 50 * time.Millisecond
	run(b, "Neighbour", func(b *testing.B, kase, rival string) {
		began := time.Now()
		sent := make([]time.Duration, b.N)
		late := make([]time.Duration, b.N)
		var handled sync.WaitGroup
		handled.Add(b.N)
		s := systems[rival](b, setup{subscriptions: []subscription{
			{"fast.event", func(n uint64) error {
				late[n] = time.Since(began) - sent[n]
				handled.Done()
				return nil
			}},
			{"slow.event", func(uint64) error {
				time.Sleep(slowEvery)
				return nil
			}},
		}})

		stop := make(chan struct{})
		var slow sync.WaitGroup
		if kase == "beside" {
			publish := s.publisher("slow.event")
			slow.Go(func() {
				ticks := time.NewTicker(slowEvery)
				defer ticks.Stop()
				for x := newNote(0); ; {
					publish(x)
					select {
					case <-ticks.C:
					case <-stop:
						return
					}
				}
			})
		}

		publish := s.publisher("fast.event")
		notes := make([]*note, b.N)
		for n := range notes {
			notes[n] = newNote(uint64(n))
		}
		b.ResetTimer()
		begin := time.Since(began)
		woke := begin
		for n, x := range notes {
			due := begin + time.Duration(n)*fastEvery
			if early := due - time.Since(began); early > 0 {
				time.Sleep(early)
				woke = time.Since(began)
			}
			// What is due while publish holds its caller up is late; what is due while the
			// caller oversleeps is not.
			sent[n] = max(due, woke)
			publish(x)
		}
		handled.Wait()
		b.StopTimer()
		close(stop)
		slow.Wait()
		s.close()

		slices.Sort(late)
		b.ReportMetric(float64(late[len(late)/2]), "p50-ns")
		b.ReportMetric(float64(late[len(late)*99/100]), "p99-ns")
	})
}
