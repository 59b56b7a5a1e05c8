package eventbus

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/uuid7"
)

var search = flag.Bool("search", false, "search as long as CI does")

// Each of its parts makes another group, and where one ends and the next begins.
func TestL2_FingerprintsTellGroupsApart(t *testing.T) {
	seen := make(map[string]LetterGroup)
	for _, l := range []DeadLetter{
		{Subscription: "a", Reason: ReasonShutdown},
		{Subscription: "a", Reason: ReasonExpired},
		{Subscription: "b", Reason: ReasonExpired},
		{Subscription: "a", Failures: []Failure{{Class: "c", Error: "expired"}}},
		{Subscription: "a", Failures: []Failure{{Class: "", Error: "expired"}}},
		{Subscription: "a", Failures: []Failure{{Class: "c", Error: "d"}}},
		{Subscription: "a c", Failures: []Failure{{Class: "", Error: "d"}}},
		{Subscription: "a", Failures: []Failure{{Class: "c d", Error: ""}}},
		{Subscription: "a", Failures: []Failure{{Class: "c", Error: strings.Repeat("x", maxGroupMessage)}}},
		{Subscription: "a", Failures: []Failure{{Class: "c", Error: strings.Repeat("x", maxGroupMessage) + "y"}}},
	} {
		g := l.Group()
		require.True(t, isFingerprint(g.Fingerprint))
		require.LessOrEqual(t, len(g.Message), maxGroupMessage+len("…"))
		require.NotContains(t, seen, g.Fingerprint, "%+v and %+v", g, seen[g.Fingerprint])
		seen[g.Fingerprint] = g
	}
}

// letterModel is the queue as a slice.
type letterModel []*keptLetter

func (m letterModel) check(t *testing.T, q *letterQueue) {
	t.Helper()
	require.True(t, slices.IsSortedFunc(m, func(x, y *keptLetter) int { return slices.Compare(x.ID[:], y.ID[:]) }))
	n, _ := q.count()
	require.Equal(t, len(m), n)
	for _, subscription := range []string{"", "s0", "s1", "s2"} {
		for _, reason := range append([]Reason{""}, reasons...) {
			for _, fingerprint := range []string{"", "f0", "f1"} {
				m.checkQuery(t, q, LetterQuery{Subscription: subscription, Reason: reason, Fingerprint: fingerprint})
			}
		}
	}
	for event := range byte(5) {
		for _, key := range []string{"", "k0", "k1", "k2"} {
			m.checkQuery(t, q, LetterQuery{Event: EventID{event}, Key: key})
			m.checkQuery(t, q, LetterQuery{Event: EventID{event}, Key: key, Fingerprint: "f1", Subscription: "s1"})
		}
	}
}

func (m letterModel) checkQuery(t *testing.T, q *letterQueue, query LetterQuery) {
	t.Helper()
	f := &letterFilter{LetterQuery: query, limit: maxPage}
	var want []LetterID
	for _, l := range m {
		if f.matches(&l.DeadLetter) {
			want = append(want, l.ID)
		}
	}
	require.Equal(t, append([]LetterID{}, want...), idsOf(q.matching(f)))
	require.Len(t, q.matching(f), len(want))
	page, err := q.page(t.Context(), f)
	require.NoError(t, err)
	require.Equal(t, len(want), page.Total)
	slices.Reverse(page.letters)
	for i, l := range page.letters {
		require.Equal(t, want[i], l.ID)
	}
}

// After any sequence of additions, imports and removals, each query selects from the letters
// that the queue has.
func TestL2_QueriesAgreeWithAModel(t *testing.T) {
	seeds := uint64(4)
	if *search {
		seeds = 40
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0))
		ids := uuid7.NewSource()
		now := time.Unix(1_000_000, 0)
		var evicted []LetterID
		q := &letterQueue{
			capacity: 150,
			letters:  newLetterIndex(),
			newID:    func() LetterID { return ids.Next(now.UnixMilli()) },
			evicted:  func(l *DeadLetter) { evicted = append(evicted, l.ID) },
		}
		var m letterModel
		letter := func() *keptLetter {
			return &keptLetter{DeadLetter: DeadLetter{
				Subscription: fmt.Sprintf("s%d", r.IntN(3)),
				Reason:       reasons[r.IntN(len(reasons))],
				Fingerprint:  fmt.Sprintf("f%d", r.IntN(2)),
				Event:        Event{ID: EventID{byte(r.IntN(4))}, Key: []string{"", "k0", "k1"}[r.IntN(3)]},
			}}
		}
		settle := func() {
			slices.SortFunc(m, func(x, y *keptLetter) int { return slices.Compare(x.ID[:], y.ID[:]) })
			counted := 0
			for _, l := range slices.Backward(m) {
				if l.Reason != ReasonShutdown {
					counted++
				}
			}
			var fell []LetterID
			m = slices.DeleteFunc(m, func(l *keptLetter) bool {
				if l.Reason == ReasonShutdown || counted <= q.capacity {
					return false
				}
				counted--
				fell = append(fell, l.ID)
				return true
			})
			require.Equal(t, fell, evicted, "the oldest, oldest first")
			evicted = nil
		}
		for range 400 {
			switch r.IntN(8) {
			case 0, 1, 2, 3:
				l := letter()
				q.add(l)
				m = append(m, l)
			case 4: // older, newer and known ones
				var in []importedLetter
				want := 0
				for range r.IntN(40) {
					l := letter()
					l.ID = uuid7.NewSource().Next(now.Add(time.Duration(r.IntN(200)-100) * time.Second).UnixMilli())
					in = append(in, importedLetter{DeadLetter: &l.DeadLetter})
					m = append(m, l)
					want++
				}
				if len(in) > 1 {
					in = append(in, in[0])
				}
				if len(m) > len(in) {
					in = append(in, importedLetter{DeadLetter: &DeadLetter{ID: m[0].ID, Subscription: "another"}})
				}
				inserted, fell, err := q.insert(t.Context(), nil, in, 0)
				require.NoError(t, err)
				require.Equal(t, want, inserted)
				require.Len(t, evicted, fell)
			case 5: // some of them, and one that is not there
				remove := []LetterID{{1}}
				for range min(len(m), r.IntN(60)) {
					remove = append(remove, m[r.IntN(len(m))].ID)
				}
				n := len(m)
				m = slices.DeleteFunc(m, func(l *keptLetter) bool { return slices.Contains(remove, l.ID) })
				require.Equal(t, n-len(m), q.take(remove...))
			case 6:
				if len(m) > 0 {
					i := r.IntN(len(m))
					require.Equal(t, 1, q.take(m[i].ID))
					m = slices.Delete(m, i, i+1)
				}
			case 7:
				now = now.Add(time.Second)
			}
			settle()
			if r.IntN(10) == 0 {
				m.check(t, q)
			}
		}
		q.take(idsOf(q.matching(&letterFilter{}))...)
		m = nil
		m.check(t, q)
	}
}

func idsOf(letters []*keptLetter) []LetterID {
	ids := make([]LetterID, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
	}
	return ids
}
