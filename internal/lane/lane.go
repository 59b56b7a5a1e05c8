// Package lane hands work from those who bring it to goroutines that run it.
//
// Work lies in a chain of chunks. Bringing takes a short mutex; taking is one
// compare-and-swap on the chunk's cursor, so a goroutine that is stuck holds up
// its own item and no other. The number of goroutines follows the work: while
// some waits and those at work are slow, it multiplies, up to a limit; who finds
// nothing to do, or only what others do as fast alone, rests or leaves.
package lane

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrFull is returned by Push when there is no room and it may not wait.
	ErrFull = errors.New("lane: full")
	// ErrClosed is returned by Push after Refuse, or Close.
	ErrClosed = errors.New("lane: closed")
)

const (
	// chunkItems is how many items a chunk has; a power of 2.
	chunkItems = 256
	// deep is how many items make a queue deep, for items that are short: they
	// leave the processors' caches before they are taken.
	deep = 2048
	// hold is for how long somebody who fills a chunk of a deep queue lets others run at
	// most, and the turn that is under way then; holdTurns is how often, since time may be
	// virtual. He looks every lookTurns whether that is still worth while.
	hold                 = 2 * time.Millisecond
	holdTurns, lookTurns = 1024, 32
	// lockTries is how often somebody who brings an item tries to get the lock in each
	// of lockTurns, before he waits for it.
	lockTries, lockTurns = 20, 4
	// streak is how many items in a row make a worker that finds no more let others run
	// for streakTurns before it looks again.
	streak, streakTurns = 32, 4
	// spins is how often a worker looks again before it rests: waking one that
	// rests costs more than an item does.
	spins = 16
)

// Config is what a pool is made of. W is what its user keeps for each worker, a
// goroutine that runs items.
type Config[T, W any] struct {
	// Open makes what belongs to a worker, Close ends it.
	Open  func() W
	Close func(W)
	// Place is where a worker's items are put, one after the other.
	Place func(W) *T
	// Run runs the item in the worker's place. It may end its goroutine with
	// runtime.Goexit. With next it takes another item ahead, into a place of its own,
	// if one that is not gated is at hand: as soon as the one before has ended, and been
	// Counted, that is what it runs. PutBack is for what it then cannot run at once.
	Run func(w W, next func(place *T) bool)
	// Enter is asked for an item that was put gated when its turn has come, in the
	// order of the queue and one at a time. If it returns false it has kept the
	// item, which still takes its place in the queue, for Unpark or Next. It is
	// called with a lock of the pool held, so it must not block, nor call the pool.
	Enter func(*T) bool
	// Ending says what there is to do when the worker's run has ended. It is called
	// once a run; after Close if the run has ended its goroutine.
	Ending func(W) Ending
	// Next puts the item into the worker's place that a run LetsThrough. It is only
	// called after such a run.
	Next func(W)
	// Counted is how many ends of runs the user of the pool has counted itself.
	Counted func() int64
	// After is called when what the worker ran no longer counts as running, if
	// that Tells somebody.
	After func(W)
	// Idle is called when a worker is about to rest, to let go of what it has run.
	Idle func(W)
	// Rest is called when nothing runs and nothing waits.
	Rest func()
	// Concurrency is the most workers that run at a time.
	Concurrency int
	// Capacity is the most items that wait at a time.
	Capacity int
	// Wait says that Push waits for room.
	Wait bool
}

// Ending is how a run has ended, asked for at once: a call for each of these would
// cost as much as taking an item.
type Ending uint8

const (
	// Lost is a run that Replace was called for. Its goroutine is no longer the
	// pool's, and ends when the run does.
	Lost Ending = 1 << iota
	// Counted is a run whose end is among those of Config.Counted.
	Counted
	// LetsThrough is a run after which an item that Enter has kept comes next. It
	// saves the way through the queue.
	LetsThrough
	// Tells is a run after which After is called.
	Tells
)

// waiter is a caller of Push. It is told nil when there is room for it.
type waiter struct {
	told chan error
	need int
}

// Pool is a queue and the workers that empty it.
type Pool[T, W any] struct {
	cfg      Config[T, W]
	thirsty  atomic.Bool  // somebody waits for room
	crowded  atomic.Bool  // there are more workers than there are to be
	period   atomic.Int64 // number of the one that is under way, see reviewLocked
	active   atomic.Int64 // workers that have looked for items in it
	sifting  atomic.Bool  // items are slow: what is behind those that Enter keeps is worth looking for
	put      atomic.Int64 // items that are in the chunks before the tail
	yielded  atomic.Int64 // items that were taken when somebody was held up last
	parked   atomic.Int64 // items that Enter has kept
	_        cacheLine
	head     atomic.Pointer[chunk[T]] // where workers take
	finished atomic.Int64             // taken items that have left again, those of Counted aside
	gate     sync.Mutex               // held while a gated item is taken
	_        cacheLine

	mu       sync.Mutex // guards the following
	rested   sync.Cond
	tail     *chunk[T]
	spares   sync.Pool // of empty chunks
	admitted int64     // items of Push
	begins   bool      // a part of what is being put begins a chunk
	waits    bool      // who puts it may be held up
	over     int64     // those of them that exceeded the capacity
	room     int       // items that surely fit; recounted when used up
	promised int       // items that waiters have been told there is room for
	waiters  []*waiter
	workers  int // alive, neither replaced nor blocked
	resting  int // of these, without those that have been woken
	woken    int // wake-ups that nobody has taken yet
	blocked  int // workers that wait for other items to be run
	started  bool
	refusing bool
	sealed   bool
	closed   bool
	gone     chan struct{} // closed when the last worker has left
	ticking  bool          // the ticker is set, or growing
	growing  bool          // a goroutine is about to add workers, and keeps the pool from being gone
	ticker   *time.Timer
	unparked int64 // items that have come back to the queue, from Enter or PutBack

	seen     int64     // begun at the last tick
	began    time.Time // the period
	reviewed int64     // begun at its beginning
	areShort bool      // items were too short to be shared out in the one before, and no tick slow since
	surplus  int       // workers that are to leave, fewer doing as well
}

// New makes a pool. It runs nothing before Start.
func New[T, W any](cfg Config[T, W]) *Pool[T, W] {
	p := &Pool[T, W]{cfg: cfg, tail: &chunk[T]{}, gone: make(chan struct{})}
	p.tail.begin(0)
	p.head.Store(p.tail)
	p.rested.L = &p.mu
	return p
}

// Push lets an item in, as Reserve and Commit do.
func (p *Pool[T, W]) Push(ctx context.Context, item *T, over, gated bool) error {
	place, err := p.Reserve(ctx, 1, over)
	if err != nil {
		return err
	}
	*place = *item
	p.Commit(gated)
	return nil
}

// Reserve returns a place at the end of the queue, with the pool's lock held until
// Commit: to put an item there spares it a copy. What is put there and, after Add, in
// n-1 more places, counts as one that is admitted.
//
// When the queue is full, it waits for room for all n, for ctx or for Refuse, if it may
// wait and the pool has been started; else it is ErrFull. With over it does not
// wait, and exceeds the capacity, also after Refuse, until Seal. More than the capacity
// needs the queue empty, and exceeds it.
func (p *Pool[T, W]) Reserve(ctx context.Context, n int, over bool) (*T, error) {
	p.lock()
	fit := min(n, p.cfg.Capacity)
	if err := p.admitLocked(ctx, fit, over); err != nil {
		p.mu.Unlock()
		return nil, err
	}
	p.room -= n - fit
	p.admitted++
	place, begins := p.placeLocked()
	p.begins, p.waits = begins, !over
	return place, nil
}

// lock is for those who bring new items. They hold it for less time than it takes to go to
// sleep and be woken, which is what Mutex.Lock does where other goroutines are ready to
// run. So who finds it taken tries again, and lets others run who may hold it.
func (p *Pool[T, W]) lock() {
	for range lockTurns {
		for range lockTries {
			if p.mu.TryLock() {
				return
			}
		}
		runtime.Gosched()
	}
	p.mu.Lock()
}

// Add lets in what was put into the place, and returns another one.
func (p *Pool[T, W]) Add(gated bool) *T {
	p.showLocked(gated)
	place, begins := p.placeLocked()
	p.begins = p.begins || begins
	return place
}

// Commit lets in what was put into the last place. A gated item is shown to Enter
// before it is run.
func (p *Pool[T, W]) Commit(gated bool) {
	p.showLocked(gated)
	hurries := p.begins && p.waits
	p.mu.Unlock()
	if hurries {
		p.yield()
	}
}

// PushAll lets several items in, or none: it waits for room for n, as Push does
// for one, and then has choose put them, with the pool's lock held. choose returns
// how many count as admitted; if it returns an error, it has put none. More than the
// capacity needs the queue empty, and exceeds it.
func (p *Pool[T, W]) PushAll(ctx context.Context, n int, over bool, choose func(put func(item T, gated bool)) (int, error)) error {
	n = min(n, p.cfg.Capacity)
	p.mu.Lock()
	if err := p.admitLocked(ctx, n, over); err != nil {
		p.mu.Unlock()
		return err
	}
	p.room += n
	boundary := false
	admitted, err := choose(func(item T, gated bool) {
		p.room--
		boundary = p.putLocked(&item, gated) || boundary
	})
	p.admitted += int64(admitted)
	p.tellWaitersLocked() // there may be room left
	p.mu.Unlock()
	if boundary && !over {
		p.yield()
	}
	return err
}

// admitLocked waits for n places, unlocked meanwhile.
func (p *Pool[T, W]) admitLocked(ctx context.Context, n int, over bool) error {
	if p.sealed || p.refusing && !over {
		return ErrClosed
	}
	switch {
	case (over || len(p.waiters) == 0) && p.hasRoomLocked(n):
		return nil
	case over:
		p.over += int64(n)
		p.room -= n
		return nil
	case !p.cfg.Wait || !p.started:
		return ErrFull
	}
	return p.waitLocked(ctx, n)
}

// yield holds up a caller that is faster than the workers, while these make
// progress: both do better on a queue that is not deep.
func (p *Pool[T, W]) yield() {
	var began time.Time
	taken := p.yielded.Load()
	for turn := range holdTurns {
		// Looking at what the workers write slows them down, so not at every turn; and an item
		// takes more than a few, if it is not very short.
		if turn%lookTurns == 0 {
			now := p.head.Load().cursor.Load()
			if now == taken || p.put.Load()+p.parked.Load()-now < deep {
				break
			}
			taken = now
		}
		if turn == 0 {
			began = time.Now()
		}
		runtime.Gosched()
		if time.Since(began) > hold { // a turn may be long where processors are short
			break
		}
	}
	p.yielded.Store(taken)
}

// Return brings back an item that had been let in before. It never waits and is
// never refused.
func (p *Pool[T, W]) Return(item *T, gated bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room--
	p.putLocked(item, gated)
}

// ReturnAll brings back n items, none of them gated, as Return does one. It calls item
// with the pool's lock held.
func (p *Pool[T, W]) ReturnAll(n int, item func(i int) T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room -= n
	for i := range n {
		item := item(i)
		p.putLocked(&item, false)
	}
}

// Unpark brings an item that Enter has kept.
func (p *Pool[T, W]) Unpark(item *T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parked.Add(-1)
	p.unparked++
	p.putLocked(item, false)
}

// PutBack brings back an item that was taken ahead.
func (p *Pool[T, W]) PutBack(item *T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished.Add(1)
	p.unparked++
	p.room--
	p.putLocked(item, false)
}

// waitLocked waits for room for n, unlocked meanwhile.
func (p *Pool[T, W]) waitLocked(ctx context.Context, n int) error {
	w := &waiter{told: make(chan error, 1), need: n}
	p.waiters = append(p.waiters, w)
	p.thirsty.Store(true)
	// A worker that took an item before it could see thirsty has not looked for
	// waiters, and may have been the last to take one for a long time.
	p.tellWaitersLocked()
	p.mu.Unlock()
	var err error
	select {
	case err = <-w.told:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.mu.Lock()
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
		// It may have been the first, with need of more than those behind it.
		p.tellWaitersLocked()
		return err // the context's
	}
	if err != nil && len(w.told) > 0 { // told just before the context ended
		err = <-w.told
	}
	if err == nil {
		p.promised -= n
		if p.refusing { // after it was told
			err = ErrClosed
		}
	}
	return err
}

// tellWaitersLocked tells those that have waited longest, if there is room.
func (p *Pool[T, W]) tellWaitersLocked() {
	n := 0
	for n < len(p.waiters) && p.hasRoomLocked(p.waiters[n].need) {
		p.promised += p.waiters[n].need
		p.waiters[n].told <- nil
		n++
	}
	p.waiters = slices.Delete(p.waiters, 0, n)
	p.thirsty.Store(len(p.waiters) > 0)
}

// hasRoomLocked uses up room for n items, if there is. Counting takes a look at
// what the workers write, so it is put off until the room that was counted last
// is used up.
func (p *Pool[T, W]) hasRoomLocked(n int) bool {
	if p.room < n {
		p.room = p.cfg.Capacity - p.lenLocked() - int(p.parked.Load()) - p.promised
	}
	if p.room < n {
		return false
	}
	p.room -= n
	return true
}

// putLocked shows an item to the workers. It reports whether the item begins a
// chunk.
func (p *Pool[T, W]) putLocked(item *T, gated bool) (begins bool) {
	place, begins := p.placeLocked()
	*place = *item
	p.showLocked(gated)
	return begins
}

// placeLocked is where the next item is put, and whether it begins a chunk.
func (p *Pool[T, W]) placeLocked() (place *T, begins bool) {
	c := p.tail
	position := c.filled.Load()
	if begins = position == c.end.Load(); begins {
		c = p.chunkAfterLocked(c)
		p.put.Store(position)
	}
	return &c.items[position%chunkItems], begins
}

// showLocked shows what has been put into the place to the workers, and sees to it
// that there are some.
func (p *Pool[T, W]) showLocked(gated bool) {
	c := p.tail
	position := c.filled.Load()
	if gated {
		c.setGated(position)
	}
	c.filled.Store(position + 1)
	switch {
	case !p.started || p.closed:
	case p.resting == p.workers:
		p.addWorkersLocked(1)
	case !p.ticking:
		p.startTickingLocked()
	}
}

// addWorkersLocked wakes or makes up to n workers.
func (p *Pool[T, W]) addWorkersLocked(n int) {
	for ; n > 0 && p.resting > 0; n-- {
		p.resting--
		p.woken++
		p.rested.Signal()
	}
	for ; n > 0 && p.workers < p.cfg.Concurrency; n-- {
		p.workers++
		go func() { p.work(p.cfg.Open(), false) }()
	}
}

// Share has another worker look for something to do, for one that goes on with what
// Enter has kept and does not look itself. It reports false if there may be none.
func (p *Pool[T, W]) Share() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lenLocked() > 0 {
		if p.resting == 0 && p.workers >= p.cfg.Concurrency {
			return false
		}
		p.addWorkersLocked(1)
	}
	return true
}

// work is a worker's life. It may begin when a run has just ended.
func (p *Pool[T, W]) work(w W, ran bool) {
	var end Ending
	if ran {
		end = p.cfg.Ending(w)
	}
	// Set while an item runs: if it is set when the deferred function runs, the
	// item has ended its goroutine, and the pool goes on with another one.
	exited := false
	defer func() {
		p.cfg.Close(w)
		if !exited {
			return
		}
		if end := p.cfg.Ending(w); end&Lost == 0 {
			p.finish(w, end)
			go p.work(p.cfg.Open(), false)
		}
	}()
	place := p.cfg.Place(w)
	var seen seen[T]
	next := func(place *T) bool { return !p.crowded.Load() && p.takeAhead(place, &seen) }
	for {
		switch {
		case !ran:
			if !p.take(w, place, &seen) {
				return
			}
		case end&LetsThrough != 0:
			p.cfg.Next(w)
			p.handedOver(w, end)
		default:
			p.finish(w, end)
			ran = false
			continue
		}
		exited = true
		p.cfg.Run(w, next)
		exited = false
		if end = p.cfg.Ending(w); end&Lost != 0 {
			return
		}
		ran = true
	}
}

// handedOver counts an item that was parked as the worker's running one, in place
// of the one before.
func (p *Pool[T, W]) handedOver(w W, end Ending) {
	p.parked.Add(-1)
	if end&Counted != 0 {
		p.finished.Add(-1) // it is running again
	}
	if p.thirsty.Load() {
		p.mu.Lock()
		p.tellWaitersLocked()
		p.mu.Unlock()
	}
	if end&Tells != 0 {
		p.cfg.After(w)
	}
}

func (p *Pool[T, W]) finish(w W, end Ending) {
	if end&Counted == 0 {
		p.finished.Add(1)
	}
	if end&Tells != 0 {
		p.cfg.After(w)
	}
}

// take puts the next item into place, resting until there is one; false tells the
// worker to leave.
func (p *Pool[T, W]) take(w W, place *T, seen *seen[T]) bool {
	for {
		for range spins {
			if p.crowded.Load() && p.leaveCrowd() {
				p.report(seen)
				return false
			}
			if p.tryTake(place, seen) {
				return true
			}
			if !seen.behind {
				for range seen.turns() {
					runtime.Gosched()
				}
			} else if p.outpaced() {
				break
			}
		}
		p.cfg.Idle(w)
		p.mu.Lock()
		if p.lenLocked() > 0 {
			if !seen.behind || !p.outpacedLocked() {
				p.mu.Unlock()
				continue
			}
			if !p.ticking { // which sees to it that somebody comes back
				p.startTickingLocked()
			}
		}
		if p.closed || p.resting >= 4*runtime.GOMAXPROCS(0) {
			p.leaveLocked()
			p.restLocked()
			p.mu.Unlock()
			return false
		}
		p.resting++
		p.restLocked()
		for p.woken == 0 && !p.closed {
			p.rested.Wait()
		}
		if p.woken > 0 {
			p.woken--
		} else {
			p.resting--
		}
		p.mu.Unlock()
	}
}

// outpaced reports whether a worker whose items Enter keeps does better to rest: the
// others get on, and will come to these items themselves without their being kept.
func (p *Pool[T, W]) outpaced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outpacedLocked()
}

func (p *Pool[T, W]) outpacedLocked() bool {
	return !p.sifting.Load() && p.workers-p.resting > 1
}

// restLocked tells the user of the pool if nothing runs, unlocked meanwhile.
func (p *Pool[T, W]) restLocked() {
	if p.resting == p.workers && p.blocked == 0 {
		p.mu.Unlock()
		p.cfg.Rest()
		p.mu.Lock()
	}
}

// Crowded reports whether there are more workers than there are to be: the next one
// to look for an item leaves.
func (p *Pool[T, W]) Crowded() bool { return p.crowded.Load() }

// leaveCrowd reports whether the worker that asks is one too many. It is when
// another one has come back from Block, or fewer do as well.
func (p *Pool[T, W]) leaveCrowd() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers <= p.cfg.Concurrency {
		if p.surplus == 0 || p.workers-p.resting <= 1 {
			p.keepWorkersLocked()
			return false
		}
		p.surplus--
	}
	p.leaveLocked()
	// It may have been taken for one at work when the last item came.
	if p.resting == p.workers && p.lenLocked() > 0 && !p.closed {
		p.addWorkersLocked(1)
	}
	p.restLocked()
	return true
}

func (p *Pool[T, W]) leaveLocked() {
	p.workers--
	p.countCrowdLocked()
	p.closeGoneLocked()
}

// keepWorkersLocked has all workers stay that there may be: what was seen of their
// items holds no more.
func (p *Pool[T, W]) keepWorkersLocked() {
	p.surplus = 0
	p.countCrowdLocked()
}

func (p *Pool[T, W]) countCrowdLocked() {
	p.crowded.Store(p.workers > p.cfg.Concurrency || p.surplus > 0)
}

// closeGoneLocked says that the pool is closed and nothing of it is left.
func (p *Pool[T, W]) closeGoneLocked() {
	if p.closed && p.workers == 0 && p.blocked == 0 && !p.growing {
		close(p.gone)
	}
}

// Finish counts an item of TryTake as no longer running.
func (p *Pool[T, W]) Finish() { p.finished.Add(1) }

// Replace gives up the worker of a run that is stuck: a fresh one takes over,
// and first does what is left to do for the item. The run's item is finished
// when that returns.
func (p *Pool[T, W]) Replace(left func(W)) {
	go func() {
		w := p.cfg.Open()
		left(w)
		p.work(w, true)
	}()
}

// Block says that a running item waits for others to be run: it no longer counts
// against the concurrency until Unblock.
func (p *Pool[T, W]) Block() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers--
	p.blocked++
	if p.resting == p.workers && p.lenLocked() > 0 {
		p.addWorkersLocked(1)
	}
}

// Unblock ends Block.
func (p *Pool[T, W]) Unblock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked--
	p.workers++
	p.countCrowdLocked()
}

// Start begins to run what has been let in.
func (p *Pool[T, W]) Start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = true
	if p.lenLocked() > 0 {
		p.addWorkersLocked(1)
		if !p.ticking {
			p.startTickingLocked()
		}
	}
}

// Refuse makes Push, and whoever waits in it, return ErrClosed.
func (p *Pool[T, W]) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = true
	for _, w := range p.waiters {
		w.told <- ErrClosed
	}
	p.waiters = nil
	p.thirsty.Store(false)
}

// Seal makes Push return ErrClosed, whoever calls it.
func (p *Pool[T, W]) Seal() {
	p.Refuse()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed = true
}

// Close lets the workers leave when nothing is left to do. The channel is closed
// when the last one has left, replaced ones aside.
func (p *Pool[T, W]) Close() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.refusing, p.sealed, p.closed = true, true, true
		p.closeGoneLocked()
		p.rested.Broadcast()
	}
	return p.gone
}

// Stats is what a pool has at an instant.
type Stats struct {
	Admitted, Over           int64
	Queued, Running, Workers int
}

// Stats counts.
func (p *Pool[T, W]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	finished := p.finished.Load() + p.cfg.Counted()
	taken := p.takenLocked()
	return Stats{
		Admitted: p.admitted,
		Over:     p.over,
		Queued:   int(p.putsLocked() - taken + p.parked.Load()),
		Running:  int(max(taken-finished, 0)),
		Workers:  p.workers,
	}
}
