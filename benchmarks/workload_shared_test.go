package benchmarks

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	_ "modernc.org/sqlite" // the driver of a service

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

// BenchmarkShared measures a file that a bus shares with a service and with standbys.
func BenchmarkShared(b *testing.B) {
	run(b, plan.Shared, func(b *testing.B, kase, _ string) {
		switch kase {
		case "transaction,alone":
			reportLatencies(b, transactions(b, 0))
		case "transaction,beside":
			reportLatencies(b, transactions(b, plan.SharedPublishers))
		case "handled":
			reportLatencies(b, untilHandled(b))
		case "handover":
			reportLatencies(b, handOvers(b))
		case "standbys":
			alone, path := sharedFile(b), sharedFile(b)
			b.ReportMetric(standbyCost(b, 10_000, plan.IdleStandbys, busOn(b, alone, nil), func(opts ...eventbus.Option) *eventbus.Bus {
				return busOn(b, path, nil, opts...)
			}), plan.Alone)
		default:
			b.Fatalf("no case %s", kase)
		}
	})
}

func reportLatencies(b *testing.B, all []time.Duration) {
	b.Helper()
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2]), "p50-ns")
	b.ReportMetric(float64(all[len(all)*99/100]), "p99-ns")
}

// sharedFile returns the path of a new file on the disk.
func sharedFile(b *testing.B) string {
	b.Helper()
	base := os.Getenv(durable.DirVariable)
	if base == "" {
		base = "."
	}
	dir, err := os.MkdirTemp(base, durable.TempPattern) //nolint:usetesting // the directory must be on a disk
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "events.db")
}

// busOn opens a bus over a file. Its handler gets the events of the type tx, and all others are handled at once.
func busOn(b *testing.B, path string, handler eventbus.Handler, opts ...eventbus.Option) *eventbus.Bus {
	b.Helper()
	ctx := context.Background()
	store, err := sqlite.Open(ctx, path)
	require.NoError(b, err)
	return busOver(b, store, handler, opts...)
}

// busOver is busOn over a store.
func busOver(b *testing.B, store driver.Store, handler eventbus.Handler, opts ...eventbus.Option) *eventbus.Bus {
	b.Helper()
	bus, err := eventbus.New(append(opts, eventbus.WithStore(store), eventbus.WithLogger(zap.NewNop()))...)
	require.NoError(b, err)
	if handler == nil {
		handler = func(context.Context, eventbus.Event) error { return nil }
	}
	_, err = bus.Subscribe("tx", handler, eventbus.Named("tx"))
	require.NoError(b, err)
	_, err = bus.Subscribe("order", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("order"))
	require.NoError(b, err)
	return bus
}

func shutdown(b *testing.B, bus *eventbus.Bus) {
	b.Helper()
	require.NoError(b, bus.Shutdown(context.Background()))
}

// service is a program with tables of its own in the file of a bus.
type service struct {
	b   *testing.B
	db  *sql.DB
	bus *eventbus.Bus
}

func serviceOn(b *testing.B, bus *eventbus.Bus, path string) *service {
	b.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
	require.NoError(b, err)
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(context.Background(), "CREATE TABLE booking (id INTEGER PRIMARY KEY, what TEXT)")
	require.NoError(b, err)
	return &service{b, db, bus}
}

// book commits a transaction of two INSERTs, one of them an event.
func (s *service) book() eventbus.EventID {
	s.b.Helper()
	ctx := context.Background()
	tx, err := s.db.BeginTx(ctx, nil)
	require.NoError(s.b, err)
	_, err = tx.ExecContext(ctx, "INSERT INTO booking (what) VALUES ('room')")
	require.NoError(s.b, err)
	id, err := s.bus.PublishTx(ctx, tx, "tx", "booked")
	require.NoError(s.b, err)
	require.NoError(s.b, tx.Commit())
	return id
}

// pause is the time between two transactions, which changes so that it has no rhythm.
func pause(i int) { time.Sleep(time.Duration(10+i*7%20) * time.Millisecond) }

// transactions measures b.N transactions beside publishers.
func transactions(b *testing.B, publishers int) (took []time.Duration) {
	b.Helper()
	path := sharedFile(b)
	bus := busOn(b, path, nil)
	require.NoError(b, bus.Start(context.Background()))
	s := serviceOn(b, bus, path)
	var stop atomic.Bool
	var working sync.WaitGroup
	for range publishers {
		working.Go(func() {
			for n := int64(0); !stop.Load(); n++ {
				if _, err := bus.Publish(context.Background(), "order", n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	time.Sleep(200 * time.Millisecond)
	b.ResetTimer()
	for i := range b.N {
		begin := time.Now()
		s.book()
		took = append(took, time.Since(begin))
		pause(i)
	}
	b.StopTimer()
	stop.Store(true)
	working.Wait()
	require.NoError(b, s.db.Close())
	shutdown(b, bus)
	return took
}

// untilHandled measures the time from the commit of b.N transactions until their events are handled.
func untilHandled(b *testing.B) (took []time.Duration) {
	b.Helper()
	path := sharedFile(b)
	handled := make(chan time.Time, 1)
	bus := busOn(b, path, func(context.Context, eventbus.Event) error {
		handled <- time.Now()
		return nil
	})
	require.NoError(b, bus.Start(context.Background()))
	s := serviceOn(b, bus, path)
	b.ResetTimer()
	for i := range b.N {
		s.book()
		committed := time.Now()
		took = append(took, max(0, (<-handled).Sub(committed)))
		pause(i)
	}
	b.StopTimer()
	require.NoError(b, s.db.Close())
	shutdown(b, bus)
	return took
}

// handOvers measures b.N hand-overs, with a few events to recover each.
func handOvers(b *testing.B) (took []time.Duration) {
	b.Helper()
	ctx := context.Background()
	path := sharedFile(b)
	active := busOn(b, path, nil, eventbus.WithStandby())
	require.NoError(b, active.Start(ctx))
	b.ResetTimer()
	for i := range b.N {
		standby := busOn(b, path, nil, eventbus.WithStandby())
		started := make(chan time.Time, 1)
		go func() {
			if err := standby.Start(ctx); err != nil {
				b.Error(err)
			}
			started <- time.Now()
		}()
		for n := range 10 {
			_, err := active.Publish(ctx, "order", n, eventbus.After(time.Hour))
			require.NoError(b, err)
		}
		time.Sleep(200 * time.Millisecond) // it looks at the lease
		pause(i)
		shutdown(b, active)
		end := time.Now()
		took = append(took, max(0, (<-started).Sub(end)))
		active = standby
	}
	b.StopTimer()
	shutdown(b, active)
	return took
}

// standbyCost returns the cost of an event beside idle standbys as a multiple of the same without them: the median of
// b.N pairs of so many events. open opens a bus over the data that the standbys share.
func standbyCost(b *testing.B, events int64, n int, alone *eventbus.Bus, open func(...eventbus.Option) *eventbus.Bus) float64 {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	beside := open()
	require.NoError(b, alone.Start(ctx))
	require.NoError(b, beside.Start(ctx))
	var standbys []*eventbus.Bus
	var waiting sync.WaitGroup
	for range n {
		standby := open(eventbus.WithStandby())
		standbys = append(standbys, standby)
		waiting.Go(func() { _ = standby.Start(ctx) }) // until ctx ends
	}
	ratio := pairs(b, func() time.Duration { return publishAll(b, alone, events) }, func() time.Duration { return publishAll(b, beside, events) })
	cancel()
	waiting.Wait()
	for _, standby := range standbys {
		_ = standby.Shutdown(context.Background()) // it was never started
	}
	shutdown(b, beside)
	shutdown(b, alone)
	return ratio
}

// publishAll publishes events with plan.SharedPublishers publishers. It returns the time until all are settled.
func publishAll(b *testing.B, bus *eventbus.Bus, events int64) time.Duration {
	b.Helper()
	before := bus.Metrics().Ledger.Handled
	var left atomic.Int64
	left.Store(events)
	var publishers sync.WaitGroup
	begin := time.Now()
	for range plan.SharedPublishers {
		publishers.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := bus.Publish(context.Background(), "order", "x"); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	publishers.Wait()
	awaitHandled(b, bus, before+events)
	return time.Since(begin)
}

// awaitHandled waits until a bus has handled and settled so many events.
func awaitHandled(b *testing.B, bus *eventbus.Bus, events int64) {
	b.Helper()
	for bus.Metrics().Ledger.Handled < events && !b.Failed() {
		time.Sleep(100 * time.Microsecond)
	}
}

// pairs measures b.N pairs, in turns after a warm-up, and returns the median of y / x.
func pairs(b *testing.B, x, y func() time.Duration) float64 {
	b.Helper()
	x()
	y()
	var ratios []float64
	b.ResetTimer()
	for i := range b.N {
		var took, than time.Duration
		if i%2 == 0 {
			than = x()
			took = y()
		} else {
			took = y()
			than = x()
		}
		ratios = append(ratios, float64(took)/float64(than))
	}
	b.StopTimer()
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}
