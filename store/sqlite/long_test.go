package sqlite

import (
	"context"
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

var (
	long   = flag.Bool("long", false, "run the tests that take minutes")
	search = flag.Bool("search", false, "search as long as CI does")
)

// TestLong_TheRateHolds publishes, handles and settles 5,000,000 events. It prints the rate of the
// last 100,000 against the first, and the size of the heap.
func TestLong_TheRateHolds(t *testing.T) {
	if !*long {
		t.Skip("SKIP: only with -long")
	}
	const events, part = 5_000_000, 100_000
	store, err := Open(t.Context(), t.TempDir()+"/events.db")
	require.NoError(t, err)
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithLogger(zap.NewNop()))
	require.NoError(t, err)
	var handled atomic.Int64
	_, err = bus.Subscribe("*", func(context.Context, eventbus.Event) error { handled.Add(1); return nil }, eventbus.Named("long"))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	var rates []float64
	var heaps []uint64
	for done := 0; done < events; done += part {
		began := time.Now()
		var publishers sync.WaitGroup
		for range 512 {
			publishers.Go(func() {
				for range part / 512 {
					if _, err := bus.Publish(context.Background(), "a", "0123456789"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		publishers.Wait()
		for bus.Metrics().Store.Unsettled() > 0 {
			time.Sleep(time.Millisecond)
		}
		rates = append(rates, part/time.Since(began).Seconds())
		if done%(10*part) == 0 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heaps = append(heaps, m.HeapAlloc>>10)
		}
	}
	t.Logf("events/s of the first and the last %d: %.0f, %.0f; heap in KiB: %d", part, rates[0], rates[len(rates)-1], heaps)
	require.EqualValues(t, events/part*(part/512*512), handled.Load())
	require.NoError(t, bus.Shutdown(context.Background()))
}
