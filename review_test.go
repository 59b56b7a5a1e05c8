package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// Shutdown does not wait for what is published for later, nor for somebody who has
// just published it.
func TestS2_PublishingForLaterWhileShutdownBegins(t *testing.T) {
	for range 30 {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "a", ok)
		var publishers sync.WaitGroup
		for range 8 {
			publishers.Go(func() {
				for range 300 {
					if _, err := bus.Publish(context.Background(), "a", nil, eventbus.After(time.Hour)); err != nil {
						return
					}
				}
			})
		}
		for bus.Metrics().Scheduled < 10 {
			time.Sleep(50 * time.Microsecond)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := bus.Shutdown(ctx)
		cancel()
		publishers.Wait()

		var left *eventbus.ShutdownError
		require.ErrorAs(t, err, &left)
		require.NoError(t, left.Cause, "it was waited for")
		require.Len(t, left.Unfinished, int(bus.Metrics().Ledger.Accepted))
		requireBalanced(t, bus)
	}
}

// What a batch publishes for later is there for Shutdown, and for Cancel, when the
// first observer is told of it.
func TestS2_AnObserverIsToldOfWhatIsPublishedForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bus *eventbus.Bus
		told, goOn := 0, make(chan struct{})
		bus, _ = startBus(t, eventbus.WithObserver(eventbus.Observer{Accepted: func(e eventbus.Event) {
			if told++; told == 1 {
				require.NoError(t, bus.Cancel(context.Background(), e.ID))
				<-goOn
			}
		}}))
		mustSubscribe(t, bus, "a", ok)
		later := eventbus.Publication{Type: "a", Options: []eventbus.PublishOption{eventbus.After(time.Hour)}}
		var err error
		go func() {
			_, err = bus.PublishBatch(context.Background(), []eventbus.Publication{later, later, later})
		}()
		synctest.Wait()
		var left *eventbus.ShutdownError
		require.ErrorAs(t, bus.Shutdown(context.Background()), &left)
		require.Len(t, left.Unfinished, 2)
		close(goOn)
		synctest.Wait()
		require.NoError(t, err)
		require.Equal(t, 3, told)
		requireBalanced(t, bus)
	})
}

// Who has given up waiting is waited for by nobody: the key that it had is free
// when it is done.
func TestD7_AGivenUpWaitIsNoDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var outer, middle error
		mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, outer = bus.PublishAndWait(ctx, "middle", nil)
			return nil
		})
		mustSubscribe(t, bus, "middle", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "inner", nil, eventbus.Key("k"))
			require.ErrorIs(t, err, eventbus.ErrWouldDeadlock, "while it is waited for")
			time.Sleep(2 * time.Second)
			_, err = bus.PublishAndWait(ctx, "between", nil)
			return err
		})
		mustSubscribe(t, bus, "between", func(ctx context.Context, _ eventbus.Event) error {
			_, middle = bus.PublishAndWait(ctx, "inner", nil, eventbus.Key("k"))
			return nil
		})
		mustSubscribe(t, bus, "inner", ok)
		mustPublish(t, bus, "outer", nil, eventbus.Key("k"))
		shutdown(t, bus)
		require.ErrorIs(t, outer, context.DeadlineExceeded)
		require.NoError(t, middle)
	})
}

// A letter whose event Publish would have refused is none.
func TestL4_AnImportedKeyIsAsGoodAsAPublishedOne(t *testing.T) {
	from, _ := startBus(t)
	mustSubscribe(t, from, "a", failing(eventbus.Permanent(errors.New("bad"))))
	_, err := from.PublishAndWait(t.Context(), "a", nil, eventbus.Key("its key"))
	require.Error(t, err)
	var exported strings.Builder
	_, err = from.DLQ().Export(t.Context(), &exported, eventbus.LetterQuery{})
	require.NoError(t, err)
	for _, key := range []string{strings.Repeat("k", 256), `\u0000`} {
		to, _ := newBus(t)
		_, err = to.DLQ().Import(t.Context(), strings.NewReader(strings.Replace(exported.String(), "its key", key, 1)))
		var wrong *eventbus.ImportError
		require.ErrorAs(t, err, &wrong)
		require.Contains(t, wrong.Reason, "event.key")
		require.Empty(t, letters(t, to))
	}
}

// Who puts off a reminder by cancelling it and publishing it again, under its id,
// is not answered as if it were there.
func TestE6_ACancelledIDCanBeGivenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var at []time.Duration
		began := time.Now()
		mustSubscribe(t, bus, "reminder", func(context.Context, eventbus.Event) error {
			at = append(at, time.Since(began))
			return nil
		})
		id := eventbus.NewEventID()
		for _, after := range []time.Duration{time.Hour, 2 * time.Hour} {
			mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(after))
			mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(after)) // known
			require.Equal(t, 1, bus.Metrics().Scheduled)
			require.NoError(t, bus.Cancel(t.Context(), id))
		}
		mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(3*time.Hour))
		time.Sleep(4 * time.Hour)
		synctest.Wait()
		require.Equal(t, []time.Duration{3 * time.Hour}, at)
		shutdown(t, bus)
	})
}

// An id that was forgotten and given again is not forgotten with its first entry.
func TestE6_AnIDGivenAgainIsKnownForItsTime(t *testing.T) {
	bus, _ := newBus(t) // not started: what nothing matches needs no worker
	id := eventbus.NewEventID()
	mustSubscribe(t, bus, "reminder", ok)
	mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(time.Hour))
	require.NoError(t, bus.Cancel(t.Context(), id))
	mustPublish(t, bus, "a", nil, eventbus.ID(id))
	for range 99_999 {
		mustPublish(t, bus, "a", nil, eventbus.ID(eventbus.NewEventID()))
	}
	_, err := bus.Publish(t.Context(), "b", nil, eventbus.ID(id))
	require.ErrorIs(t, err, eventbus.ErrDuplicateID)
	mustPublish(t, bus, "a", nil, eventbus.ID(eventbus.NewEventID()))
	mustPublish(t, bus, "b", nil, eventbus.ID(id))
}

func TestC6_ASubscriptionIsFoundByANameThatItHasTakenOver(t *testing.T) {
	bus, _ := newBus(t)
	s := mustSubscribe(t, bus, "a", ok, eventbus.Named("new"), eventbus.Formerly("old", "older"))
	unnamed := mustSubscribe(t, bus, "b", ok)
	for _, name := range []string{"new", "old", "older"} {
		require.Same(t, s, bus.Subscription(name))
	}
	require.Same(t, unnamed, bus.Subscription(unnamed.ID()))
	require.Nil(t, bus.Subscription("newer"))
	s.Unsubscribe()
	require.Nil(t, bus.Subscription("old"))
}

// What is held has ended its attempt before it begins the next one.
func TestC5_TheAttemptEndsBeforeTheNextBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told journal[string]
		var s *eventbus.Subscription
		first := true
		bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{
			AttemptBegun: func(a eventbus.Attempt) {
				told.add(fmt.Sprintf("begun %d", a.Number))
				if first {
					first = false
					_ = s.Pause() // after it has been let through
				}
			},
			AttemptEnded: func(a eventbus.EndedAttempt) {
				time.Sleep(time.Minute) // it is let go meanwhile
				told.add(fmt.Sprintf("ended %d %s", a.Number, a.Outcome))
			},
		}))
		s = mustSubscribe(t, bus, "a", ok)
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Second)
		require.NoError(t, s.Resume())
		time.Sleep(time.Hour)
		shutdown(t, bus)
		require.Equal(t, []string{"begun 1", "ended 1 held", "begun 1", "ended 1 handled"}, told.all())
	})
}
