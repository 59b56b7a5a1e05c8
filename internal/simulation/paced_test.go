package simulation

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/testhooks"
)

var simPacedSeed = flag.Int64("pacedseed", -1, "the one paced schedule of TestSimulation to run, and to print")

const (
	pacedTimeout = 5 * time.Second
	longThrottle = 15 * time.Minute
	restTime     = 2*time.Hour + longThrottle/2 // no call of a handler that returns a long Throttle again and again
)

// pacedTally sums up the paced schedules.
type pacedTally struct {
	schedules, calls, snoozes, throttles, asked, shut, takenOver, leftDetached atomic.Int64
	violations                                                                 violations
}

func (t *pacedTally) String() string {
	return fmt.Sprintf("%d paced schedules, %d calls, %d snoozes, %d Throttles, %d destinations asked for, %d deliveries behind shut doors, "+
		"%d subscriptions taken over, %d left detached, %s",
		t.schedules.Load(), t.calls.Load(), t.snoozes.Load(), t.throttles.Load(), t.asked.Load(), t.shut.Load(),
		t.takenOver.Load(), t.leftDetached.Load(), &t.violations)
}

// simulatePaced runs paced schedules of a bus in memory: handlers that return Snooze and Throttle, subscriptions with RateLimit and
// Concurrency, with PerDestination, isolated and coupled ones. Some are detached, and most of these taken over. The contract does not say at which instant a delivery goes on that waits
// for one of these, so bounds and invariants replace an exact model:
//
//   - No delivery is lost, or handled twice. It is handled, or in one letter, or was cancelled or dropped by request.
//   - Deliveries of a key are called in their order at a subscription, whatever their destinations, and one at a time.
//   - No call begins while a Throttle or a pause shuts its subscription or destination, nor beyond its limit or rate.
//   - A snoozed delivery is not called before its time. Neither Snooze nor Throttle spends an attempt or is in a letter.
//   - A delivery is asked for its destination once.
//   - After Detach, no call of the handler begins, and no question for a destination. Deliveries are held until another
//     subscription takes all of them over: their order, what runs, and the state of the doors.
//   - When some doors stay shut, all other deliveries settle, but for those behind one of their key.
//   - Metrics and Dispatches have exactly the deliveries that are left, and the ledger balances.
//
// The scheduler decides the order of what happens at the same moment, so a seed does not always repeat a violation.
func simulatePaced(t *testing.T, schedules int) {
	t.Helper()
	var tally pacedTally
	var next atomic.Int64
	t.Run("paced schedules", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < int64(schedules) && tally.violations.count.Load() < 3; n = next.Add(1) - 1 {
					seed := uint64(*simBase + n)
					if violation, report := simulateOnePaced(t, seed, &tally); violation != "" {
						tally.violations.add(seed, violation)
						t.Errorf("paced seed %d: %s\n%s\nto run it again: go test -count=1 -v -run '^TestSimulation$' ./internal/simulation -args -pacedseed=%d",
							seed, violation, report, seed)
					}
				}
			})
		}
	})
	t.Log(&tally)
}

// simulateOnePaced runs one paced schedule. It returns what was wrong, and a report.
func simulateOnePaced(t *testing.T, seed uint64, tally *pacedTally) (violation, report string) {
	t.Helper()
	var s *pacedSim
	watchdog := time.AfterFunc(time.Minute, func() {
		panic(fmt.Sprintf("paced seed %d does not come to an end%s", seed, lastLines(s.trace.Bytes(), 50)))
	})
	defer watchdog.Stop()
	defer func() {
		p := recover() // synctest's: goroutines are left, and can never end
		if s == nil {
			panic(p)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		violation, report = s.violation, s.what+s.report()
		if p != nil && violation == "" {
			violation = fmt.Sprintf("at the end: %v", p)
			report += stacksWith("(*pacedSim)")
		}
	}()
	synctest.Test(t, func(*testing.T) {
		s = newPacedSim(seed, tally)
		s.run()
	})
	return
}

// stacksWith returns the stacks of goroutines that have a text.
func stacksWith(text string) (with string) {
	stacks := make([]byte, 1<<20)
	for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(stack, text) {
			with += "\n" + stack
		}
	}
	return with
}

// pacedSim is a paced schedule.
type pacedSim struct {
	*pacedModel
	seed    uint64
	rng     *rand.Rand // of the operator
	bus     *eventbus.Bus
	what    string
	tally   *pacedTally
	hands   *rand.Rand // decides which subscriptions are detached and taken over
	records *laterRecorder
	cut     bool // Shutdown comes before everything is at rest
	most    int  // calls of the bus at once
}

func newPacedSim(seed uint64, tally *pacedTally) *pacedSim {
	s := &pacedSim{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 50)), tally: tally, records: &laterRecorder{rng: rand.New(rand.NewPCG(seed, 51))},
		hands:      rand.New(rand.NewPCG(seed, 52)),
		pacedModel: &pacedModel{origin: time.Now(), bad: map[string]bool{}, refuses: map[string]bool{}},
	}
	s.cut = s.rng.IntN(4) == 0
	concurrency := pick(s.rng, 1, 2, 4, 16, 256)
	options := []eventbus.Option{
		eventbus.WithLogger(zap.NewNop()), eventbus.WithConcurrency(concurrency), eventbus.WithTimeout(pacedTimeout), eventbus.WithObserver(s.observer()),
		eventbus.WithRetry(eventbus.MaxRetries(s.rng.IntN(4)), eventbus.BaseDelay(pick(s.rng, time.Millisecond, 100*time.Millisecond, time.Second))),
	}
	bus, err := eventbus.New(options...)
	if err != nil {
		panic(err)
	}
	if s.bus, s.most = bus, concurrency; seed%2 == 0 {
		testhooks.SetRecord(bus, s.records.record)
	}
	s.what = fmt.Sprintf("concurrency %d, records later %v, cut %v\n", concurrency, seed%2 == 0, s.cut)
	for range 1 + s.rng.IntN(4) {
		s.subscribe()
	}
	return s
}

// newPaceLimits draws the limits of a subscription of a bus with a concurrency.
func newPaceLimits(rng *rand.Rand, concurrency int) (l paceLimits) {
	if chance(rng, 40) {
		l.concurrency = min(1+rng.IntN(3), concurrency)
	}
	if chance(rng, 40) {
		calls := 1 + rng.IntN(5)
		l.rate = &eventbus.RateSettings{Calls: calls, Per: pick(rng, 100*time.Millisecond, time.Second, 3*time.Second), Burst: 1 + rng.IntN(4)}
	}
	if chance(rng, 30) {
		l.maxThrottle = pick(rng, 10*time.Millisecond, time.Second)
	}
	return l
}

func (s *pacedSim) subscribe() {
	rng := s.rng
	sub := &pacedSub{
		number: len(s.subs), divided: chance(rng, 60), isolated: chance(rng, 40), circuit: chance(rng, 50), failing: pick(rng, 0, 10, 40),
		limits: newPaceLimits(rng, s.most), doors: map[string]*paceDoor{}, pauses: map[string]time.Time{},
		deliveries: map[int]*pacedDelivery{}, keys: map[string][]*pacedDelivery{},
	}
	options := []eventbus.SubscribeOption{eventbus.Named(fmt.Sprint("s", sub.number))}
	if sub.isolated {
		options = append(options, eventbus.Isolated())
	}
	if sub.circuit {
		options = append(options, eventbus.Circuit(eventbus.MinEvents(3), eventbus.OpenFor(pick(rng, 300*time.Millisecond, 3*time.Second))))
	} else {
		options = append(options, eventbus.Circuit(eventbus.NoCircuit()))
	}
	line := 0
	if chance(rng, 30) {
		line = 1 + rng.IntN(8)
		options = append(options, eventbus.LineCapacity(line))
		if chance(rng, 30) {
			sub.lossy = true
			options = append(options, pick(rng, eventbus.DropOldestWhenFull, eventbus.DropNewestWhenFull))
		}
	}
	sub.options = options
	made, err := s.make(sub, 0)
	if err != nil {
		panic(err)
	}
	sub.Subscription = made
	s.subs = append(s.subs, sub)
	s.what += fmt.Sprintf("s%d isolated %v, per destination %v, circuit %v, line %d, lossy %v, fails %d%%, %v\n",
		sub.number, sub.isolated, sub.divided, sub.circuit, line, sub.lossy, sub.failing, &sub.limits)
}

// make subscribes with a handler. by is the number of subscriptions that had the name before.
func (s *pacedSim) make(sub *pacedSub, by int, more ...eventbus.SubscribeOption) (*eventbus.Subscription, error) {
	options := slices.Concat(sub.options, sub.limits.options(), more)
	if sub.divided {
		options = append(options, eventbus.PerDestination(func(e eventbus.Event) string { return s.answer(sub, by, e) }))
	}
	return s.bus.Subscribe("x", s.handler(sub, by), options...)
}

func (s *pacedSim) run() {
	s.tally.schedules.Add(1)
	if err := s.bus.Start(context.Background()); err != nil {
		panic(err)
	}
	var publishers sync.WaitGroup
	for i := range 3 {
		publishers.Go(func() { s.publisher(i) })
	}
	s.operate()
	if s.cut {
		time.Sleep(ms(s.rng, 2000))
		s.mu.Lock()
		s.cuts = true
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), ms(s.rng, 3000))
		defer cancel()
		_ = s.bus.Shutdown(ctx)
	} else {
		s.takeOverMost()
		s.shutSome(&publishers)
		s.openAll()
		s.waitBesideDetached()
		s.shutdown()
	}
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	publishers.Wait()
	time.Sleep(time.Hour) // abandoned handlers have returned
	s.settleAccounts()
}

// shutSome shuts some doors, publishes, and checks that everything else settles.
func (s *pacedSim) shutSome(publishers *sync.WaitGroup) {
	s.mu.Lock()
	s.calm = true
	s.shutDetached()
	s.mu.Unlock()
	s.openDoors()
	publishers.Wait()
	for _, sub := range s.subs {
		for i := range 4 {
			name := fmt.Sprint("d", i)
			switch s.rng.IntN(6) {
			case 0:
				s.shut(sub, name, sub.divided)
			case 1:
				s.mu.Lock()
				refuses := sub.divided && sub.limits.maxThrottle == 0
				if refuses {
					s.bad[sub.doorName(name)], s.refuses[sub.doorName(name)] = true, true
				}
				s.mu.Unlock()
			}
		}
		s.shut(sub, "", s.rng.IntN(8) == 0)
	}
	for range 10 {
		key := pick(s.rng, "", "last", "last")
		ctx, cancel := context.WithTimeout(context.Background(), longThrottle)
		s.publish(ctx, s.publishes(key, true)) // it may wait for a line that a Throttle keeps full
		cancel()
	}
	time.Sleep(restTime)
	s.rest()
}

// shut pauses a door for good.
func (s *pacedSim) shut(sub *pacedSub, name string, really bool) {
	if !really || sub.removed {
		return
	}
	s.mu.Lock()
	s.bad[sub.doorName(name)] = true
	s.mu.Unlock()
	s.order(sub, name, "pause")
}

// openAll opens all doors, and checks that everything settles.
func (s *pacedSim) openAll() {
	s.mu.Lock()
	clear(s.bad)
	clear(s.refuses)
	s.shutDetached()
	s.mu.Unlock()
	s.openDoors()
	time.Sleep(restTime)
	s.rest()
}

// openDoors gives all orders that open a door.
func (s *pacedSim) openDoors() {
	for _, sub := range s.subs {
		if sub.removed {
			continue
		}
		s.order(sub, "", "resume")
		s.order(sub, "", "reset")
		for i := range 4 {
			s.order(sub, fmt.Sprint("d", i), "resume")
			s.order(sub, fmt.Sprint("d", i), "reset")
		}
		s.order(sub, eventbus.CommonDestination, "resume")
		s.order(sub, eventbus.CommonDestination, "reset")
		s.order(sub, "slow", "resume")
		s.order(sub, "hangs", "resume")
	}
}

// rest checks what must hold when everything that can settle has settled.
func (s *pacedSim) rest() {
	metrics := s.bus.Metrics()
	page, err := s.bus.Dispatches(context.Background(), eventbus.DispatchQuery{Limit: 1000})
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.outstanding()
	s.tally.shut.Add(int64(len(left)))
	should, slowed := s.excuse(left)
	var is []string
	l := metrics.Ledger
	if err != nil || !l.Balanced() || l.Accepted != s.accepted || l.Queued+l.Running+l.Waiting+l.Recording+l.Scheduled != 0 {
		s.failf("at rest, %d accepted, %v: %+v", s.accepted, err, l)
	}
	for i := range page.Dispatches {
		s.checkParked(&page.Dispatches[i])
		is = append(is, fmt.Sprintf("e%d/%s", s.numberOf(page.Dispatches[i].Event), page.Dispatches[i].Subscription))
	}
	slices.Sort(is)
	lossy := slices.ContainsFunc(s.subs, func(sub *pacedSub) bool { return sub.lossy })
	if !slices.Equal(is, should) && !lossy {
		s.failf("Dispatches has %s, and should have %s", strings.Join(is, " "), strings.Join(should, " "))
	}
	if n := l.Held + l.Throttled + l.Snoozed; n != int64(len(is)) {
		s.failf("%d dispatches are parked, and Dispatches has %d: %+v", n, len(is), l)
	}
	if l.Throttled > slowed && !lossy {
		s.failf("%d deliveries are throttled, and %d wait for a Throttle: %+v", l.Throttled, slowed, l)
	}
	for i := range metrics.Subscriptions {
		s.compareMetrics(&metrics.Subscriptions[i], left, lossy)
	}
}

// excuse checks that something keeps each of the deliveries. It returns their names, and how many may be throttled.
func (m *pacedModel) excuse(left []*pacedDelivery) (names []string, slowed int64) {
	for _, d := range left {
		if !m.excused(d) && !d.sub.lossy {
			m.failf("%v has not settled, and nothing keeps it from its destination %q", d, d.destination)
		}
		if !d.sub.detached() && m.isSlowed(d) {
			slowed++
		}
		names = append(names, d.String())
	}
	slices.Sort(names)
	return names, slowed
}

func (m *pacedModel) numberOf(id eventbus.EventID) int {
	return slices.IndexFunc(m.events, func(e *pacedEvent) bool { return e.id == id })
}

// compareMetrics compares the counters of a subscription at rest with its calls.
func (m *pacedModel) compareMetrics(is *eventbus.SubscriptionMetrics, left []*pacedDelivery, lossy bool) {
	sub, parked := m.subs[subOf(is.Subscription)], 0
	for _, d := range left {
		if d.sub == sub {
			parked++
		}
	}
	switch {
	case is.Successes != sub.success || is.Failures != sub.failures:
		m.failf("%s has had %d successes and %d failures, and its metrics have %d and %d", sub.ID(), sub.success, sub.failures, is.Successes, is.Failures)
	case is.Parked() != parked && !lossy:
		m.failf("%d deliveries are left at %s, and its metrics have %+v", parked, sub.ID(), is)
	case is.Detached != sub.detached():
		m.failf("%s is detached %v, and its metrics have %+v", sub.ID(), sub.detached(), is)
	case is.Running != 0:
		m.failf("%d calls of %s run at rest", is.Running, sub.ID())
	}
	if is.Destinations == nil {
		return
	}
	for _, at := range is.Destinations.List {
		if at.Running != 0 || at.Paused != time.Now().Before(sub.pauses[at.Destination]) && !m.bad[sub.doorName("")] {
			m.failf("the destination %s of %s is %+v", at.Destination, sub.ID(), at)
		}
	}
}

// settleAccounts checks what Shutdown has left.
func (s *pacedSim) settleAccounts() {
	l := s.bus.Metrics().Ledger
	page, err := s.bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	outstanding := s.records.outstanding()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || !l.Closed || !l.Balanced() || l.Accepted != s.accepted || outstanding > 0 {
		s.failf("after Shutdown, %d accepted, %d changes not recorded, %v: %+v", s.accepted, outstanding, err, l)
	}
	lost := s.checkPlaces(page.Letters)
	if lost > l.Dropped {
		s.failf("%d deliveries are lost, and %d were dropped", lost, l.Dropped)
	}
}

// checkPlaces checks that each delivery is in one place. It returns how many must have been dropped.
func (s *pacedSim) checkPlaces(all []eventbus.DeadLetter) (lost int64) {
	letters := map[*pacedDelivery]int{}
	for i := range all {
		letter := &all[i]
		for _, name := range append([]string{letter.Subscription}, letter.NotReached...) {
			letters[s.delivery(s.events[letter.Event.Payload.(int)], s.subs[subOf(name)])]++
		}
	}
	for _, sub := range s.subs {
		for _, d := range sub.deliveries {
			s.tally.calls.Add(int64(d.calls))
			s.tally.asked.Add(int64(d.asked))
			places := letters[d]
			if d.handled {
				places++
			}
			switch {
			case !d.event.accepted || d.cancelled || places == 1 || places == 0 && (d.perhaps || !d.must):
			case places == 0 && sub.lossy:
				lost++
			default:
				s.failf("%v: handled %v, in %d letters", d, d.handled, letters[d])
			}
		}
	}
	return lost
}

// laterRecorder records the changes of a bus at once, or on a goroutine that records all that it finds, as a store with group
// commit does. It refuses some of those that may be refused.
type laterRecorder struct {
	mu      sync.Mutex // guards the following
	records []func(error)
	writing bool
	rng     *rand.Rand
}

func (r *laterRecorder) record(then func(error)) {
	r.mu.Lock()
	if !r.writing && r.rng.IntN(3) == 0 {
		r.mu.Unlock()
		then(nil)
		return
	}
	r.records = append(r.records, then)
	if !r.writing {
		r.writing = true
		go r.write()
	}
	r.mu.Unlock()
}

func (r *laterRecorder) write() {
	for {
		r.mu.Lock()
		delay := time.Duration(r.rng.IntN(20)) * time.Millisecond
		r.mu.Unlock()
		time.Sleep(delay)
		r.mu.Lock()
		batch := r.records
		if r.records = nil; len(batch) == 0 {
			r.writing = false
			r.mu.Unlock()
			return
		}
		var err error
		if r.rng.IntN(8) == 0 {
			err = errRefusedRecord // refuses what may be refused: new events and replays
		}
		r.mu.Unlock()
		for _, then := range batch {
			then(err)
		}
	}
}

func (r *laterRecorder) outstanding() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.records)
}

var errPaced = errors.New("paced")
