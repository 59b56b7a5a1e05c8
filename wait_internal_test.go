package eventbus

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Somebody asks a context when its handler has just returned, and the worker has not seen
// that. Whoever waits with it then stands behind nobody, and not behind what the worker
// runs next.
func TestD7_WhoWaitsAfterTheEndStandsBehindNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, err := New(WithConcurrency(1))
		require.NoError(t, err)
		var kept context.Context
		_, err = bus.Subscribe("first", func(ctx context.Context, _ Event) error {
			kept = ctx
			return nil
		})
		require.NoError(t, err)
		end := make(chan bool)
		_, err = bus.Subscribe("second", func(context.Context, Event) error {
			<-end
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		_, err = bus.PublishAndWait(t.Context(), "first", nil)
		require.NoError(t, err)
		go func() { _, _ = bus.PublishAndWait(t.Context(), "second", nil) }()
		synctest.Wait()

		c := callFrom(kept)
		c.asked.Store(&cancellation{number: c.number, before: c.asked.Load()})
		require.NotNil(t, c.dispatch.waiter(), "that of the second")
		require.Nil(t, c.stands().above)
		close(end)
		require.NoError(t, bus.Shutdown(t.Context()))
	})
}

// What is kept of an error does not depend on the one before.
func TestL1_ATextThatLooksLikeAShortenedOneIsShortened(t *testing.T) {
	long := make([]byte, maxErrorText+10)
	for i := range long {
		long[i] = 'x'
	}
	before := textOf(textError(long), "")
	require.Greater(t, len(before), maxErrorText)
	require.Equal(t, textOf(textError(before), ""), textOf(textError(before), before))
	require.Equal(t, "fine", textOf(textError("fine"), "fine"))
}

type textError string

func (e textError) Error() string { return string(e) }
