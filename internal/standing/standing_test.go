package standing_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/standing"
)

func at(n int64) func() int64 { return func() int64 { return n } }

func TestOrdersStandUntilTheirTime(t *testing.T) {
	var o standing.Orders[string]
	require.False(t, o.Meets("a", nil) || o.Stands("a", nil), "without an order, nothing reads the clock")
	o.Withdraw("a")
	a := o.Give("a", nil, 0, 10)
	o.Give("b", nil, 5, 15)
	require.False(t, o.Stands("c", at(9)))
	require.True(t, o.Stands("a", at(9)))
	require.False(t, o.Stands("a", at(10)))
	require.True(t, o.Meets("a", at(9)))
	require.False(t, o.Meets("a", at(10)))
	require.False(t, o.Meets("c", at(9)))
	o.Give("a", nil, 6, 8)
	require.True(t, o.Meets("a", at(9)), "a shorter one does not end it")
	require.EqualValues(t, 2, o.TakeMet("a", a, true))
	require.Zero(t, o.TakeMet("a", a, true))
	o.Give("a", a, 10, 20) // it was over
	o.Withdraw("b")
	require.False(t, o.Meets("b", at(11)))
	require.True(t, o.Meets("a", at(11)))
	o.Withdraw("a")
	require.False(t, o.Meets("a", nil))
}

// Once all are over, the next who asks forgets them: no later one waits for the lock, or reads the clock.
func TestOrdersThatAreOverCostNothing(t *testing.T) {
	var o standing.Orders[int]
	for i := range 1000 {
		o.Give(i, nil, 0, 10)
	}
	require.False(t, o.Stands(-1, at(10)))
	require.False(t, o.Stands(1, nil))
}

// An order is taken back when all who have given it take it back.
func TestOrdersOfSeveralGivers(t *testing.T) {
	var o standing.Orders[string]
	a := o.Give("a", nil, 0, 10)
	require.Same(t, a, o.Give("a", a, 1, 11), "the same giver")
	b := o.Give("a", nil, 2, 12)
	require.Zero(t, o.TakeMet("a", a, false))
	require.True(t, o.Stands("a", at(9)))
	require.Zero(t, o.TakeMet("a", b, false))
	require.False(t, o.Stands("a", nil))
	later := o.Give("a", nil, 3, 13)
	require.Zero(t, o.TakeMet("a", a, false))
	require.True(t, o.Stands("a", at(9)), "it is another one")
	require.Zero(t, o.TakeMet("a", later, false))
	require.False(t, o.Stands("a", nil))
}

// Each item counts for one giver: the first that has not taken its number.
func TestItemsThatWereMetCountForOneGiver(t *testing.T) {
	var o standing.Orders[string]
	a := o.Give("a", nil, 0, 10)
	b := o.Give("a", nil, 1, 11)
	require.True(t, o.Meets("a", at(2)))
	require.Zero(t, o.TakeMet("a", b, true))
	require.EqualValues(t, 1, o.TakeMet("a", a, true))
	require.True(t, o.Meets("a", at(3)), "it stands, and no giver counts")
	later := o.Give("a", nil, 4, 14)
	require.True(t, o.Meets("a", at(5)))
	require.EqualValues(t, 1, o.TakeMet("a", later, true))
	require.Zero(t, o.TakeMet("a", a, true)+o.TakeMet("a", b, true))
	require.Same(t, a, o.Give("a", a, 6, 16))
	require.True(t, o.Meets("a", at(7)))
	require.EqualValues(t, 1, o.TakeMet("a", a, true))
}

// An order by which an item has ended stays, for those that follow.
func TestV1_AnOrderThatWasMetStays(t *testing.T) {
	var o standing.Orders[string]
	a := o.Give("a", nil, 0, 10)
	require.True(t, o.Meets("a", at(1)))
	require.EqualValues(t, 1, o.TakeMet("a", a, false))
	require.True(t, o.Meets("a", at(2)))
}

// An order by which nothing has ended stays if its giver keeps it.
func TestV1_AKeptOrderStays(t *testing.T) {
	var o standing.Orders[string]
	a := o.Give("a", nil, 0, 10)
	require.Zero(t, o.TakeMet("a", a, true))
	require.True(t, o.Meets("a", at(1)))
}
