package room_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/room"
)

func TestOrphans(t *testing.T) {
	var o room.Orphans
	require.Zero(t, o.Adopt("a"))
	o.Add("a")
	o.Add("a")
	o.Add("b")
	require.EqualValues(t, 3, o.Total())
	require.EqualValues(t, 2, o.Of("a"))
	require.EqualValues(t, 2, o.Adopt("a", "c"))
	require.EqualValues(t, 1, o.Total())
	o.Set(map[string]int64{"c": 4, "d": 5})
	require.EqualValues(t, 9, o.Total())
	require.EqualValues(t, 9, o.Adopt("c", "d", "b"))
	o.Set(nil)
	o.Add("a")
	require.EqualValues(t, 1, o.Total())
	require.Zero(t, o.Remove("b"))
	require.EqualValues(t, 1, o.Remove("a"))
	require.Zero(t, o.Remove("a"))
	require.Zero(t, o.Total()+o.Of("a"))
}
