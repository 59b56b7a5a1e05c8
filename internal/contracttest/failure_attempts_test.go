package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// tried is what a handler reads of its context about its attempt.
type tried struct{ attempt, last int }

// notingAttempts returns a handler that notes its attempts and fails, but the last of them.
func notingAttempts(j *journal[tried]) eventbus.Handler {
	return func(ctx context.Context, _ eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		j.add(tried{d.Attempt, d.LastAttempt})
		if d.Attempt == d.LastAttempt {
			return nil // it does what it does at the end
		}
		return errBoom
	}
}

func TestF9_AHandlerKnowsItsLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var seen journal[tried]
		mustSubscribe(t, bus, "a", notingAttempts(&seen))
		mustPublish(t, bus, "a", 1)
		shutdown(t, bus)
		require.Equal(t, []tried{{1, 4}, {2, 4}, {3, 4}, {4, 4}}, seen.all())
		require.Empty(t, letters(t, bus))
	})
}

func TestF9_TheMergedPolicyCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var few, many journal[tried]
		mustSubscribe(t, bus, "a", notingAttempts(&few), eventbus.Retry(eventbus.MaxRetries(1)))
		mustSubscribe(t, bus, "a", notingAttempts(&many), eventbus.Retry(eventbus.MaxRetries(2)))
		mustPublish(t, bus, "a", 1)
		shutdown(t, bus)
		require.Equal(t, []tried{{1, 3}, {2, 3}, {3, 3}}, few.all())
		require.Equal(t, []tried{{3, 3}}, many.all(), "the attempts are those of the event")
	})
}

func TestF9_WithoutALimitItIsZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var seen journal[tried]
		mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
			if seen.len() == 5 {
				return nil
			}
			return notingAttempts(&seen)(ctx, e)
		}, eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited)))
		mustPublish(t, bus, "a", 1)
		shutdown(t, bus)
		require.Equal(t, []tried{{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}}, seen.all())
	})
}

// A rule that decides has attempts of its own, which the number does not include.
func TestF9_ARuleDoesNotChangeTheNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetryRules(onCodes(2, "slow")))
		var seen journal[tried]
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			seen.add(tried{d.Attempt, d.LastAttempt})
			return coded("slow")
		})
		mustPublish(t, bus, "a", 1)
		shutdown(t, bus)
		require.Equal(t, []tried{{1, 4}, {2, 4}}, seen.all())
		require.Equal(t, eventbus.ReasonExhausted, oneLetter(t, bus).Reason)
	})
}

// The policy of a dispatch is that of its publication: so is the number.
func TestF9_ALaterPolicyDoesNotChangeTheNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var seen journal[tried]
		s := mustSubscribe(t, bus, "a", notingAttempts(&seen), eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Minute)))
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		require.NoError(t, bus.SetRetry(eventbus.MaxRetries(9)))
		require.NoError(t, s.SetRetry())
		shutdown(t, bus)
		require.Equal(t, []tried{{1, 2}, {2, 2}}, seen.all())
	})
}

// A replay begins at attempt 1, under the policy of then.
func TestF9_AReplayBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		var seen journal[tried]
		s := mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			seen.add(tried{d.Attempt, d.LastAttempt})
			return errBoom
		})
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		require.NoError(t, s.SetRetry(eventbus.Delays(time.Second)))
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		shutdown(t, bus)
		require.Equal(t, []tried{{1, 1}, {1, 2}, {2, 2}}, seen.all())
	})
}
