package pool

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// tick is how long an item waits behind busy workers before the pool adds workers. It is
	// real time, because it concerns scheduling.
	tick = 500 * time.Microsecond
	// factor multiplies the number of workers at a tick, if as many items wait.
	factor = 4
	// fast is the number of items per worker and tick above which the items are too short for
	// more workers than processors.
	fast = 32
	// short is the duration of items that another worker would only slow down: workers of
	// short items spend their time on cache misses for data that other workers write.
	short = 3 * time.Microsecond
	// turns is how often grow yields before it adds workers, unless that takes two slices. One
	// yield may skip goroutines that wait at another processor.
	turns = 8
	// slice is how long the runtime lets a goroutine run before it preempts it.
	slice = 10 * time.Millisecond
	// many is the number of workers per processor above which the workers themselves may
	// overload the processors.
	many = 16
)

// growth decides on the number of workers. The pool's mutex guards it, except for the
// fields that took writes.
type growth struct {
	ticker  *time.Timer
	ticking bool         // the ticker is set or grow runs
	growing bool         // grow runs, which delays the close of gone
	began   time.Time    // of the period
	seen    int64        // items begun at its start
	period  atomic.Int64 // number of the tick
	takers  atomic.Int64 // workers that took an item in the period
}

// took records that a worker took an item. last is the period of its last item.
func (g *growth) took(last *int64) {
	if now := g.period.Load(); *last != now {
		*last = now
		g.takers.Add(1)
	}
}

func (g *growth) nextPeriod(begun int64) (progress int64, takers int) {
	progress, takers = begun-g.seen, int(g.takers.Swap(0))
	g.began, g.seen = time.Now(), begun
	g.period.Add(1)
	return progress, takers
}

// watchGrowthLocked ticks while items wait behind busy workers.
func (p *Pool[T, W]) watchGrowthLocked() {
	g := &p.growth
	if g.ticking {
		return
	}
	g.ticking = true
	g.nextPeriod(p.begun.Load())
	if g.ticker == nil {
		g.ticker = time.AfterFunc(tick, p.tick)
		return
	}
	g.ticker.Reset(tick)
}

// tick adds workers while slow items wait, and removes workers that short items do not
// need.
func (p *Pool[T, W]) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := &p.growth
	if p.lenLocked() == 0 {
		g.ticking, p.surplus = false, 0
		p.countFreeLocked()
		return
	}
	active := p.workers - p.resting
	elapsed := time.Since(g.began)
	progress, takers := g.nextPeriod(p.begun.Load())
	switch {
	case active > 0 && progress >= int64(active)*fast:
		// Only workers that took an item can leave: the others may be blocked for long.
		useful := runtime.GOMAXPROCS(0)
		if time.Duration(progress)*short > elapsed*time.Duration(min(takers, useful)) {
			useful = 1
		}
		p.surplus = max(takers-useful, 0)
		p.countFreeLocked()
	case active < p.cfg.Concurrency:
		p.surplus, g.growing = 0, true
		p.countFreeLocked()
		go p.grow() // it resets the ticker
		return
	case progress == 0: // all workers are stuck: the next change of the queue sets the ticker again
		g.ticking, p.surplus = false, 0
		p.countFreeLocked()
		return
	}
	g.ticker.Reset(tick)
}

// grow adds workers if items are slow.
//
// Little progress can also mean that the processors are overloaded. More goroutines would
// then make every item slower, until all of them exceed their deadlines. So grow yields
// first. If the workers make much progress meanwhile, they are enough. If yielding takes
// long, grow adds at most one worker, and none while items complete.
//
// Never are there more new workers than items. With a subscription at its Concurrency, whose calls
// wait, each event would otherwise start hundreds of workers, which find nothing and end.
func (p *Pool[T, W]) grow() {
	asked := time.Now()
	for turn := 0; turn < turns && time.Since(asked) < 2*slice; turn++ {
		runtime.Gosched()
	}
	took := time.Since(asked)
	p.mu.Lock()
	defer p.mu.Unlock()
	g := &p.growth
	g.growing = false
	defer p.closeGoneLocked()
	if p.lenLocked() == 0 {
		g.ticking = false
		return
	}
	active, progress := max(p.workers-p.resting, 1), p.begun.Load()-g.seen
	processors := runtime.GOMAXPROCS(0)
	enough := active > many*processors && took > slice*time.Duration(active)/time.Duration(2*processors)
	switch {
	case progress >= int64(active)*fast:
	case took <= tick/2:
		p.addWorkersLocked(min(active*(factor-1), p.lenLocked()))
	case progress == 0, progress < int64(active)*int64(1+took/slice) && !enough:
		p.addWorkersLocked(1)
	}
	g.ticker.Reset(tick)
}
