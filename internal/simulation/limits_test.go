package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/testhooks"
)

// TestD12_LimitsWhileChangesAreRecorded is the counterpart of contracttest's
// TestD12_LimitsAndEverythingElse, on a bus whose changes are recorded later, in their order, and
// partly refused. TestSimulation checks a bus with limits at rest only. Here, handlers, publishers,
// operators, Unsubscribe and Shutdown meet changes that are being recorded.
//
// Whatever happens: no delivery is lost or in two places, no limit is exceeded, no call begins
// after Unsubscribe or Shutdown, and the ledger balances.
func TestD12_LimitsWhileChangesAreRecorded(t *testing.T) {
	seeds := 400
	if testing.Short() {
		seeds = 100
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newLimitsMix(t, seed)
				defer func() {
					if t.Failed() {
						t.Log(m.what)
					}
				}()
				m.run(t)
			})
		})
		if t.Failed() {
			return
		}
	}
}

// limitsMix is one seeded run of TestD12_LimitsWhileChangesAreRecorded.
type limitsMix struct {
	rng  *rand.Rand
	seed uint64
	bus  *eventbus.Bus
	what string // describes the run

	store *laterRecorder

	graceful bool // Shutdown's context does not end, and nothing is held or scheduled

	mu       sync.Mutex // guards the following
	subs     []*mixSub
	accepted int64
	closed   bool // Shutdown has returned
	places   map[mixDelivery]int
}

type mixSub struct {
	*eventbus.Subscription
	limit, running int
	lossy          bool
	removed        bool // Unsubscribe has begun
	gone           bool // Unsubscribe has returned
}

// mixDelivery is a delivery that must end in one place: handled, or in one letter.
type mixDelivery struct {
	sub   string
	event eventbus.EventID
}

func newLimitsMix(t *testing.T, seed uint64) *limitsMix {
	t.Helper()
	m := &limitsMix{
		rng: rand.New(rand.NewPCG(seed, 12)), seed: seed, store: &laterRecorder{rng: rand.New(rand.NewPCG(seed, 13))},
		places: map[mixDelivery]int{},
	}
	m.graceful = m.rng.IntN(2) == 0
	concurrency, capacity := 1+m.rng.IntN(6), 1+m.rng.IntN(20)
	options := []eventbus.Option{
		eventbus.WithLogger(zap.NewNop()),
		eventbus.WithConcurrency(concurrency), eventbus.WithQueueCapacity(capacity), eventbus.WithTimeout(5 * time.Second),
		eventbus.WithRetry(eventbus.MaxRetries(2), eventbus.BaseDelay(100*time.Millisecond)),
	}
	if m.graceful {
		options = append(options, eventbus.WithCircuit(eventbus.NoCircuit()))
	}
	isolated := m.rng.IntN(4) == 0
	if isolated {
		options = append(options, eventbus.WithIsolation())
	}
	bus, err := eventbus.New(options...)
	require.NoError(t, err)
	t.Cleanup(func() { // run has shut it down, unless the test has failed
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = bus.Shutdown(ctx)
	})
	require.NoError(t, bus.Start(t.Context()))
	testhooks.SetRecord(bus, m.store.record)
	m.bus = bus
	m.what = fmt.Sprintf("graceful %v, concurrency %d, capacity %d, isolated %v", m.graceful, concurrency, capacity, isolated)
	for i := range 1 + m.rng.IntN(3) {
		s := &mixSub{}
		options := []eventbus.SubscribeOption{eventbus.Named(fmt.Sprint("s", i)), eventbus.LineCapacity(1 + m.rng.IntN(6))}
		switch m.rng.IntN(4) {
		case 0: // the default share
		default:
			s.limit = min(1+m.rng.IntN(2), concurrency)
			options = append(options, eventbus.Concurrency(s.limit))
		}
		if m.rng.IntN(5) == 0 {
			s.lossy = true
			options = append(options, []eventbus.WhenFull{eventbus.DropOldestWhenFull, eventbus.DropNewestWhenFull}[m.rng.IntN(2)])
		}
		s.Subscription, err = bus.Subscribe("x", m.handler(t, s), options...)
		require.NoError(t, err)
		m.subs = append(m.subs, s)
		m.what += fmt.Sprintf("; %s limit %d, lossy %v", s.ID(), s.limit, s.lossy)
	}
	return m
}

func (m *limitsMix) handler(t *testing.T, s *mixSub) eventbus.Handler {
	t.Helper()
	return func(ctx context.Context, e eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		n := e.Payload.(int)
		m.mu.Lock()
		s.running++
		if s.limit > 0 && s.running > s.limit {
			t.Errorf("%d calls of %s", s.running, s.ID())
		}
		if s.gone || m.closed {
			t.Errorf("%s begins a call after Unsubscribe (%v) or Shutdown (%v)", s.ID(), s.gone, m.closed)
		}
		m.mu.Unlock()
		time.Sleep(time.Duration(n%7) * 50 * time.Millisecond)
		if n%11 == 0 {
			m.publish(ctx, 1, eventbus.Key("inner"))
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		s.running--
		if n%5 == 0 && d.Attempt == 1 {
			return errSimulated
		}
		if ctx.Err() == nil {
			m.places[mixDelivery{s.ID(), e.ID}]++
		}
		return nil
	}
}

// targetsLocked returns the names of the subscriptions that an event reaches if it is published now.
func (m *limitsMix) targetsLocked() (names []string) {
	for _, s := range m.subs {
		if !s.removed {
			names = append(names, s.ID())
		}
	}
	return names
}

// acceptedLocked notes an accepted event and its targets before Publish. A subscription that was
// removed meanwhile may not receive it.
func (m *limitsMix) acceptedLocked(id eventbus.EventID, before []string) {
	m.accepted++
	after := m.targetsLocked()
	for _, name := range before {
		if d := (mixDelivery{name, id}); slices.Contains(after, name) {
			m.places[d] += 0 // it must have a place at the end
		}
	}
}

func (m *limitsMix) publish(ctx context.Context, payload int, options ...eventbus.PublishOption) {
	m.mu.Lock()
	to := m.targetsLocked()
	m.mu.Unlock()
	id, err := m.bus.Publish(ctx, "x", payload, options...)
	if err != nil {
		return
	}
	m.mu.Lock()
	m.acceptedLocked(id, to)
	m.mu.Unlock()
}

// publisher publishes 20 times, in each way.
func (m *limitsMix) publisher(t *testing.T, number uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(m.seed, 100+number))
	for range 20 {
		var options []eventbus.PublishOption
		if rng.IntN(2) == 0 {
			options = append(options, eventbus.Key(fmt.Sprint("k", rng.IntN(2))))
		}
		payload := rng.IntN(1000)
		switch rng.IntN(7) {
		case 0: // a batch
			m.mu.Lock()
			to := m.targetsLocked()
			m.mu.Unlock()
			ids, err := m.bus.PublishBatch(t.Context(), []eventbus.Publication{
				{Type: "x", Payload: payload, Options: options}, {Type: "x", Payload: payload + 1, Options: options},
			})
			m.mu.Lock()
			if err == nil {
				for _, id := range ids {
					m.acceptedLocked(id, to)
				}
			}
			m.mu.Unlock()
		case 1: // with a context that ends
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(200))*time.Millisecond)
			m.publish(ctx, payload, options...)
			cancel()
		case 2: // and waits
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(400))*time.Millisecond)
			m.mu.Lock()
			to := m.targetsLocked()
			m.mu.Unlock()
			r, _ := m.bus.PublishAndWait(ctx, "x", payload, options...)
			cancel()
			m.mu.Lock()
			if !r.ID.IsZero() {
				m.acceptedLocked(r.ID, to)
			}
			m.mu.Unlock()
		case 3: // for later, unless Shutdown must leave nothing
			if !m.graceful {
				options = append(options, eventbus.After(time.Duration(rng.IntN(300))*time.Millisecond))
			}
			m.publish(t.Context(), payload, options...)
		default:
			m.publish(t.Context(), payload, options...)
		}
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
}

// operate pauses, trips and resumes subscriptions, replays letters, and may remove a subscription.
func (m *limitsMix) operate() {
	remove := m.rng.IntN(20)
	for i := range 10 {
		time.Sleep(time.Duration(m.rng.IntN(200)) * time.Millisecond)
		s := m.subs[m.rng.IntN(len(m.subs))]
		if i == remove {
			m.unsubscribe(s)
		}
		switch m.rng.IntN(7) {
		case 6:
			_, _ = m.bus.DLQ().ReplayMatching(context.Background(), eventbus.LetterQuery{All: true})
		case 0:
			_ = s.Pause()
		case 1:
			_ = s.Trip()
		case 2:
			_ = s.Reset()
		default:
			_ = s.Resume()
		}
	}
	if m.graceful || m.rng.IntN(2) == 0 {
		for _, s := range m.subs {
			_, _ = s.Resume(), s.Reset()
		}
	}
}

func (m *limitsMix) unsubscribe(s *mixSub) {
	m.mu.Lock()
	s.removed = true
	m.mu.Unlock()
	s.Unsubscribe()
	m.startedCallsArrive()
	m.mu.Lock()
	s.gone = true
	m.mu.Unlock()
}

// startedCallsArrive waits until handlers whose calls have started are past their first lines. A
// worker may have found the door open before Unsubscribe or Shutdown, and be preempted before the
// handler locks mu. Virtual time passes only when no goroutine can run.
func (m *limitsMix) startedCallsArrive() { time.Sleep(time.Nanosecond) }

func (m *limitsMix) run(t *testing.T) {
	t.Helper()
	var publishers sync.WaitGroup
	for p := range uint64(3) {
		publishers.Go(func() { m.publisher(t, p) })
	}
	m.operate()
	limit := time.Hour // more than everything takes
	if !m.graceful {
		limit = time.Duration(m.rng.IntN(3000)) * time.Millisecond
	}
	if m.rng.IntN(2) == 0 { // otherwise, publishers meet Shutdown
		time.Sleep(time.Minute)
	}
	if m.rng.IntN(3) == 0 {
		pause := time.Duration(m.rng.IntN(300)) * time.Millisecond
		publishers.Go(func() { // while Shutdown waits, or at the same moment
			for _, s := range m.subs {
				m.unsubscribe(s)
				time.Sleep(pause)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := m.bus.Shutdown(ctx)
	outstanding := m.store.outstanding()
	m.startedCallsArrive()
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	require.Zero(t, outstanding, "changes are not recorded, and Shutdown has returned")
	publishers.Wait()
	time.Sleep(time.Hour) // abandoned handlers have returned

	var left *eventbus.ShutdownError
	if m.graceful && errors.As(err, &left) {
		require.Empty(t, left.Unfinished, "Shutdown waits for everything but held deliveries")
		require.NoError(t, left.Cause)
	}
	l := m.bus.Metrics().Ledger
	require.True(t, l.Closed && l.Balanced(), "%+v", l)
	require.Equal(t, m.accepted, l.Accepted)
	page, err := m.bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	require.NoError(t, err)
	for i := range page.Letters {
		letter := &page.Letters[i]
		for _, name := range append([]string{letter.Subscription}, letter.NotReached...) {
			m.places[mixDelivery{name, letter.Event.ID}]++
		}
	}
	dropped := int64(0)
	lossy := map[string]bool{}
	for _, s := range m.subs {
		lossy[s.ID()] = s.lossy
	}
	for d, places := range m.places {
		switch {
		case places == 0 && lossy[d.sub]:
			dropped++
		case places == 2 && !m.graceful: // the call returned when Shutdown's context ended
		default:
			require.Equal(t, 1, places, "%s of %s", d.event, d.sub)
		}
	}
	require.LessOrEqual(t, dropped, l.Dropped)
}
