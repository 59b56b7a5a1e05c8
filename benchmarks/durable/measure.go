package durable

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// measurement is one case of a rival.
type measurement struct {
	publishers int
	duration   time.Duration

	published atomic.Int64
	handled   atomic.Int64
}

// handle is the handler of the events.
func (m *measurement) handle() { m.handled.Add(1) }

const (
	// warmPublishers limits the publishers of the warm-up. Each publisher accepts at least one event,
	// which takes long with a rival that commits 512 events one by one.
	warmPublishers = 16
	// pollInterval is the time between two looks at the progress.
	pollInterval = 200 * time.Microsecond
	// stall is the time without progress after which a measurement fails.
	stall = 20 * time.Second
)

// run measures the system. It returns the number of events and the time from the first publication to
// the end of the last one: its acceptance, or with settled its durable completion.
func (m *measurement) run(s *System, settled bool) (events int, took time.Duration, err error) {
	phase := func(publishers int, duration time.Duration) error {
		if err := m.publish(s, publishers, duration); err != nil || !settled {
			return err
		}
		return m.await(s)
	}
	if err := phase(min(m.publishers, warmPublishers), m.duration/4); err != nil {
		return 0, 0, fmt.Errorf("warm-up: %w", err)
	}
	warm := m.published.Load()
	begin := time.Now()
	if err := phase(m.publishers, m.duration); err != nil {
		return 0, 0, err
	}
	took = time.Since(begin)
	return int(m.published.Load() - warm), took, nil
}

// publish accepts events in several goroutines until the duration has passed. Each goroutine accepts
// at least one event.
func (m *measurement) publish(s *System, publishers int, duration time.Duration) error {
	var wg sync.WaitGroup
	var once sync.Once
	var failure error
	var failed atomic.Bool
	begin := time.Now()
	for range publishers {
		wg.Go(func() {
			for !failed.Load() {
				if err := s.Accept(newEvent(m.published.Add(1))); err != nil {
					once.Do(func() { failure = err })
					failed.Store(true)
					return
				}
				if time.Since(begin) >= duration {
					return
				}
			}
		})
	}
	wg.Wait()
	return failure
}

// await waits until all published events are handled and settled.
func (m *measurement) await(s *System) error {
	last, since := int64(-1), time.Now()
	for {
		handled := m.handled.Load()
		if handled >= m.published.Load() {
			settled, err := s.Settled()
			if err != nil || settled {
				return err
			}
		}
		if handled != last {
			last, since = handled, time.Now()
		}
		if time.Since(since) > stall {
			return fmt.Errorf("no progress for %s: %d of %d events handled", stall, handled, m.published.Load())
		}
		time.Sleep(pollInterval)
	}
}
