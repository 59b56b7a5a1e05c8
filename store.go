package eventbus

import (
	"context"
)

// store is where dispatches live until they have settled. It is asked three
// things: to append what is published, what there is to claim, and to settle
// what has become of a dispatch; and it keeps the dead letters.
//
// What is not in memory alone is plugged in here: nothing else records what has
// been accepted, how far it has come and how it ended.
type store interface {
	// reserve waits for room for what is published for the targets, unless it is
	// published by a handler, and returns where it is to be put: nobody else can
	// publish until commit. The error is lane.ErrFull, lane.ErrClosed or the context's.
	reserve(ctx context.Context, to *targets, inside bool) (*opening, error)
	// commit accepts what has been put into the place of reserve, and queues it. The
	// place is not the caller's any more.
	commit(o *opening)
	// appendAll accepts all openings, or none, and returns those whose ids were
	// not known. What is due later, and what has no subscription, is the caller's;
	// the others are queued.
	appendAll(ctx context.Context, openings []opening, inside bool) (fresh []opening, err error)
	// cancelled is told of an event for later that was taken back: its id may be
	// given again.
	cancelled(id EventID)
	// open queues what has been accepted before: what has come due, a letter that
	// is replayed. It does not block.
	open(o *opening)
	// enter reports whether a dispatch with a key may go on, and has its place from
	// then on. If not, it is kept for the leave of the one before. It must not block.
	enter(o *opening) bool
	// leave gives up the place of a dispatch's key, and returns the next one of the
	// key, if there is one.
	leave(o *opening) (next opening, ok bool)
	// claim returns what is due and held by nobody: what an earlier process
	// left.
	claim(ctx context.Context) ([]*dispatch, error)
	// settle records what an attempt has led to. It returns the dead letter with
	// its id for a settlement that has one.
	settle(d *dispatch, s settlement) *DeadLetter

	letterStore
}

// settlement is what an attempt has led to.
type settlement struct {
	outcome Outcome     // Waiting, or how the dispatch ended
	due     int64       // with Waiting: when the next attempt is due
	letter  *DeadLetter // with DeadLettered
}

// reason is why a dispatch has died, if it has.
func (s *settlement) reason() Reason {
	if s.letter == nil {
		return ""
	}
	return s.letter.Reason
}

// letterStore keeps dead letters.
type letterStore interface {
	// list is a page of the letters that match, newest first.
	list(f *letterFilter) LetterPage
	// match returns the ids of the letters that match, oldest first.
	match(f *letterFilter) []LetterID
	// get returns a letter.
	get(id LetterID) (DeadLetter, bool)
	// consume removes a letter if open, which makes a dispatch of it and must
	// not block, returns nil. False: there is no such letter.
	consume(id LetterID, open func(*DeadLetter) error) (bool, error)
	// remove removes those of the letters that are there, and returns how many.
	remove(ids []LetterID) int
	// snapshot returns the letters that match, oldest first. They are shared, and
	// must not be changed.
	snapshot(f *letterFilter) []*DeadLetter
	// insert adds letters that have their ids, in the place that these give them,
	// and returns how many, and how many of the letters fell out to make room.
	// Those whose ids are there already stay as they are.
	insert(letters []*DeadLetter) (inserted, evicted int)
	// count is how many letters there are, and how many have fallen out.
	count() (letters int, evicted int64)
}
