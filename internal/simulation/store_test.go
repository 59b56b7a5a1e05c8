package simulation

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/wallclock"
	"github.com/surebus/eventbus/storetest"
)

var simStoreSeed = flag.Int64("storeseed", -1, "the one store schedule of TestSimulation to run, and to print")

// simStoreFails makes stores fail without a crash. The bus then restarts in place.
const simStoreFails = true

// storeShare is the share of the store schedules of TestSimulation: one for so many others.
const storeShare = 4

// storeTally sums up the store schedules.
type storeTally struct {
	schedules, processes, crashes, restarts   atomic.Int64
	besides, repeats, claimFaults, readFaults atomic.Int64
	clockSteps, detached, takenOver, keyed    atomic.Int64
	emitted, told, acts                       atomic.Int64
	violations                                violations
}

func (t *storeTally) String() string {
	return fmt.Sprintf("%d store schedules, %d processes, %d crashes, %d restarts, %d processes beside, "+
		"%d repetitions of unknown publications, %d publications with idempotency keys, %d faults of claims, %d of reads, %d steps of the wall clock, %d subscriptions detached, %d taken over, %d events emitted, %d letters handled, %d actions, %s",
		t.schedules.Load(), t.processes.Load(), t.crashes.Load(), t.restarts.Load(), t.besides.Load(),
		t.repeats.Load(), t.keyed.Load(), t.claimFaults.Load(), t.readFaults.Load(), t.clockSteps.Load(), t.detached.Load(), t.takenOver.Load(), t.emitted.Load(), t.told.Load(), t.acts.Load(), &t.violations)
}

// simulateStores runs store schedules. In each, several processes follow each other on the data of
// one storetest.Model. They crash between any two batches, or shut down. Another process works beside
// some of them. They detach subscriptions, which later ones of the process take over, or those of the next process.
// The last one runs until it is at rest. A storeModel checks all of it. The scheduler decides the order of what happens at the
// same moment, so a seed repeats the decisions of a schedule, but not always its violation.
func simulateStores(t *testing.T, schedules int) {
	t.Helper()
	var tally storeTally
	var next atomic.Int64
	t.Run("store schedules", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < int64(schedules) && tally.violations.count.Load() < 3; n = next.Add(1) - 1 {
					seed := uint64(*simBase + n)
					if violation, report := simulateStore(t, seed, &tally); violation != "" {
						tally.violations.add(seed, violation)
						t.Errorf("store seed %d: %s\n%s\nto run it again: go test -count=1 -v -run '^TestSimulation$' ./internal/simulation -args -storeseed=%d",
							seed, violation, report, seed)
					}
				}
			})
		}
	})
	t.Log(&tally)
}

// storeSim is a store schedule.
type storeSim struct {
	*storeModel
	seed  uint64
	rng   *rand.Rand // of the driver
	data  *storetest.Model
	tally *storeTally
	n     int // processes so far
	what  string

	faultMu sync.Mutex // guards the following
	faults  *rand.Rand
}

// storeSub is a subscription of all processes.
type storeSub struct {
	index   int
	pattern string
	bad     int  // percentage of failures
	drops   bool // DropExpired
	names   int  // it has had: the latest is its name

	sub      *eventbus.Subscription // of the present process; nil without
	since    int                    // changes with each Subscribe and Unsubscribe
	present  bool
	gone     *bool     // no call of its handler may begin
	detached bool      // Detach has returned in this process, and no other subscription has taken it over
	drop     int       // Retire drops the deliveries of the events with smaller numbers
	after    int       // the number of events when it had
	paused   bool      // by an order that returned, in this process or in one before it, under any name
	resumes  int       // orders that may have ended that, twice each
	ordering int       // of them have not returned
	until    time.Time // when the wall clock ends it, or zero
	shown    time.Time // the latest that it has shown since, at its steps

	pace *storePace // nil if the schedule is not paced
	line int        // LineCapacity of the present process; 0 for the default
}

func (s *storeSub) name(i int) string {
	if i == 0 {
		return fmt.Sprint("s", s.index)
	}
	return fmt.Sprintf("s%d.%d", s.index, i)
}

var storePatterns = map[string][]string{ // types that they match
	"a.*": {"a.x", "a.y"}, "*.x": {"a.x", "b.x"}, "a.x": {"a.x"}, "[ab].*": {"a.x", "a.y", "b.x"}, "**": {"a.x", "a.y", "b.x", "none"},
}

// simulateStore runs one store schedule. It returns what was wrong, and a report.
func simulateStore(t *testing.T, seed uint64, tally *storeTally) (violation, report string) {
	t.Helper()
	var s *storeSim
	watchdog := time.AfterFunc(time.Minute, func() {
		panic(fmt.Sprintf("store seed %d does not come to an end\n%s", seed, lastLines(s.trace.Bytes(), 50)))
	})
	defer watchdog.Stop()
	defer func() {
		p := recover() // synctest's: goroutines are left, and can never end
		if s == nil {
			panic(p)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		violation, report = s.storeModel.violation, s.report()
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
		s = newStoreSim(seed, tally)
		s.run()
	})
	return
}

// report returns the options, what happened to the event of a violation, and the last steps.
func (s *storeSim) report() string {
	trace := s.trace.Bytes()
	if *simStoreSeed >= 0 {
		return s.what + string(trace)
	}
	var about []string
	if e := s.about; e != nil {
		for _, line := range strings.Split(string(trace), "\n") {
			if strings.Contains(line+" ", fmt.Sprintf(" e%d ", e.n)) || strings.Contains(line, "process ") {
				about = append(about, line)
			}
		}
	}
	return fmt.Sprintf("%sits steps:\n%s\nthe last steps:\n%s", s.what, strings.Join(about[max(0, len(about)-60):], "\n"), lastLines(trace, 40))
}

func newStoreSim(seed uint64, tally *storeTally) *storeSim {
	s := &storeSim{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 30)), faults: rand.New(rand.NewPCG(seed, 31)), tally: tally,
		storeModel: &storeModel{
			origin: time.Now(), records: map[driver.Ref]*storeRecord{}, incoming: map[driver.IncomingID]*storeIncoming{}, letters: map[eventbus.LetterID]*storeLetter{},
			counts: tally, told: map[eventbus.LetterID]*toldLetter{},
			live: map[storeLine]map[*storeDelivery]bool{}, changes: map[int]int{}, foreign: map[*driver.Batch]*storeProcess{}, besides: map[int64]bool{},
		},
	}
	if rng := rand.New(rand.NewPCG(seed, 32)); chance(rng, 40) {
		s.wall.clock = wallclock.New()
	}
	options := []storetest.Option{storetest.WithFaults(s.fault), storetest.WithClaimFaults(s.claimFault), storetest.WithApplied(s.applied)}
	if denials := rand.New(rand.NewPCG(seed, 33)); chance(denials, 25) {
		percent := pick(denials, 5, 30, 100)
		options = append(options, storetest.WithLeaseDenied(func(*driver.Record) bool {
			s.faultMu.Lock()
			defer s.faultMu.Unlock()
			return chance(s.faults, percent)
		}))
	}
	s.data = storetest.NewModel(options...)
	for i := range 1 + s.rng.IntN(4) {
		sub := &storeSub{index: i, pattern: pick(s.rng, "a.*", "*.x", "a.x", "[ab].*", "[ab].*", "**"), bad: pick(s.rng, 0, 10, 30, 70)}
		s.subs = append(s.subs, sub)
		s.what += fmt.Sprintf("s%d %s fails %d%%\n", i, sub.pattern, sub.bad)
	}
	if expiries := rand.New(rand.NewPCG(seed, 34)); chance(expiries, 35) {
		s.expiries = expiries
		for _, sub := range s.subs {
			sub.drops = chance(expiries, 30)
		}
	}
	s.makePaced()
	chains := rand.New(rand.NewPCG(seed, 35))
	s.emitting, s.telling = chance(chains, 50), chance(chains, 40)
	return s
}

func (s *storeSim) run() {
	s.tally.schedules.Add(1)
	for range 1 + s.rng.IntN(4) {
		if s.process(false); s.failed() {
			return
		}
	}
	s.process(true)
}

// storeProcess is a process: a bus over the data.
type storeProcess struct {
	sim     *storeSim
	rng     *rand.Rand
	store   driver.Store
	bus     *eventbus.Bus
	what    string
	retries int
	slow    int  // percentage of batches that take their time
	quiet   bool // the last process
	bursts  bool // publishers do not pause

	crashAt, claimCrashAt int // count of batches and Claims from now on; 0 for never
	crashing              chan struct{}
	beside                bool        // it works beside the process that has the lease
	dead                  atomic.Bool // a crash has ended it
	ctx                   context.Context
	targets               map[int]*eventbus.Subscription // if it is beside
	publishers            sync.WaitGroup

	// storeModel.mu guards the following.
	closed                            bool // Shutdown has returned
	accepted, buried, replays, purged int64
	ended                             int64 // records, by the process beside
	died                              map[eventbus.LetterID]bool
	batches, claims, failures         int
	lease                             int64
}

// newProcess opens the data and makes a bus.
func (s *storeSim) newProcess(quiet bool) *storeProcess {
	s.n++
	rng := s.rng
	p := &storeProcess{
		sim: s, rng: rand.New(rand.NewPCG(s.seed, 40+uint64(s.n))), quiet: quiet, crashing: make(chan struct{}),
		retries: rng.IntN(4), slow: pick(rng, 0, 0, 20, 90), bursts: chance(rng, 30), died: map[eventbus.LetterID]bool{},
	}
	queue, concurrency := 1+rng.IntN(20), 1+rng.IntN(6)
	isolated := chance(rng, 25)
	options := []eventbus.Option{
		eventbus.WithLogger(zap.NewNop()), eventbus.WithQueueCapacity(queue), eventbus.WithConcurrency(concurrency),
		eventbus.WithTimeout(storeTimeout), eventbus.WithRetry(eventbus.MaxRetries(p.retries), eventbus.BaseDelay(pick(rng, 10*time.Millisecond, 100*time.Millisecond, time.Second))),
	}
	if isolated {
		options = append(options, eventbus.WithIsolation())
	}
	unconfirmed := 0
	if room := rand.New(rand.NewPCG(s.seed, 80+uint64(s.n))); chance(room, 30) {
		unconfirmed = 1 + room.IntN(5)
		options = append(options, eventbus.WithMaxUnconfirmed(unconfirmed, 1<<20))
	}
	circuit := chance(rng, 40)
	if circuit {
		options = append(options, eventbus.WithCircuit(eventbus.MinEvents(4), eventbus.OpenFor(300*time.Millisecond)))
	} else {
		options = append(options, eventbus.WithCircuit(eventbus.NoCircuit()))
	}
	switch {
	case quiet:
	case chance(rng, 40):
		p.crashAt = 1 + rng.IntN(80)
	case chance(rng, 15):
		p.crashAt = 1 + rng.IntN(8) // during recovery
	case chance(rng, 15):
		p.claimCrashAt = 1 + rng.IntN(5)
	}
	p.what = fmt.Sprintf("%d: queue %d, concurrency %d, unconfirmed %d, isolated %v, circuit %v, retries %d, slow %d%%, bursts %v, crash at batch %d, claim %d",
		s.n, queue, concurrency, unconfirmed, isolated, circuit, p.retries, p.slow, p.bursts, p.crashAt, p.claimCrashAt)
	s.what += p.what + "\n"
	p.store = s.data.Open()
	disk := &storeDisk{Store: p.store, process: p}
	var err error
	p.bus, err = eventbus.New(append(append(options, s.wall.options()...), eventbus.WithStore(disk))...)
	if err != nil {
		panic(err)
	}
	disk.fails.Store(true)
	s.opens(p)
	s.tally.processes.Add(1)
	return p
}

// process runs a process from its start to its end.
func (s *storeSim) process(quiet bool) {
	p := s.newProcess(quiet)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.ctx = ctx
	var other *storeProcess // beside
	if chance(s.rng, 35) {
		other = s.newBeside(p)
	}
	p.hearsLetters()
	var late []*storeSub
	for _, sub := range s.subs {
		sub.sub, sub.present, sub.detached = nil, false, false
		switch {
		case chance(s.rng, 75):
			p.subscribe(sub)
		case quiet || chance(s.rng, 60):
			late = append(late, sub)
		}
	}
	early := chance(s.rng, 30)
	if early {
		p.startPublishers()
		time.Sleep(ms(s.rng, 50))
	}
	starting, started := context.WithCancel(ctx)
	go func() { // a bus whose process has crashed waits for its store
		select {
		case <-p.crashing:
			started()
		case <-starting.Done():
		}
	}()
	err := p.bus.Start(starting)
	for ; errors.Is(err, storetest.ErrInjected) || errors.Is(err, eventbus.ErrStoreFailed) && !p.isCrashing(); err = p.bus.Start(starting) {
		s.logs("not started: %v", err)
		time.Sleep(time.Millisecond)
	}
	started()
	s.logs("started: %v", err)
	if !early {
		p.startPublishers()
	}
	p.publishers.Go(func() { p.operate(late) })
	if s.subs[0].pace != nil && !quiet {
		p.publishers.Go(func() { p.operateDestinations(rand.New(rand.NewPCG(s.seed, 500+uint64(s.n)))) })
	}
	if s.wall.clock != nil && !quiet {
		p.publishers.Go(func() { p.setClock(rand.New(rand.NewPCG(s.seed, 100+uint64(s.n)))) })
	}
	lasts := time.Hour
	end := pick(s.rng, "crash", "shutdown", "cut")
	if !quiet && end != "shutdown" {
		lasts = pick(s.rng, 100*time.Millisecond, time.Second, time.Second, 3*time.Second, time.Minute)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if other != nil {
			other.work()
		}
	}()
	published := make(chan struct{})
	go func() { p.publishers.Wait(); close(published) }()
	select {
	case <-p.crashing:
	case <-time.After(ms(s.rng, int(lasts.Milliseconds()))):
	}
	if quiet {
		<-ended // beside
	}
	switch {
	case p.isCrashing():
		time.Sleep(time.Nanosecond) // it comes at once
		s.data.Kill(p.store)        // it may have been to come in a Claim whose context has ended meanwhile
		p.crash(cancel)
	case quiet:
		<-published
		p.rest()
		p.shutdown(time.Hour)
	case end == "crash":
		s.data.Kill(p.store)
		p.crash(cancel)
	case end == "shutdown":
		p.shutdown(time.Hour)
	default:
		p.shutdown(ms(s.rng, 1000))
	}
	cancel()
	<-published
	<-ended
	time.Sleep(pick(s.rng, 2*storeTimeout, 3*storeTimeout)) // handlers return
	p.check()
}

// crash ends the goroutines of a process that has crashed.
func (p *storeProcess) crash(cancel func()) {
	p.dead.Store(true)
	p.sim.logs("crashed")
	p.sim.tally.crashes.Add(1)
	cancel()
	_ = p.bus.Shutdown(p.ctx)
}

// shutdown shuts the bus down. It may crash meanwhile.
func (p *storeProcess) shutdown(limit time.Duration) {
	s := p.sim
	s.logs("shutdown within %v", limit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	err := p.bus.Shutdown(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("shut down: %v", err)
	if p.isCrashing() {
		p.dead.Store(true)
		s.tally.crashes.Add(1)
		return
	}
	var left *eventbus.ShutdownError
	if errors.As(err, &left) && len(left.Unfinished) > 0 {
		s.failf(nil, "Shutdown names %d unfinished events, which the store has", len(left.Unfinished))
	}
	took := time.Since(began)
	if took > min(limit, storeTimeout)+2*time.Second { // calls that run, and commits
		s.failf(nil, "Shutdown took %v", took)
	}
	if safe := took < limit && took < storeTimeout; safe && err != nil { // no call has been abandoned meanwhile
		s.failf(nil, "Shutdown: %v", err)
	}
	p.closed = true
}

// check compares the data, and the ledger of a process that has shut down, with the batches.
func (p *storeProcess) check() {
	s := p.sim
	dump := s.data.Dump()
	var refs []driver.Ref
	for _, r := range dump.Records {
		refs = append(refs, r.Ref)
		if !p.dead.Load() && r.Lease != 0 {
			s.logs("record %d is leased", r.Ref)
		}
	}
	var letters []eventbus.LetterID
	for _, l := range dump.Letters {
		letters = append(letters, eventbus.LetterID(l.ID))
	}
	s.checkData(refs, letters)
	if p.dead.Load() {
		return
	}
	l := p.bus.Metrics().Ledger
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case dump.Lease != 0:
		s.failf(nil, "the store still has the lease")
	case !l.Closed || !l.Balanced():
		s.failf(nil, "the ledger does not balance: %+v", l)
	case p.failures > 0:
	case l.Accepted-l.Unrouted != p.accepted || l.DeadLettered != p.buried || l.Replays != p.replays:
		s.failf(nil, "%d accepted, %d buried, %d replayed, the ledger has %+v", p.accepted, p.buried, p.replays, l)
	case l.Stored > int64(len(refs))+p.ended:
		s.failf(nil, "%d records are left, the ledger has %+v", len(refs), l)
	}
}

// rest waits until the last process has nothing to do.
func (p *storeProcess) rest() {
	s := p.sim
	p.restDetached()
	s.restExpiries()
	for _, sub := range s.subs {
		if !sub.present || sub.detached {
			p.subscribe(sub)
		}
		_, _ = p.resume(sub), sub.sub.Reset()
	}
	s.restClock()
	p.restPaced()
	time.Sleep(time.Hour)
	for i, eventType := range []string{"a.x", "a.y", "b.x"} { // the keys are free
		for _, key := range []string{"", "k0", "k1"} {
			_ = p.publishAndWait(s.newEvent(eventType, key, time.Duration(i)*time.Second, false), time.Hour)
		}
	}
	for _, sub := range s.subs {
		_, _ = p.resume(sub), sub.sub.Reset()
	}
	time.Sleep(time.Hour)
	s.checkQuiet()
}
