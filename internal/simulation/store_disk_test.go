package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// fault chooses the fault of a batch.
func (s *storeSim) fault(_ int, b *driver.Batch) (f storetest.Fault) {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.storeModel.process
	refusable := len(b.Update)+len(b.Delete)+len(b.Accept) == 0 && len(b.Remember)*(len(b.New)+len(b.Leave))+len(b.Take) > 0
	if other := s.foreign[b]; other != nil {
		switch {
		case refusable && chance(s.faults, 4):
			f.Kind = storetest.Refuse
		case chance(s.faults, 3):
			f.Kind = pick(s.faults, storetest.FailBefore, storetest.FailAfter)
		case chance(s.faults, 3):
			f.Kind = pick(s.faults, storetest.CrashBefore, storetest.CrashAfter)
			other.dead.Store(true)
			close(other.crashing)
		case chance(s.faults, p.slow):
			f.Delay = ms(s.faults, 30)
		}
		if f.Kind != storetest.NoFault {
			s.logf("beside: fault %d:%s", f.Kind, s.describe(b))
		}
		return f
	}
	p.batches++
	switch {
	case p.dead.Load():
	case p.batches == p.crashAt:
		f.Kind = pick(s.faults, storetest.CrashBefore, storetest.CrashAfter)
		p.dead.Store(true)
		close(p.crashing)
		s.logf("crash at the next batch, after=%v", f.Kind == storetest.CrashAfter)
	case refusable && chance(s.faults, 4):
		f.Kind = storetest.Refuse
		s.logf("refuse:%s", s.describe(b))
	case p.fails() && chance(s.faults, 2):
		f.Kind = pick(s.faults, storetest.FailBefore, storetest.FailAfter)
		s.hasFailed(p)
		s.logf("fail at the next batch, after=%v", f.Kind == storetest.FailAfter)
	case chance(s.faults, p.slow):
		f.Delay = ms(s.faults, 30)
	}
	return f
}

// fails reports whether the store of the process may fail without a crash.
func (p *storeProcess) fails() bool { return simStoreFails && !p.quiet && !p.dead.Load() }

// hasFailed notes a failure after which the bus restarts.
func (s *storeSim) hasFailed(p *storeProcess) {
	p.failures++
	s.tally.restarts.Add(1)
}

// claimFault chooses the fault of a Claim.
func (s *storeSim) claimFault(_ int, _ driver.ClaimQuery) (f storetest.Fault) {
	lease := int64(0)
	if simStoreFails {
		lease = s.data.Dump().Lease // before the locks: applied runs under the Model's
	}
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.storeModel.process
	p.claims++
	if p.lease == 0 {
		p.lease = lease
	}
	if lease != 0 && lease != p.lease { // what the lease that has ended had not recorded is lost
		p.lease = lease
		s.forget()
		s.logf("reopened")
	}
	switch {
	case p.dead.Load():
	case p.claims == p.claimCrashAt:
		f.Kind = pick(s.faults, storetest.CrashBefore, storetest.CrashAfter)
		close(p.crashing)
		s.logf("crash at a claim, after=%v", f.Kind == storetest.CrashAfter)
	case p.fails() && chance(s.faults, 4): // afterwards, the records are leased, and the bus has none of them
		f.Kind = pick(s.faults, storetest.FailBefore, storetest.FailAfter)
		s.hasFailed(p)
		s.tally.claimFaults.Add(1)
		s.logf("fail at a claim, after=%v", f.Kind == storetest.FailAfter)
	case chance(s.faults, p.slow/4):
		f.Delay = ms(s.faults, 30)
	}
	return f
}

// storeDisk is the store of a process. Its reads fail and take their time.
type storeDisk struct {
	driver.Store
	process *storeProcess
	fails   atomic.Bool // once the bus is made
}

// read chooses the fault of a read.
func (d *storeDisk) read(what string) error {
	p := d.process
	s := p.sim
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	s.mu.Lock()
	switch {
	case !d.fails.Load() || !p.fails():
	case chance(s.faults, 4):
		s.logf("beside=%v: %s fails", p.beside, what)
		s.tally.readFaults.Add(1)
		p.failures++
		s.mu.Unlock()
		return fmt.Errorf("%s: %w", what, storetest.ErrInjected)
	}
	s.mu.Unlock()
	return nil
}

func (d *storeDisk) Directives(ctx context.Context) ([]driver.Directive, error) {
	if err := d.read("Directives"); err != nil {
		return nil, err
	}
	return d.Store.Directives(ctx)
}

func (d *storeDisk) Lookup(ctx context.Context, id driver.ID) ([]*driver.Record, error) {
	if err := d.read("Lookup"); err != nil {
		return nil, err
	}
	return d.Store.Lookup(ctx, id)
}

func (d *storeDisk) Stats(ctx context.Context) (driver.Stats, error) {
	if err := d.read("Stats"); err != nil {
		return driver.Stats{}, err
	}
	return d.Store.Stats(ctx)
}

func (d *storeDisk) Reopen(ctx context.Context) error {
	if err := d.read("Reopen"); err != nil {
		return err
	}
	return d.Store.Reopen(ctx)
}

// Submit notes the batches of the process beside.
func (d *storeDisk) Submit(b *driver.Batch, done func(error)) {
	if s := d.process.sim; d.process.beside {
		s.mu.Lock()
		s.foreign[b] = d.process
		s.mu.Unlock()
	}
	d.Store.Submit(b, done)
}

// newBeside makes a bus beside a process. It is not started: it makes the subscriptions to which it
// publishes and replays, under the names that the process has now.
func (s *storeSim) newBeside(main *storeProcess) *storeProcess {
	p := &storeProcess{
		sim: s, beside: true, crashing: make(chan struct{}), rng: rand.New(rand.NewPCG(s.seed, 60+uint64(s.n))), ctx: context.Background(), quiet: main.quiet,
	}
	disk := &storeDisk{Store: s.data.Open(), process: p}
	options := append(s.wall.options(), eventbus.WithLogger(zap.NewNop()), eventbus.WithStore(disk))
	if chance(p.rng, 25) {
		options = append(options, eventbus.WithIsolation())
	}
	bus, err := eventbus.New(options...)
	if err != nil {
		panic(err)
	}
	p.bus = bus
	disk.fails.Store(true)
	s.tally.besides.Add(1)
	p.targets = map[int]*eventbus.Subscription{}
	for _, sub := range s.subs {
		name := sub.name(sub.names)
		made, err := bus.Subscribe(sub.pattern, func(context.Context, eventbus.Event) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.failf(nil, "a bus beside the one with the lease calls %s", name)
			return nil
		}, eventbus.Named(name))
		if err != nil {
			panic(err)
		}
		p.targets[sub.index] = made
	}
	return p
}

// work is what a process does beside the one with the lease, which may crash meanwhile.
func (p *storeProcess) work() {
	s, rng := p.sim, p.rng
	for range 4 + rng.IntN(12) {
		time.Sleep(ms(rng, 200))
		if p.dead.Load() || s.failed() {
			break
		}
		key := pick(rng, "", "beside", "beside") // keys of its own: see storeModel.overtakes
		eventType := pick(rng, "a.x", "a.x", "a.y", "b.x", "none")
		switch sub := pick(rng, s.subs...); rng.IntN(14) {
		case 0, 1, 2:
			p.letters(rng)
		case 12, 13:
			p.act(rng)
		case 3:
			s.logs("beside: pause s%d: %v", sub.index, p.orderBeside(sub, (*eventbus.Subscription).Pause))
		case 4, 5:
			s.logs("beside: resume s%d: %v", sub.index, p.orderBeside(sub, (*eventbus.Subscription).Resume))
		case 6:
			s.logs("beside: trip s%d: %v", sub.index, p.orderBeside(sub, (*eventbus.Subscription).Trip))
		case 7:
			p.publishBatch(p.ctx, []*storeEvent{s.newEvent(eventType, key, 0, false), s.newEvent(eventType, "", 0, false)})
		case 8:
			p.publishAgain(rng, s.newEvent(eventType, key, ms(rng, 2000), false))
		default:
			p.publishAgain(rng, s.newEvent(eventType, key, 0, chance(rng, 20)))
		}
	}
	err := p.bus.Shutdown(p.ctx)
	ledger := p.bus.Metrics().Ledger
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("beside: shut down: %v", err)
	if !p.dead.Load() && (err != nil && !errors.Is(err, eventbus.ErrStoreFailed) || !ledger.Balanced()) {
		s.failf(nil, "the bus beside shuts down with %v, its ledger is %+v", err, ledger)
	}
}

// publishAgain publishes an event, and repeats the publication while its outcome is unknown.
func (p *storeProcess) publishAgain(rng *rand.Rand, e *storeEvent) {
	p.repeat(rng, e, p.publish(p.ctx, e))
}

// repeat repeats a publication whose outcome is unknown, with the id of the error.
func (p *storeProcess) repeat(rng *rand.Rand, e *storeEvent, err error) {
	var unknown *eventbus.IndeterminateError
	if !errors.As(err, &unknown) || chance(rng, 20) {
		return
	}
	s := p.sim
	s.mu.Lock()
	if e.once == "" { // otherwise the key tells them apart, and each call has its own id
		e.id, e.learned = unknown.ID, true
	}
	s.mu.Unlock()
	for n := 0; err != nil && n < 40; n++ {
		time.Sleep(ms(rng, 300))
		if p.dead.Load() || p.ctx.Err() != nil || s.failed() {
			return
		}
		s.tally.repeats.Add(1)
		err = p.publish(p.ctx, e)
	}
	if err == nil { // the store remembers the id
		s.mu.Lock()
		e.given = true
		s.mu.Unlock()
	}
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// chance reports true in n of 100 cases.
func chance(rng *rand.Rand, n int) bool { return rng.IntN(100) < n }

// ms returns up to n milliseconds.
func ms(rng *rand.Rand, n int) time.Duration {
	return time.Duration(rng.IntN(n*1000)) * time.Microsecond
}
