package blocked_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/blocked"
)

func TestSignal(t *testing.T) {
	s := blocked.NewSignal()
	first := s.Block()
	require.False(t, s.End(), "no block has begun")
	require.Same(t, first, s.Block())

	why := errors.New("a lock")
	require.True(t, s.Begin(why))
	require.False(t, s.Begin(errors.New("another")), "it has begun")
	<-first.Begun
	require.Equal(t, why, first.Why)

	require.True(t, s.End())
	require.False(t, s.End())
	select {
	case <-s.Block().Begun:
		t.Fatal("the next block has begun")
	default:
	}
}

func TestTxLocks(t *testing.T) {
	open := map[any]bool{"a": true, "b": true, "c": true}
	locks := blocked.TxLocks{HoldsLock: func(tx any) bool { return open[tx] }}
	require.True(t, locks.None())
	locks.Note(1, "a")
	locks.Note(1, "b")
	locks.Note(2, "c")
	require.True(t, locks.Has(1))
	require.False(t, locks.Has(3))
	delete(open, "a")
	require.True(t, locks.Has(1), "b is open")
	delete(open, "b")
	require.False(t, locks.Has(1))
	require.False(t, locks.None(), "c is open")
	delete(open, "c")
	locks.Note(3, "d") // drops c
	require.False(t, locks.Has(3))
	require.True(t, locks.None())

	var none blocked.TxLocks
	none.Note(1, "a")
	require.False(t, none.Has(1))
	require.True(t, none.None())
}
