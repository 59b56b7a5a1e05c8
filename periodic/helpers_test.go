package periodic_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/periodic"
	"github.com/surebus/eventbus/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const eventType = "report.daily"

// steps is a clock whose wall clock can be set. Its timers do not notice that.
type steps struct {
	clock.Clock
	ahead atomic.Int64
}

func newSteps() *steps { return &steps{Clock: clock.New()} }

func (s *steps) Now() time.Time        { return time.Now().Add(time.Duration(s.ahead.Load())) }
func (s *steps) step(by time.Duration) { s.ahead.Add(int64(by)) }

// sleepUntil sleeps until an instant of package time, which begins in 2000 in a bubble.
func sleepUntil(t *testing.T, text string) {
	t.Helper()
	at := parse(t, text)
	require.False(t, at.Before(time.Now()), "%s is past: %s", text, time.Now())
	time.Sleep(time.Until(at))
	synctest.Wait()
}

func parse(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return at
}

func load(t *testing.T, zone string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(zone)
	require.NoError(t, err)
	return l
}

// world has the processes on one store, or buses in memory, and what their handlers have handled.
type world struct {
	model *storetest.Model
	clock *steps
	logs  *observer.ObservedLogs
	log   *zap.Logger
	opts  []periodic.Option
	fault atomic.Pointer[func(b *driver.Batch) storetest.Fault] // of a batch that publishes; nil for none

	mu    sync.Mutex // guards the following
	ticks []string
}

func newWorld(opts ...periodic.Option) *world {
	core, logs := observer.New(zapcore.WarnLevel)
	w := &world{clock: newSteps(), logs: logs, log: zap.New(core)}
	w.model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
		if fault := w.fault.Load(); fault != nil && len(b.Remember) > 0 {
			f = (*fault)(b)
		}
		return f
	}))
	w.opts = append(opts, periodic.WithClock(w.clock))
	return w
}

// handled returns the ticks that were handled since the last call, in their order.
func (w *world) handled() (ticks []string) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	ticks, w.ticks = w.ticks, nil
	return ticks
}

func (w *world) handle(_ context.Context, e eventbus.Event) error {
	tick, ok := periodic.Tick(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		w.ticks = append(w.ticks, "no tick: "+e.Type)
		return nil
	}
	w.ticks = append(w.ticks, tick.Format(time.RFC3339))
	return nil
}

// lost returns the number of log entries about lost ticks since the last call.
func (w *world) lost() (n int) {
	synctest.Wait()
	for _, e := range w.logs.TakeAll() {
		if e.Message == "tick not published" {
			n++
		}
	}
	return n
}

// process is a process on the store of a world.
type process struct {
	*eventbus.Bus
	t      *testing.T
	of     *world
	store  driver.Store
	stop   context.CancelFunc // of a Start that waits
	starts chan error
	sent   *counted
}

// counted is a payload that counts how often it was encoded: once by Every, and once for each publication.
type counted struct{ n atomic.Int64 }

func (c *counted) MarshalJSON() ([]byte, error) {
	c.n.Add(1)
	return []byte(`{}`), nil
}

// publications returns how often the process has called Publish.
func (p *process) publications() int64 { return p.sent.n.Load() - 1 }

// process starts a bus with the store. A standby's Start waits.
func (w *world) process(t *testing.T, opts ...eventbus.Option) *process {
	t.Helper()
	p := &process{t: t, of: w, store: w.model.Open(), starts: make(chan error, 1), sent: new(counted)}
	opts = append([]eventbus.Option{eventbus.WithStore(p.store), eventbus.WithStandby(), eventbus.WithClock(w.clock), eventbus.WithLogger(w.log)}, opts...)
	bus, err := eventbus.New(opts...)
	require.NoError(t, err)
	p.Bus = bus
	_, err = bus.Subscribe("**", w.handle, eventbus.Named("reports"))
	require.NoError(t, err)
	var ctx context.Context
	ctx, p.stop = context.WithCancel(t.Context())
	go func() { p.starts <- bus.Start(ctx) }()
	synctest.Wait()
	return p
}

// every starts a schedule of the process.
func (p *process) every(spec string, opts ...periodic.Option) *periodic.Schedule {
	p.t.Helper()
	s, err := periodic.Every(p.Bus, spec, eventType, p.sent, append(opts, p.of.opts...)...)
	require.NoError(p.t, err)
	synctest.Wait()
	return s
}

// end shuts the process down.
func (p *process) end() {
	p.t.Helper()
	p.stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(p.t, p.Shutdown(ctx))
	p.awaitStart()
}

// kill ends the process as SIGKILL does.
func (p *process) kill() {
	p.of.model.Kill(p.store)
	p.stop()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Shutdown(ctx)
	p.awaitStart()
}

// memory starts a bus in memory.
func (w *world) memory(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithClock(w.clock), eventbus.WithLogger(w.log)}, opts...)...)
	require.NoError(t, err)
	_, err = bus.Subscribe("**", w.handle)
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	return bus
}

func shutdown(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, bus.Shutdown(ctx))
}

// awaitStart waits until Start has returned.
func (p *process) awaitStart() {
	if err := <-p.starts; err != nil {
		p.t.Log("Start:", err)
	}
}
