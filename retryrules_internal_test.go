package eventbus

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A dispatch that does not fail pays nothing for rules.
func TestP7_SuccessCostsNothing(t *testing.T) {
	require.LessOrEqual(t, publishAllocs(t, WithRetryRules(RetryRule{Match: ErrorMatch{Codes: []string{"*"}}, Attempts: 3})), publishAllocs(t)+0.01)
}

// publishAllocs is what an event costs from Publish until it is handled.
func publishAllocs(t *testing.T, opts ...Option) float64 {
	t.Helper()
	b, err := New(opts...)
	require.NoError(t, err)
	_, err = b.Subscribe("a", func(context.Context, Event) error { return nil })
	require.NoError(t, err)
	for range 10_000 {
		if _, err := b.Publish(t.Context(), "a", nil); err != nil {
			t.Fatal(err)
		}
	}
	w := b.machine.workers().Open()
	defer b.machine.workers().Close(w)
	return testing.AllocsPerRun(5000, func() {
		if d, ok := b.machine.pool.TryTake(); ok {
			b.machine.run(w, d)
		}
	})
}
