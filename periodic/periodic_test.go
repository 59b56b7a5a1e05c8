package periodic_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/periodic"
)

// Each tick is one event, with the tick, a key, and what the options say.
func TestPeriodic_EachTickIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		berlin := load(t, "Europe/Berlin")
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, eventbus.WithMiddleware(rec.Wrap))
		_, err := bus.Subscribe("report.*", func(context.Context, eventbus.Event) error { return nil })
		require.NoError(t, err)
		s, err := periodic.Every(bus, "0 8 * * *", eventType, "payload", periodic.In(berlin), periodic.Named("daily"),
			periodic.Key("reports"), periodic.Metadata("team", "blue"))
		require.NoError(t, err)
		require.Equal(t, "daily", s.Name())
		require.Equal(t, "2000-01-01T08:00:00+01:00", s.Next().Format(time.RFC3339))
		sleepUntil(t, "2000-01-03T06:59:59Z")
		require.Equal(t, 2, rec.Len())
		sleepUntil(t, "2000-01-03T07:00:00Z")
		require.Equal(t, 3, rec.Len())
		e := rec.Deliveries()[2].Event
		require.Equal(t, eventType, e.Type)
		require.Equal(t, "payload", e.Payload)
		require.Equal(t, "reports", e.Key)
		require.Equal(t, "blue", e.Metadata.Get("team"))
		require.Equal(t, "2000-01-03T08:00:00+01:00", e.Metadata.Get(periodic.TickMetadata))
		require.Equal(t, "daily@2000-01-03T07:00:00Z", e.IdempotencyKey)
		tick, ok := periodic.Tick(e)
		require.True(t, ok)
		require.True(t, tick.Equal(time.Now()))
		require.Equal(t, 8, tick.Hour())
		_, ok = periodic.Tick(eventbus.Event{Type: eventType})
		require.False(t, ok)
		s.Stop()
		require.Zero(t, s.Next())
	})
}

// Ticks of every second, and several schedules.
func TestPeriodic_TicksEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		bus := w.memory(t)
		for _, spec := range []string{"* * * * * *", "*/20 * * * * *"} {
			_, err := periodic.Every(bus, spec, eventType, nil, w.opts...)
			require.NoError(t, err)
		}
		time.Sleep(time.Hour)
		require.Len(t, w.handled(), 3600+180)
		require.Zero(t, w.lost())
		shutdown(t, bus)
	})
}

// A schedule that is made before Start publishes when the bus dispatches: the latest tick that has come.
func TestPeriodic_EveryBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		bus, err := eventbus.New(eventbus.WithLogger(w.log))
		require.NoError(t, err)
		_, err = bus.Subscribe("**", w.handle)
		require.NoError(t, err)
		_, err = periodic.Every(bus, "@hourly", eventType, nil)
		require.NoError(t, err)
		time.Sleep(150 * time.Minute)
		require.Empty(t, w.handled())
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(30 * time.Second)
		require.Equal(t, []string{"2000-01-01T02:00:00Z"}, w.handled())
		require.Zero(t, w.lost(), "nothing was lost: no process dispatched")
		time.Sleep(time.Hour)
		require.Equal(t, []string{"2000-01-01T03:00:00Z"}, w.handled())
		shutdown(t, bus)
	})
}

// Stop may be called at once, again, and in a handler. Nothing is published after it has returned, and the name is free.
func TestPeriodic_Stop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		bus := w.memory(t)
		var current atomic.Pointer[periodic.Schedule]
		_, err := bus.Subscribe(eventType, func(context.Context, eventbus.Event) error {
			current.Load().Stop()
			return nil
		})
		require.NoError(t, err)
		for range 3 {
			s, err := periodic.Every(bus, "* * * * * *", eventType, nil, w.opts...)
			require.NoError(t, err, "the name is free after Stop")
			current.Store(s)
			time.Sleep(time.Minute)
			require.Len(t, w.handled(), 1)
		}
		s, err := periodic.Every(bus, "* * * * * *", eventType, nil, w.opts...)
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 10 {
			all.Go(s.Stop)
		}
		all.Wait()
		time.Sleep(time.Minute)
		require.Empty(t, w.handled())
		shutdown(t, bus)
	})
}

// Stop and Shutdown end a publication that waits for room in the queue.
func TestPeriodic_StopWhilePublishWaits(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, bus *eventbus.Bus, s *periodic.Schedule){
		"stop": func(_ *testing.T, _ *eventbus.Bus, s *periodic.Schedule) { s.Stop() },
		"shutdown": func(t *testing.T, bus *eventbus.Bus, _ *periodic.Schedule) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, bus.Shutdown(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, err := eventbus.New(eventbus.WithQueueCapacity(1), eventbus.WithConcurrency(1), eventbus.WithTimeout(time.Hour), eventbus.WithLogger(zap.NewNop()))
				require.NoError(t, err)
				_, err = bus.Subscribe("**", func(ctx context.Context, _ eventbus.Event) error {
					<-ctx.Done()
					return nil
				})
				require.NoError(t, err)
				require.NoError(t, bus.Start(t.Context()))
				s, err := periodic.Every(bus, "* * * * * *", eventType, nil)
				require.NoError(t, err)
				time.Sleep(5 * time.Second) // one runs, one is queued, one waits for room
				began := time.Now()
				end(t, bus, s)
				s.Stop()
				require.Less(t, time.Since(began), time.Second)
				require.LessOrEqual(t, bus.Metrics().Ledger.Accepted, int64(2))
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				_ = bus.Shutdown(ctx)
			})
		})
	}
}

// Shutdown of the bus ends its schedules.
func TestPeriodic_ShutdownEndsSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		bus := w.memory(t)
		s, err := periodic.Every(bus, "@hourly", eventType, nil, w.opts...)
		require.NoError(t, err)
		shutdown(t, bus)
		synctest.Wait()
		require.Zero(t, s.Next())
		s.Stop()
		_, err = periodic.Every(bus, "@hourly", eventType, nil, w.opts...)
		require.ErrorIs(t, err, eventbus.ErrShutdown)
	})
}

// With the clock.Mock of the bus, a test sets the time.
func TestPeriodic_AMockClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		mock.Set(parse(t, "2026-03-01T07:59:59Z"))
		w := newWorld()
		bus, err := eventbus.New(eventbus.WithClock(mock))
		require.NoError(t, err)
		_, err = bus.Subscribe("**", w.handle)
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		_, err = periodic.Every(bus, "0 8 * * *", eventType, nil, periodic.WithClock(mock))
		require.NoError(t, err)
		for _, want := range []string{"2026-03-01T08:00:00Z", "2026-03-02T08:00:00Z"} {
			synctest.Wait()
			mock.Add(time.Second)
			require.Equal(t, []string{want}, w.handled())
			mock.Add(24*time.Hour - time.Second)
		}
		shutdown(t, bus)
	})
}
