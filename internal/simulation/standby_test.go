package simulation

import (
	"bytes"
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
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

var simStandbySeed = flag.Int64("standbyseed", -1, "the one standby schedule of TestSimulation to run, and to print")

// standbyTally sums up the standby schedules.
type standbyTally struct {
	schedules, processes, kills, losses, handOvers, failures atomic.Int64
	commits, rollbacks, letters, acts                        atomic.Int64
	violations                                               violations
}

func (t *standbyTally) String() string {
	return fmt.Sprintf("%d standby schedules, %d processes, %d kills, %d lost leases, %d hand-overs, %d failures of the store, %d transactions committed, %d rolled back, %d dead letters, %d actions, %s",
		t.schedules.Load(), t.processes.Load(), t.kills.Load(), t.losses.Load(), t.handOvers.Load(), t.failures.Load(),
		t.commits.Load(), t.rollbacks.Load(), t.letters.Load(), t.acts.Load(), &t.violations)
}

// simulateStandbys runs standby schedules. In each, several processes with WithStandby use one storetest.Model at the same
// time. They publish, also in transactions that commit late or not at all; they act on events, shut down, are killed, lose the lease,
// and begin with other subscriptions. The last one handles what is left. A seed repeats the decisions of a schedule, but not
// always its violation.
func simulateStandbys(t *testing.T, schedules int) {
	t.Helper()
	var tally standbyTally
	var next atomic.Int64
	t.Run("standby schedules", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < int64(schedules) && tally.violations.count.Load() < 3; n = next.Add(1) - 1 {
					seed := uint64(*simBase + n)
					if violation, report := simulateStandby(t, seed, &tally); violation != "" {
						tally.violations.add(seed, violation)
						t.Errorf("standby seed %d: %s\n%s\nto run it again: go test -count=1 -v -run '^TestSimulation$' ./internal/simulation -args -standbyseed=%d",
							seed, violation, report, seed)
					}
				}
			})
		}
	})
	t.Log(&tally)
}

// standbySim is a standby schedule.
type standbySim struct {
	seed   uint64
	rng    *rand.Rand
	data   *storetest.Model
	tally  *standbyTally
	faults *rand.Rand // guarded by mu
	quiet  atomic.Bool

	mu        sync.Mutex // guards the following
	origin    time.Time
	trace     bytes.Buffer
	violation string
	events    []*standbyEvent
	processes []*standbyProcess
	fence     int64 // the largest of a call
}

// standbyEvent is an event, its publication, and what became of it.
type standbyEvent struct {
	n         int
	id        eventbus.EventID
	eventType string
	key       string
	from      *standbyProcess
	scheduled bool
	expires   bool
	began     time.Time
	returned  time.Time // of Publish, or of the commit; zero before
	accepted  bool
	refused   bool  // for sure
	ended     bool  // Cancel or GiveUp may have ended deliveries
	must      []int // subscriptions that its publisher had
	at        map[int]*standbyDelivery
}

// standbyDelivery is an event at a subscription.
type standbyDelivery struct {
	handled  int
	running  int
	began    time.Time       // the first call
	last     *standbyProcess // of the last call
	disputed bool            // a call ran while its process lost the lease, failed or died: it may run again
}

// standbyProcess is a bus with WithStandby.
type standbyProcess struct {
	sim     *standbySim
	n       int
	rng     *rand.Rand
	store   driver.Store
	bus     *eventbus.Bus
	subs    []int
	ctx     context.Context
	cancel  context.CancelFunc
	started chan struct{} // closed when Start has returned
	work    sync.WaitGroup

	// standbySim.mu guards the following.
	err      error // of Start
	dead     bool
	leaves   bool // Shutdown was called
	troubled []time.Time
}

func simulateStandby(t *testing.T, seed uint64, tally *standbyTally) (violation, report string) {
	t.Helper()
	watchdog := time.AfterFunc(time.Minute, func() { panic(fmt.Sprintf("standby seed %d does not come to an end", seed)) })
	defer watchdog.Stop()
	var s *standbySim
	defer func() {
		p := recover() // synctest's: goroutines are left, and can never end
		if s == nil {
			panic(p)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		violation, report = s.violation, string(lastLines(s.trace.Bytes(), 120))
		if *simStandbySeed >= 0 {
			report = s.trace.String()
		}
		if p != nil && violation == "" {
			stacks := make([]byte, 1<<20)
			violation = fmt.Sprintf("at the end: %v", p)
			for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
				if strings.Contains(stack, "durable") {
					report += "\n" + stack
				}
			}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		s = &standbySim{
			seed: seed, rng: rand.New(rand.NewPCG(seed, 200)), faults: rand.New(rand.NewPCG(seed, 201)), tally: tally, origin: time.Now(),
		}
		slow := pick(s.rng, 0, 10, 60)
		s.data = storetest.NewModel(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) { return s.fault(slow) }))
		s.run()
	})
	return violation, report
}

func (s *standbySim) logf(format string, args ...any) {
	fmt.Fprintf(&s.trace, "%9.3f ", time.Since(s.origin).Seconds())
	fmt.Fprintf(&s.trace, format+"\n", args...)
}

func (s *standbySim) logs(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf(format, args...)
}

func (s *standbySim) failf(format string, args ...any) {
	if s.violation == "" {
		s.violation = fmt.Sprintf(format, args...)
		s.logf("VIOLATION %s", s.violation)
	}
}

func (s *standbySim) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.violation != ""
}

func (s *standbySim) fault(slow int) (f storetest.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.quiet.Load():
	case chance(s.faults, 1) && chance(s.faults, 50):
		f.Kind = pick(s.faults, storetest.FailBefore, storetest.FailAfter)
		s.tally.failures.Add(1)
		s.logf("the store of a process fails, after=%v", f.Kind == storetest.FailAfter)
		s.troubleLocked(nil)
	case chance(s.faults, slow):
		f.Delay = ms(s.faults, 30)
	}
	return f
}

// troubleLocked notes that calls of processes may run again: of one, or of all.
func (s *standbySim) troubleLocked(of *standbyProcess) {
	for _, p := range s.processes {
		if of == nil || p == of {
			p.troubled = append(p.troubled, time.Now())
		}
	}
	for _, e := range s.events {
		for _, d := range e.at {
			if of == nil || d.last == of {
				d.disputed = true
			}
		}
	}
}

// run runs the schedule.
func (s *standbySim) run() {
	s.tally.schedules.Add(1)
	var all []*standbyProcess
	for range 2 + s.rng.IntN(2) {
		all = append(all, s.begin(1+s.rng.IntN(2)))
	}
	for range 4 + s.rng.IntN(10) {
		time.Sleep(ms(s.rng, 800))
		if s.failed() {
			break
		}
		all = slices.DeleteFunc(all, func(p *standbyProcess) bool { return p.isOver() })
		active := s.active(all)
		switch s.rng.IntN(10) {
		case 0, 1:
			if active != nil {
				s.lose(active)
			}
		case 2:
			p := pick(s.rng, append(all, active)...)
			if p != nil {
				p.kill()
			}
		case 3, 4:
			p := pick(s.rng, append(all, active)...)
			if p != nil {
				s.shutdown(p, all)
			}
		case 5, 6, 7:
			if len(all) < 4 {
				all = append(all, s.begin(1+s.rng.IntN(3)))
			}
		}
	}
	s.end(all)
}

// begin begins a process with the first subscriptions.
func (s *standbySim) begin(subs int) *standbyProcess {
	s.mu.Lock()
	p := &standbyProcess{sim: s, n: len(s.processes), started: make(chan struct{})}
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	p.rng = rand.New(rand.NewPCG(s.seed, 300+uint64(p.n)))
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.store = s.data.Open()
	bus, err := eventbus.New(
		eventbus.WithLogger(zap.NewNop()), eventbus.WithStore(p.store), eventbus.WithStandby(),
		eventbus.WithQueueCapacity(1+p.rng.IntN(30)), eventbus.WithConcurrency(1+p.rng.IntN(6)), eventbus.WithTimeout(storeTimeout),
		eventbus.WithRetry(eventbus.MaxRetries(3), eventbus.BaseDelay(50*time.Millisecond)), eventbus.WithCircuit(eventbus.NoCircuit()))
	for ; err != nil; bus, err = eventbus.New(eventbus.WithStore(p.store)) { // its reads do not fail
		panic(err)
	}
	p.bus = bus
	for sub := range subs {
		p.subs = append(p.subs, sub)
		if _, err := bus.Subscribe("*", p.handler(sub), eventbus.Named(fmt.Sprint("s", sub))); err != nil {
			panic(err)
		}
	}
	s.tally.processes.Add(1)
	s.logs("process %d begins with %d subscriptions", p.n, subs)
	p.work.Go(func() {
		defer close(p.started)
		var err error
		for ended := false; !ended; {
			err = bus.Start(p.ctx)
			ended = err == nil || p.ctx.Err() != nil || p.isOver()
			if !ended {
				time.Sleep(time.Millisecond)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		p.err = err
		s.logf("process %d: Start returns %v", p.n, err)
	})
	for i := range uint64(2) {
		p.work.Go(func() { p.publish(rand.New(rand.NewPCG(s.seed, 1000*uint64(p.n)+i)), fmt.Sprintf("k%d.%d", p.n, i)) })
	}
	return p
}

func (p *standbyProcess) isOver() bool {
	p.sim.mu.Lock()
	defer p.sim.mu.Unlock()
	return p.dead || p.leaves
}

// active returns the process with the lease.
func (s *standbySim) active(all []*standbyProcess) *standbyProcess {
	for _, p := range all {
		if p.store.Lease().IsHeld() {
			return p
		}
	}
	return nil
}

// lose takes the lease from a process.
func (s *standbySim) lose(p *standbyProcess) {
	s.mu.Lock()
	s.logf("process %d loses the lease", p.n)
	s.troubleLocked(p)
	s.mu.Unlock()
	s.tally.losses.Add(1)
	s.data.LoseLease(chance(s.rng, 30), p.store)
}

// kill ends a process as SIGKILL does.
func (p *standbyProcess) kill() {
	s := p.sim
	s.mu.Lock()
	s.logf("process %d is killed", p.n)
	p.dead = true
	s.troubleLocked(p)
	s.mu.Unlock()
	s.tally.kills.Add(1)
	s.data.Kill(p.store)
	p.cancel()
	_ = p.bus.Shutdown(p.ctx)
	p.work.Wait()
}

// shutdown shuts a process down. If it has the lease, a standby gets it.
func (s *standbySim) shutdown(p *standbyProcess, all []*standbyProcess) {
	s.mu.Lock()
	s.logf("process %d shuts down", p.n)
	p.leaves = true
	s.mu.Unlock()
	active := p.store.Lease().IsHeld()
	err := p.bus.Shutdown(context.Background())
	p.cancel()
	p.work.Wait()
	l := p.bus.Metrics().Ledger
	s.mu.Lock()
	s.logf("process %d has shut down: %v, %+v", p.n, err, l)
	if !l.Balanced() || !l.Closed {
		s.failf("process %d: the ledger does not balance: %+v", p.n, l)
	}
	s.mu.Unlock()
	if !active {
		return
	}
	s.tally.handOvers.Add(1)
	var waiting []*standbyProcess
	for _, other := range all {
		if other != p && !other.isOver() {
			waiting = append(waiting, other)
		}
	}
	time.Sleep(500 * time.Millisecond)
	if len(waiting) > 0 && s.active(waiting) == nil && !s.wasTroubled() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failf("500 ms after the Shutdown of process %d, no standby has the lease", p.n)
	}
}

// wasTroubled reports whether something failed in the last seconds.
func (s *standbySim) wasTroubled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		for _, at := range p.troubled {
			if time.Since(at) < 15*time.Second {
				return true
			}
		}
	}
	return false
}

// end lets a last process handle what is left.
func (s *standbySim) end(all []*standbyProcess) {
	s.quiet.Store(true)
	if s.failed() {
		for _, p := range all {
			p.kill()
		}
		return
	}
	last := s.begin(3)
	time.Sleep(time.Minute)
	for _, p := range all {
		if !p.isOver() {
			s.shutdown(p, append(all, last))
		}
	}
	time.Sleep(time.Hour)
	dump := s.data.Dump()
	s.mu.Lock()
	for _, r := range dump.Records {
		s.failf("at rest, the store has record %d of event %s in %v at %v", r.Ref, r.ID, r.State, r.Targets)
	}
	for _, in := range dump.Incoming {
		s.failf("at rest, event %s is incoming", in.Record.ID)
	}
	s.mu.Unlock()
	s.shutdown(last, nil)
	time.Sleep(time.Minute)
	s.check(dump)
}

// check compares what was published with what was handled.
func (s *standbySim) check(dump storetest.Dump) {
	s.mu.Lock()
	defer s.mu.Unlock()
	letters := map[eventbus.EventID]map[int]bool{}
	for _, l := range dump.Letters {
		s.tally.letters.Add(1)
		id := eventbus.EventID(l.Event)
		if letters[id] == nil {
			letters[id] = map[int]bool{}
		}
		read := letterOf(&l)
		for _, name := range append([]string{l.Subscription}, read.NotReached...) {
			letters[id][subOf(name)] = true
		}
	}
	for _, e := range s.events {
		for sub, d := range e.at {
			switch {
			case e.refused && d.handled > 0:
				s.failf("e%d was refused or rolled back, and s%d has handled it", e.n, sub)
			case d.handled > 1 && !d.disputed:
				s.failf("e%d: s%d has handled it %d times", e.n, sub, d.handled)
			}
		}
		for _, sub := range e.must {
			if d := e.at[sub]; e.accepted && !e.ended && (d == nil || d.handled == 0) && !letters[e.id][sub] {
				s.failf("e%d was accepted, and s%d has not handled it, and it is in no letter", e.n, sub)
			}
		}
	}
}

// handler returns the handler of a subscription.
func (p *standbyProcess) handler(sub int) eventbus.Handler {
	s := p.sim
	return eventbus.Typed(func(ctx context.Context, n int) error {
		in, _ := eventbus.FromContext(ctx)
		d, e := s.calls(p, sub, n, in)
		if d == nil {
			return errStoreSim
		}
		rng := rand.New(rand.NewPCG(s.seed, uint64(n)<<16+uint64(sub)<<8+uint64(in.Attempt)))
		var err error
		select {
		case <-time.After(ms(rng, 1+rng.IntN(150))):
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err == nil && chance(rng, 15) {
			err = errStoreSim
		}
		if err == nil && chance(rng, 2) {
			err = eventbus.Permanent(errStoreSim)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		d.running--
		if err == nil && ctx.Err() == nil && !p.dead {
			d.handled++
		}
		s.logf("process %d: s%d ends e%d: %v", p.n, sub, e.n, err)
		return err
	})
}

// calls checks that a handler may be called now.
func (s *standbySim) calls(p *standbyProcess, sub, n int, in eventbus.Delivery) (*standbyDelivery, *standbyEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.events[n]
	if p.dead {
		return nil, e
	}
	s.logf("process %d: s%d is called with e%d, attempt %d, fence %d", p.n, sub, n, in.Attempt, in.Fence)
	d := e.at[sub]
	if d == nil {
		d = &standbyDelivery{began: time.Now()}
		e.at[sub] = d
	}
	switch {
	case in.Fence < s.fence:
		s.failf("e%d: s%d is called with the fence %d after %d", n, sub, in.Fence, s.fence)
	case e.refused:
		s.failf("e%d was refused or rolled back, and s%d is called", n, sub)
	case d.running > 0 && !d.disputed:
		s.failf("e%d: s%d is called twice at once", n, sub)
	case d.handled > 0 && !d.disputed:
		s.failf("e%d: s%d is called again, and has handled it", n, sub)
	case !in.Event.Expires.IsZero() && !time.Now().Before(in.Event.Expires):
		s.failf("e%d: s%d is called, and the event has expired at %v", n, sub, in.Event.Expires)
	case in.Event.ID != e.id && !e.id.IsZero():
		s.failf("e%d has the id %s", n, in.Event.ID)
	}
	if n := len(p.troubled); n > 0 && time.Since(p.troubled[n-1]) < time.Millisecond { // its bus does not know of it yet
		d.disputed = true
	}
	s.fence = max(s.fence, in.Fence)
	for _, other := range s.events {
		if before := other.at[sub]; e.key != "" && other.key == e.key && other.from == e.from && other != e && !other.scheduled && !e.scheduled && other.accepted && !other.ended &&
			!other.returned.After(e.began) && slices.Contains(other.must, sub) && (before == nil || before.handled == 0 && !before.disputed && before.running == 0) {
			if before == nil && !d.disputed && !s.hasLetter(other, sub) && !other.expires {
				s.failf("e%d: s%d is called before e%d of the same key", n, sub, other.n)
			}
		}
	}
	d.running++
	d.last = p
	return d, e
}

// hasLetter reports whether an event has a dead letter.
func (s *standbySim) hasLetter(e *standbyEvent, sub int) bool {
	dump := s.data.Dump()
	return slices.ContainsFunc(dump.Letters, func(l driver.Letter) bool { return eventbus.EventID(l.Event) == e.id })
}

// publish publishes events of one key, in each way.
func (p *standbyProcess) publish(rng *rand.Rand, key string) {
	s := p.sim
	acts := rand.New(rand.NewPCG(s.seed, rng.Uint64()))
	for range 5 + rng.IntN(25) {
		time.Sleep(ms(rng, 300))
		if p.isOver() || s.failed() || s.quiet.Load() {
			return
		}
		if chance(acts, 15) {
			p.act(acts)
		}
		e := s.newEvent(p, pick(rng, key, key, ""))
		options := []eventbus.PublishOption{eventbus.ID(e.id)}
		if e.key != "" {
			options = append(options, eventbus.Key(e.key))
		}
		if chance(rng, 10) {
			e.scheduled = true
			options = append(options, eventbus.After(ms(rng, 2000)))
		}
		if expiries := rand.New(rand.NewPCG(s.seed, 5000+uint64(e.n))); s.seed%3 == 0 && chance(expiries, 15) { // so that the others stay as they are
			options = append(options, eventbus.ExpiresIn(2*time.Second+ms(expiries, pick(expiries, 100, 1000, 10_000))))
			s.mu.Lock()
			e.expires = true
			s.mu.Unlock()
		}
		if chance(rng, 30) {
			p.publishTx(rng, e, options)
			continue
		}
		_, err := p.bus.Publish(p.ctx, e.eventType, e.n, options...)
		for n := 0; n < 50 && err != nil && !p.isOver() && chance(rng, 95); n++ { // the outcome may be unknown
			time.Sleep(ms(rng, 200))
			_, err = p.bus.Publish(p.ctx, e.eventType, e.n, options...)
		}
		s.published(e, err, false)
	}
}

// publishTx publishes an event in a transaction that commits late, or is rolled back.
func (p *standbyProcess) publishTx(rng *rand.Rand, e *standbyEvent, options []eventbus.PublishOption) {
	s := p.sim
	tx := s.data.Begin()
	if _, err := p.bus.PublishTx(p.ctx, tx, e.eventType, e.n, options...); err != nil {
		_ = tx.Rollback()
		s.published(e, err, true)
		return
	}
	time.Sleep(pick(rng, 0, ms(rng, 100), ms(rng, 5000)))
	if chance(rng, 25) {
		s.mu.Lock()
		e.refused = true
		s.mu.Unlock()
		_ = tx.Rollback()
		s.tally.rollbacks.Add(1)
		s.logs("e%d is rolled back", e.n)
		return
	}
	s.tally.commits.Add(1)
	s.published(e, tx.Commit(), true)
}

func (s *standbySim) newEvent(p *standbyProcess, key string) *standbyEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &standbyEvent{
		n: len(s.events), id: eventbus.NewEventID(), eventType: "x", key: key, from: p, began: time.Now(), must: p.subs, at: map[int]*standbyDelivery{},
	}
	s.events = append(s.events, e)
	s.logf("process %d publishes e%d with the key %q", p.n, e.n, key)
	return e
}

func (s *standbySim) published(e *standbyEvent, err error, sure bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var unknown *eventbus.IndeterminateError
	e.accepted, e.returned = err == nil, time.Now()
	e.refused = err != nil && sure && !errors.As(err, &unknown)
	s.logf("published e%d: %v", e.n, err)
}

// act orders something of one of the last events. A process without the lease asks the one that has it.
func (p *standbyProcess) act(rng *rand.Rand) {
	s := p.sim
	v := &simVerb{action: pick(rng, eventbus.AuditCancel, eventbus.AuditRetryNow, eventbus.AuditGiveUp)}
	if chance(rng, 40) {
		v.of = fmt.Sprint("s", rng.IntN(3))
	}
	s.mu.Lock()
	if len(s.events) == 0 {
		s.mu.Unlock()
		return
	}
	e := s.events[len(s.events)-1-rng.IntN(min(20, len(s.events)))]
	e.ended = e.ended || v.action != eventbus.AuditRetryNow
	s.logf("process %d: %s e%d", p.n, v, e.n)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second) // the one with the lease may be gone
	defer cancel()
	report, err := v.apply(ctx, p.bus, e.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.acts.Add(1)
	s.logf("process %d: %s e%d: %+v %v", p.n, v, e.n, report.Deliveries, err)
	if err == nil || nothingLeft(err) || errors.Is(err, eventbus.ErrNothingDone) {
		if wrong := v.settles(&report, err); wrong != "" {
			s.failf("e%d: %s", e.n, wrong)
		}
	}
}
