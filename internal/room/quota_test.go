package room_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/room"
)

func TestD8_AQuotaHasRoomAgainWhenADispatchSettles(t *testing.T) {
	q := room.Quota{Most: 2}
	require.True(t, q.TryAdd(5), "it is empty")
	require.False(t, q.TryAdd(1))
	require.False(t, q.IsAwaited())
	first, second := q.Wait(), q.Wait()
	require.True(t, q.IsAwaited())
	q.Release(3)
	<-first
	<-second
	require.False(t, q.IsAwaited())
	require.False(t, q.TryAdd(1))
	q.Release(1)
	require.True(t, q.TryAdd(1))
	q.Add(7)
	require.EqualValues(t, 9, q.Used())
	q.Set(1)
	require.True(t, q.TryAdd(1))
}
