package eventbus

import (
	"bytes"
	"slices"
	"sync"
)

// letterQueue is the bounded dead letter queue in memory.
type letterQueue struct {
	capacity int
	newID    func() LetterID
	evicted  func(*DeadLetter) // called without holding mu

	mu      sync.RWMutex // guards the following, and the shelves
	all     shelf
	shelves map[shelfKey]*shelf // indexes
	counted int                 // letters that count towards the capacity
	fallen  int64               // letters that were evicted
}

// shelfKey has the values that all letters of a shelf share. An empty field is not shared.
type shelfKey struct {
	subscription string
	reason       Reason
	fingerprint  string
}

// shelf is an index: letters sorted by id, oldest first, with holes for removed letters.
type shelf struct {
	key     shelfKey
	places  []*letterPlace // the first one is not a hole
	letters int            // places that are not holes
	left    int            // letters removed since places was allocated
}

// letterPlace is the entry of a letter, shared by its shelves.
type letterPlace struct {
	id     LetterID
	letter *DeadLetter // nil in a hole
	on     [5]*shelf
}

func comparePlaces(p, other *letterPlace) int { return bytes.Compare(p.id[:], other.id[:]) }

// find returns the index of an id, or the index at which to insert it.
func (s *shelf) find(id LetterID) (int, bool) {
	return slices.BinarySearchFunc(s.places, id, func(p *letterPlace, id LetterID) int {
		return bytes.Compare(p.id[:], id[:])
	})
}

// put inserts a place. It is usually the newest one, unless letters were imported from a
// process whose clock is ahead.
func (s *shelf) put(p *letterPlace) {
	i := len(s.places)
	if i > 0 && comparePlaces(p, s.places[i-1]) < 0 {
		i, _ = s.find(p.id)
	}
	s.places = slices.Insert(s.places, i, p)
	s.letters++
}

// lose frees the memory of removed letters. It drops holes at the old end, where letters are
// evicted, at once. It drops all holes when there are more of them than letters.
func (s *shelf) lose() {
	s.letters--
	s.left++
	for len(s.places) > 0 && s.places[0].letter == nil {
		s.places[0] = nil
		s.places = s.places[1:]
	}
	if s.left <= s.letters+64 && s.letters > 0 {
		return
	}
	places := make([]*letterPlace, 0, s.letters)
	for _, p := range s.places {
		if p.letter != nil {
			places = append(places, p)
		}
	}
	s.places, s.left = places, 0
}

// placeLocked returns a place for a letter that has an id, with its shelves.
func (q *letterQueue) placeLocked(l *DeadLetter) *letterPlace {
	p := &letterPlace{id: l.ID, letter: l}
	p.on[0] = &q.all
	for i, key := range []shelfKey{
		{subscription: l.Subscription},
		{reason: l.Reason},
		{subscription: l.Subscription, reason: l.Reason},
		{fingerprint: l.Fingerprint},
	} {
		s := q.shelves[key]
		if s == nil {
			s = &shelf{key: key}
			if q.shelves == nil {
				q.shelves = make(map[shelfKey]*shelf)
			}
			q.shelves[key] = s
		}
		p.on[i+1] = s
	}
	if l.Reason != ReasonShutdown {
		q.counted++
	}
	return p
}

// removeLocked removes and returns the letter of a place that is not a hole.
func (q *letterQueue) removeLocked(p *letterPlace) *DeadLetter {
	l := p.letter
	p.letter = nil
	for _, s := range p.on {
		s.lose()
		if s.letters == 0 && s != &q.all {
			delete(q.shelves, s.key)
		}
	}
	if l.Reason != ReasonShutdown {
		q.counted--
	}
	return l
}

// makeRoomLocked evicts the oldest letters until the others are within the capacity. Letters
// with the reason shutdown are neither counted nor evicted: a shutdown may make more of them
// than the capacity.
func (q *letterQueue) makeRoomLocked() []*DeadLetter {
	var out []*DeadLetter
	for q.counted > q.capacity {
		var oldest *letterPlace
		for _, r := range reasons {
			s := q.shelves[shelfKey{reason: r}]
			if r == ReasonShutdown || s == nil {
				continue
			}
			if oldest == nil || comparePlaces(s.places[0], oldest) < 0 {
				oldest = s.places[0]
			}
		}
		out = append(out, q.removeLocked(oldest))
		q.fallen++
	}
	return out
}

// add assigns an id to a letter and inserts it. It calls evicted for the letters that had to
// make room.
func (q *letterQueue) add(l *DeadLetter) {
	q.mu.Lock()
	l.ID = q.newID()
	p := q.placeLocked(l)
	for _, s := range p.on {
		s.put(p)
	}
	out := q.makeRoomLocked()
	q.mu.Unlock()
	for _, l := range out {
		q.evicted(l)
	}
}

// insert adds letters that have ids. It sorts each shelf once at the end: put would move all
// newer places for each letter.
func (q *letterQueue) insert(letters []*DeadLetter) (inserted, evicted int) {
	q.mu.Lock()
	seen := make(map[LetterID]bool, len(letters))
	var places []*letterPlace
	for _, l := range letters {
		if _, there := q.findLocked(l.ID); !there && !seen[l.ID] {
			seen[l.ID] = true
			places = append(places, q.placeLocked(l))
		}
	}
	unsorted := make(map[*shelf]bool)
	for _, p := range places {
		for _, s := range p.on {
			s.places = append(s.places, p)
			s.letters++
			unsorted[s] = true
		}
	}
	for s := range unsorted {
		// Drop holes: one may have the id of a letter that is imported again.
		s.places = slices.DeleteFunc(s.places, func(p *letterPlace) bool { return p.letter == nil })
		s.left = 0
		slices.SortFunc(s.places, comparePlaces)
	}
	out := q.makeRoomLocked()
	q.mu.Unlock()
	for _, l := range out {
		q.evicted(l)
	}
	return len(places), len(out)
}

// findLocked returns the place of a letter, if the queue has it.
func (q *letterQueue) findLocked(id LetterID) (*letterPlace, bool) {
	i, ok := q.all.find(id)
	if !ok || q.all.places[i].letter == nil {
		return nil, false
	}
	return q.all.places[i], true
}

// shelfLocked returns the smallest shelf that has all letters that match.
func (q *letterQueue) shelfLocked(f *letterFilter) *shelf {
	key := shelfKey{subscription: f.Subscription, reason: f.Reason}
	if f.Fingerprint != "" {
		key = shelfKey{fingerprint: f.Fingerprint}
	}
	if key == (shelfKey{}) {
		return &q.all
	}
	if s := q.shelves[key]; s != nil {
		return s
	}
	return &shelf{}
}

func (q *letterQueue) list(f *letterFilter) LetterPage {
	q.mu.RLock()
	defer q.mu.RUnlock()
	s := q.shelfLocked(f)
	end := len(s.places)
	if !f.Before.IsZero() {
		end, _ = s.find(f.Before)
	}
	var page LetterPage
	from, known := len(s.places), f.byShelf()
	if known {
		from, page.Total = end, s.letters
	}
	for i, p := range slices.Backward(s.places[:from]) {
		if p.letter == nil || !f.matches(p.letter) {
			continue
		}
		switch {
		case i >= end || !page.Next.IsZero():
		case len(page.Letters) == f.limit:
			page.Next = page.Letters[f.limit-1].ID
		default:
			page.Letters = append(page.Letters, p.letter.clone())
		}
		switch {
		case known:
		case page.Total == maxTotal && !f.ExactTotal:
			page.TotalIsMore = true
		default:
			page.Total++
		}
		if !page.Next.IsZero() && (known || page.TotalIsMore) {
			break
		}
	}
	return page
}

func (q *letterQueue) snapshot(f *letterFilter) []*DeadLetter {
	q.mu.RLock()
	defer q.mu.RUnlock()
	s := q.shelfLocked(f)
	var letters []*DeadLetter
	if f.byShelf() {
		letters = make([]*DeadLetter, 0, s.letters)
	}
	for _, p := range s.places {
		if p.letter != nil && f.matches(p.letter) {
			letters = append(letters, p.letter)
		}
	}
	return letters
}

func (q *letterQueue) match(f *letterFilter) []LetterID {
	q.mu.RLock()
	defer q.mu.RUnlock()
	s := q.shelfLocked(f)
	var ids []LetterID
	if f.byShelf() {
		ids = make([]LetterID, 0, s.letters)
	}
	for _, p := range s.places {
		if p.letter != nil && f.matches(p.letter) {
			ids = append(ids, p.id)
		}
	}
	return ids
}

func (q *letterQueue) get(id LetterID) (DeadLetter, bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	p, ok := q.findLocked(id)
	if !ok {
		return DeadLetter{}, false
	}
	return p.letter.clone(), true
}

func (q *letterQueue) remove(ids []LetterID) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, id := range ids {
		if p, ok := q.findLocked(id); ok {
			q.removeLocked(p)
			n++
		}
	}
	return n
}

func (q *letterQueue) count() (int, int64) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.all.letters, q.fallen
}
