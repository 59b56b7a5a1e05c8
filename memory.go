package eventbus

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/lane"
)

// letterQueue is the bounded dead letter queue in memory: letters by id, oldest
// first, with holes where letters have left.
type letterQueue struct {
	capacity int
	newID    func() LetterID
	evicted  func(*DeadLetter) // called without the lock

	mu      sync.RWMutex // guards the following
	places  []letterPlace
	letters int // places that are not holes
	counted int // of these, those that the capacity counts
	fallen  int64
}

type letterPlace struct {
	id     LetterID
	letter *DeadLetter // nil in a hole
}

// add gives a letter its id and a place. What has to make room for it goes to
// evicted. Letters of a shutdown are not counted, so as not to push each other
// out.
func (q *letterQueue) add(l *DeadLetter) {
	q.mu.Lock()
	l.ID = q.newID()
	q.places = append(q.places, letterPlace{l.ID, l})
	q.letters++
	var out *DeadLetter
	if l.Reason != ReasonShutdown {
		q.counted++
		if q.counted > q.capacity {
			i := slices.IndexFunc(q.places, func(p letterPlace) bool {
				return p.letter != nil && p.letter.Reason != ReasonShutdown
			})
			out = q.removeLocked(i)
			q.fallen++
		}
	}
	q.compactLocked()
	q.mu.Unlock()
	if out != nil {
		q.evicted(out)
	}
}

func (q *letterQueue) removeLocked(i int) *DeadLetter {
	l := q.places[i].letter
	q.places[i].letter = nil
	q.letters--
	if l.Reason != ReasonShutdown {
		q.counted--
	}
	return l
}

// compactLocked gives back the holes: those at the old end, where letters fall
// out, at once, and the others when they are as many as the letters.
func (q *letterQueue) compactLocked() {
	for len(q.places) > 0 && q.places[0].letter == nil {
		q.places = q.places[1:]
	}
	if len(q.places) > 2*q.letters+64 {
		q.places = slices.DeleteFunc(slices.Clone(q.places), func(p letterPlace) bool { return p.letter == nil })
	}
}

// findLocked returns the place of an id, or where it would be.
func (q *letterQueue) findLocked(id LetterID) (int, bool) {
	i, ok := slices.BinarySearchFunc(q.places, id, func(p letterPlace, id LetterID) int {
		return bytes.Compare(p.id[:], id[:])
	})
	return i, ok && q.places[i].letter != nil
}

func (q *letterQueue) list(f *letterFilter) LetterPage {
	q.mu.RLock()
	defer q.mu.RUnlock()
	end := len(q.places)
	if !f.Before.IsZero() {
		end, _ = q.findLocked(f.Before)
	}
	var page LetterPage
	for _, p := range slices.Backward(q.places[:end]) {
		if p.letter == nil || !f.matches(p.letter) {
			continue
		}
		if len(page.Letters) == f.limit {
			page.Next = page.Letters[f.limit-1].ID
			break
		}
		page.Letters = append(page.Letters, p.letter.clone())
	}
	if f.any() {
		page.Total = q.letters
		return page
	}
	for _, p := range slices.Backward(q.places) {
		if p.letter == nil || !f.matches(p.letter) {
			continue
		}
		if page.Total == maxTotal && !f.ExactTotal {
			page.TotalIsMore = true
			break
		}
		page.Total++
	}
	return page
}

func (q *letterQueue) match(f *letterFilter) []LetterID {
	q.mu.RLock()
	defer q.mu.RUnlock()
	var ids []LetterID
	for _, p := range q.places {
		if p.letter != nil && f.matches(p.letter) {
			ids = append(ids, p.id)
		}
	}
	return ids
}

func (q *letterQueue) get(id LetterID) (DeadLetter, bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	i, ok := q.findLocked(id)
	if !ok {
		return DeadLetter{}, false
	}
	return q.places[i].letter.clone(), true
}

func (q *letterQueue) consume(id LetterID, open func(*DeadLetter) error) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i, ok := q.findLocked(id)
	if !ok {
		return false, nil
	}
	if err := open(q.places[i].letter); err != nil {
		return true, err
	}
	q.removeLocked(i)
	q.compactLocked()
	return true, nil
}

func (q *letterQueue) purge(f *letterFilter) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for i, p := range q.places {
		if p.letter != nil && f.matches(p.letter) {
			q.removeLocked(i)
			n++
		}
	}
	q.compactLocked()
	return n
}

func (q *letterQueue) count() (int, int64) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.letters, q.fallen
}

// memory is the store of a bus that has no other: what is accepted lives in the
// bus's own queues, so there is nothing to write and nothing to find.
type memory struct {
	lanes  *lane.Pool[opening, *worker]
	keys   *keyGate
	given  givenIDs
	copies *atomic.Int64 // beyond the first of an event
	*letterQueue
}

func (m *memory) append(ctx context.Context, o opening) error {
	return m.lanes.Push(ctx, &o, o.extras != nil && o.extras.inside, m.gate(&o))
}

func (m *memory) appendAll(ctx context.Context, openings []opening, inside bool) (fresh []opening, err error) {
	choose := func(put func(opening, lane.Gate[opening])) (events int, err error) {
		if fresh, err = m.given.take(openings); err != nil {
			return 0, err
		}
		for _, o := range fresh {
			if o.queues() {
				events++
				m.split(o, put)
			}
		}
		return events, nil
	}
	places := 0
	for i := range openings {
		if o := &openings[i]; o.queues() {
			places += max(len(o.to.each), 1)
		}
	}
	if places == 0 {
		_, err = choose(nil)
		return fresh, err
	}
	return fresh, m.lanes.PushAll(ctx, places, inside, choose)
}

// split puts the dispatches that an event is made into.
func (m *memory) split(o opening, put func(opening, lane.Gate[opening])) {
	if o.to.each == nil {
		put(o, m.gate(&o))
		return
	}
	m.copies.Add(int64(len(o.to.each)) - 1)
	for _, to := range o.to.each {
		o.to = to
		put(o, m.gate(&o))
	}
}

// gate is where a dispatch waits for its key, nil if it has none.
func (m *memory) gate(o *opening) lane.Gate[opening] {
	if o.key() == "" {
		return nil
	}
	return o.to.gate(m.keys)
}

func (m *memory) open(o *opening) {
	m.split(*o, func(o opening, gate lane.Gate[opening]) { m.lanes.Return(&o, gate) })
}

func (m *memory) claim(context.Context) ([]*dispatch, error) { return nil, nil }

func (m *memory) settle(d *dispatch, s settlement) *DeadLetter {
	if s.letter != nil {
		m.add(s.letter)
	}
	return s.letter
}

func (m *memory) leave(o *opening) {
	if next, ok := o.to.gate(m.keys).keys.Leave(o.key()); ok {
		m.lanes.Unpark(&next)
	}
}
