package eventbus

import "time"

// change is a recorded transition of one dispatch, or of several that open together.
type change struct {
	kind    transition
	d       *dispatch
	batch   []*dispatch   // with toOpen, if there are several; d is the first
	events  []Event       // with toOpen, for Observer.Accepted
	outcome Outcome       // with toSettle
	letter  *DeadLetter   // new (toSettle), or replayed (toReplay)
	due     int64         // with toWait
	delay   time.Duration // with toWait
}

// transition is a kind of change.
type transition uint8

const (
	toOpen   transition = iota // accepted dispatches become runnable
	toReplay                   // a letter becomes a dispatch
	toWait                     // for the next attempt
	toPark                     // at its next target's door
	toSettle                   // the dispatch ends
)

// all returns the dispatches of the change.
func (c *change) all() []*dispatch {
	if c.batch != nil || c.d == nil {
		return c.batch
	}
	return []*dispatch{c.d}
}

// record makes a change durable and then applies it, exactly once. In memory, it applies the change
// immediately. A store may apply it later, on another goroutine, or refuse it. Until then the
// record owns the dispatch, and nothing else may touch it.
//
// Every transition that must survive a crash goes through record. Only toOpen and toReplay can be
// refused; their callers use recordNow.
func (b *Bus) record(c *change) {
	if b.recorder != nil {
		b.recordLater(*c, func(error) {})
		return
	}
	_ = b.apply(c, nil) // only a replay has an error
}

// recordNow records a change and waits until it is applied or refused.
func (b *Bus) recordNow(c *change) error {
	if b.recorder != nil {
		applied := make(chan error, 1)
		b.recordLater(*c, func(err error) { applied <- err })
		return <-applied
	}
	return b.apply(c, nil)
}

func (b *Bus) recordLater(c change, applied func(error)) {
	if c.kind != toOpen && c.kind != toReplay { // not in the ledger yet
		c.d.state = stateRecording
		b.ledger.recording.Add(1)
	}
	b.recorder(func(err error) {
		err = b.apply(&c, err)
		if c.kind != toOpen && c.kind != toReplay {
			b.ledger.recording.Add(-1)
		}
		applied(err)
		b.checkDrained()
	})
}

// apply applies a change that was recorded, or that was refused with err.
func (b *Bus) apply(c *change, err error) error {
	switch c.kind {
	case toOpen:
		for _, d := range c.all() {
			b.applyOpen(d, err)
		}
	case toReplay:
		if err == nil {
			err = b.applyReplay(c.d, c.letter)
		}
	case toWait:
		b.applyWait(c.d, c.delay, c.due)
	case toPark:
		b.applyPark(c.d)
	case toSettle:
		b.applySettle(c.d, c.outcome, c.letter)
	}
	return err
}
