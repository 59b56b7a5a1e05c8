package lane

import (
	"runtime"
	"time"
)

const (
	// tick is how long work waits behind busy workers before there are more of
	// them. It is the runtime's time: this is scheduling, and nothing that a
	// user can observe on a clock.
	tick = 500 * time.Microsecond
	// growth is what the number of workers is multiplied by at a tick.
	growth = 4
	// fast is the number of items that a worker takes in a tick when its items
	// are too short for more workers than processors.
	fast = 32
	// short is what an item takes that is too short to be shared out to other processors.
	short = 3 * time.Microsecond
	// period is how long it takes to tell: longer than a worker waits for its turn
	// behind another goroutine.
	period = 16 * time.Millisecond
	// turns is how often who would add workers lets others run first, unless it takes
	// two slices: one turn may pass over those that wait at another processor.
	turns = 8
	// many is how many workers a processor there may be for sure while processors are
	// short.
	many = 16
	// slice is how long the runtime lets who does not let others run.
	slice = 10 * time.Millisecond
)

func (p *Pool[T, W]) startTickingLocked() {
	p.ticking = true
	p.seen = p.begunLocked()
	p.beginPeriodLocked()
	if p.ticker == nil {
		p.ticker = time.AfterFunc(tick, p.tick)
		return
	}
	p.ticker.Reset(tick)
}

// begunLocked is how many items have been taken and not kept by Enter, or come from
// there.
func (p *Pool[T, W]) begunLocked() int64 { return p.takenLocked() - p.parked.Load() - p.unparked }

// tick sees to it that there are more workers while work waits behind those that
// there are. Short items are left to these.
func (p *Pool[T, W]) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doneTickingLocked() {
		return
	}
	begun := p.begunLocked()
	progress := begun - p.seen
	p.seen = begun
	atWork := p.workers - p.resting
	slow := atWork == 0 || progress < int64(atWork)*fast
	if slow {
		p.keepWorkersLocked()
	}
	switch {
	case !slow:
		p.reviewLocked()
	case p.areShort:
		// One such tick among short items is more likely to be the garbage collector's.
		p.areShort, slow = false, false
	case atWork < p.cfg.Concurrency:
		p.growing = true
		go p.grow() // which ticks on
		return
	}
	p.sifting.Store(slow)
	p.ticker.Reset(tick)
}

// reviewLocked gives items that are not short more workers, up to one for each
// processor, and takes away from short ones those that were added while a processor was
// busy elsewhere: workers that share out short items spend their time on what the others
// write. While one of them has been stuck for all the period, they stay: the next one
// may be soon.
func (p *Pool[T, W]) reviewLocked() {
	took := time.Since(p.began)
	if took < period {
		return
	}
	atWork, processors := max(p.workers-p.resting, 1), runtime.GOMAXPROCS(0)
	done := p.begunLocked() - p.reviewed
	p.areShort = done*int64(short) > int64(min(atWork, processors))*int64(took)
	switch {
	case p.areShort && atWork > 1 && p.active.Load() >= int64(atWork):
		p.surplus = atWork - 1
		p.countCrowdLocked()
	case !p.areShort && atWork < processors:
		p.addWorkersLocked(min(atWork, processors-atWork))
	}
	p.beginPeriodLocked()
}

func (p *Pool[T, W]) beginPeriodLocked() {
	p.began, p.reviewed = time.Now(), p.begunLocked()
	p.period.Add(1)
	p.active.Store(0) // after that, or a worker might count twice
}

// looks notes that a worker looks for items.
func (p *Pool[T, W]) looks(s *seen[T]) {
	if now := p.period.Load(); now != s.period {
		s.period = now
		p.active.Add(1)
	}
}

// doneTickingLocked ends the ticking if nothing waits.
func (p *Pool[T, W]) doneTickingLocked() bool {
	if p.lenLocked() > 0 {
		return false
	}
	p.ticking, p.areShort = false, false
	p.sifting.Store(false)
	p.keepWorkersLocked()
	return true
}

// grow adds workers if items are slow.
//
// Little is done as well when processors are short, and then more goroutines would
// only make every item slower, until all of them overran their deadlines. So it lets
// whoever can run have a turn, the workers among them. If these have done much
// meanwhile, they are enough. If that took long, there is one more of them at most, and
// none while items do get done and either each worker has done one a slice, or they are
// many and may be themselves what takes so long.
func (p *Pool[T, W]) grow() {
	asked := time.Now()
	for turn := 0; turn < turns && time.Since(asked) < 2*slice; turn++ {
		runtime.Gosched()
	}
	took := time.Since(asked)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.growing = false
	defer p.closeGoneLocked()
	if p.doneTickingLocked() {
		return
	}
	atWork, progress := max(p.workers-p.resting, 1), p.begunLocked()-p.seen
	processors := runtime.GOMAXPROCS(0)
	enough := atWork > many*processors && took > slice*time.Duration(atWork)/time.Duration(2*processors)
	switch {
	case progress >= int64(atWork)*fast:
	case took <= tick/2:
		p.sifting.Store(true)
		p.addWorkersLocked(atWork * (growth - 1))
	case progress == 0, progress < int64(atWork)*int64(1+took/slice) && !enough:
		p.sifting.Store(true)
		p.addWorkersLocked(1)
	}
	p.ticker.Reset(tick)
}
