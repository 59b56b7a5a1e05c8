package line_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/line"
)

type holder struct {
	name int
	key  string
	seat line.Seat

	failed bool
	visits bool
	lent   bool // its seat is in another line
}

func (h *holder) Seat() *line.Seat { return &h.seat }
func (h *holder) Key() string      { return h.key }
func (h *holder) Fresh() bool      { return !h.failed }
func (h *holder) Visits() bool     { return h.visits }

func TestHoldersOfAKeyGoOneAfterTheOther(t *testing.T) {
	var l line.Line[*holder]
	a, b, c := &holder{name: 1, key: "k"}, &holder{name: 2, key: "k"}, &holder{name: 3}
	next := func() *holder {
		x, _ := l.Front()
		l.Go(x)
		return x
	}
	for _, x := range []*holder{a, b, c} {
		l.Sit(x)
		l.Park(x, 1, 5, 0)
	}
	require.Equal(t, [line.Reasons]int{1: 3}, l.Parked())
	require.Same(t, a, next())
	front, _ := l.Front()
	require.Same(t, c, front, "2 is behind 1")
	l.Move(a, line.Inside)
	first, ok := l.First("k")
	require.True(t, ok)
	require.Same(t, a, first)
	l.Leave(a)
	require.Same(t, b, next(), "its number is lower than 3's")
	l.Park(b, 0, 6, 0)
	front, _ = l.Front()
	require.Same(t, b, front, "it is back in its old place")
	require.Equal(t, []*holder{b, c}, l.Empty())
	require.Equal(t, [line.Reasons]int{}, l.Parked())
	l.Leave(b)
	l.Leave(c)
	require.Zero(t, l.Taken())
	_, ok = l.First("k")
	require.False(t, ok)
}

// without returns a list without one of its holders.
func without(all []*holder, x *holder) []*holder {
	return slices.DeleteFunc(all, func(y *holder) bool { return x == y })
}

// Random walks against a list that is searched.
func TestLineAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l line.Line[*holder]
		var seated []*holder // by number
		mayGo := func() []*holder {
			var all []*holder
			for i, x := range seated {
				behind := x.key != "" && slices.ContainsFunc(seated[:i], func(y *holder) bool { return y.key == x.key })
				if x.seat.Place == line.Parked && !behind {
					all = append(all, x)
				}
			}
			return all
		}
		pick := func(places ...line.Place) *holder {
			var all []*holder
			for _, x := range seated {
				if slices.Contains(places, x.seat.Place) {
					all = append(all, x)
				}
			}
			if len(all) == 0 {
				return nil
			}
			return rapid.SampledFrom(all).Draw(t, "holder")
		}
		for step := range 60 {
			switch rapid.IntRange(0, 12).Draw(t, "step") {
			case 0, 1:
				x := &holder{name: step, key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key")}
				l.Sit(x)
				seated = append(seated, x)
				if rapid.Bool().Draw(t, "parks") {
					l.Park(x, uint8(rapid.IntRange(0, 1).Draw(t, "reason")), 0, 0)
				}
			case 2:
				if front, ok := l.Front(); ok {
					l.Go(front)
				}
			case 10:
				if x := pick(line.Coming, line.Inside); x != nil {
					l.Lend(x)
					if x.lent = x.key != ""; !x.lent {
						l.Return(x)
						seated = without(seated, x)
					}
				}
			case 11:
				x := &holder{name: step, key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"), lent: true}
				if _, taken := l.First(x.key); !taken {
					l.Follow(x)
					seated = append(seated, x)
				}
			case 12:
				if i := slices.IndexFunc(seated, func(x *holder) bool { return x.lent }); i >= 0 {
					l.Return(seated[i])
					seated = without(seated, seated[i])
				}
			case 9:
				if fresh, ok := l.Fresh(rapid.Bool().Draw(t, "newest")); ok {
					l.Go(fresh)
				}
			case 3:
				if x := pick(line.Coming); x != nil {
					l.Move(x, line.Inside)
				}
			case 4: // only those that came, or are the first of their keys, park again
				if x := pick(line.Coming, line.Inside); x != nil {
					x.failed = x.seat.Place == line.Inside && rapid.Bool().Draw(t, "failed")
					l.Park(x, 0, 0, 0)
				}
			case 5:
				if x := pick(line.Coming, line.Inside); x != nil {
					l.Leave(x)
					seated = without(seated, x)
				}
			case 6:
				if oldest, ok := l.Oldest(rapid.Bool().Draw(t, "stranger")); ok {
					l.Drop(oldest)
					l.Leave(oldest)
					seated = without(seated, oldest)
				}
			case 7:
				if x := pick(line.Parked); x != nil {
					l.Change(x, uint8(rapid.IntRange(0, 1).Draw(t, "reason")))
				}
			case 8:
				if rapid.IntRange(0, 9).Draw(t, "empties") == 0 {
					for _, x := range l.Empty() {
						l.Leave(x)
						seated = without(seated, x)
					}
				}
			}
			want := mayGo()
			front, ok := l.Front()
			if ok != (len(want) > 0) || ok && front != want[0] {
				t.Fatalf("step %d: the front is %+v, and should be %+v", step, front, want)
			}
			fresh := slices.DeleteFunc(want, func(x *holder) bool { return x.failed })
			for _, newest := range []bool{false, true} {
				got, ok := l.Fresh(newest)
				if i := map[bool]int{true: len(fresh) - 1}[newest]; ok != (len(fresh) > 0) || ok && got != fresh[i] {
					t.Fatalf("step %d: fresh, newest %v, is %+v, and should be %+v", step, newest, got, fresh)
				}
			}
			var parked, parkedOwn, parkedStrangers []*holder
			var reasons [line.Reasons]int
			taken, strangers := 0, 0
			for i, x := range seated {
				if x.lent {
					continue
				}
				taken++
				first := slices.IndexFunc(seated, func(y *holder) bool { return y.key == x.key })
				of := &parkedOwn
				if x.key != "" && first < i && seated[first].lent {
					strangers++
					of = &parkedStrangers
				}
				if x.seat.Place == line.Parked {
					*of = append(*of, x)
				}
				if x.seat.Place == line.Parked {
					parked = append(parked, x)
					reasons[x.seat.Reason]++
				}
			}
			if !slices.Equal(l.All(), parked) || l.Parked() != reasons || l.Taken() != taken || l.Strangers() != strangers {
				t.Fatalf("step %d: %v parked, want %v; reasons %v, want %v; %d taken of %d, %d strangers of %d",
					step, l.All(), parked, l.Parked(), reasons, l.Taken(), taken, l.Strangers(), strangers)
			}
			for stranger, parked := range map[bool][]*holder{false: parkedOwn, true: parkedStrangers} {
				oldest, ok := l.Oldest(stranger)
				newest, _ := l.Newest(stranger)
				if ok != (len(parked) > 0) || ok && (oldest != parked[0] || newest != parked[len(parked)-1]) {
					t.Fatalf("step %d: strangers %v: %+v to %+v, want the first and the last of %v", step, stranger, oldest, newest, parked)
				}
			}
		}
	})
}
