package storekit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver/storekit"
)

// A Close whose context ends leaves the work, and a second one waits for it.
func TestClosing_SecondWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storekit.NewClosing()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		var end func(error)
		require.ErrorIs(t, c.Close(ended, func(f func(error)) { end = f }), context.Canceled)
		<-c.Began()
		second := make(chan error, 1)
		go func() { second <- c.Close(t.Context(), func(func(error)) { t.Error("the work began twice") }) }()
		synctest.Wait()
		require.Empty(t, second)
		end(errors.New("disk"))
		require.NoError(t, <-second, "the error is the first one's")
		<-c.Ended()
		require.NoError(t, c.Close(ended, nil), "what has ended needs no time")
	})
}

func TestClosing_ErrorOfTheWork(t *testing.T) {
	disk := errors.New("disk")
	c := storekit.NewClosing()
	require.ErrorIs(t, c.Close(t.Context(), func(end func(error)) { end(disk) }), disk)
}
