package eventbustest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
)

func TestNew_ShutsDownWithTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bus *eventbus.Bus
		handled := false
		passes(t, func(t testing.TB) {
			bus = eventbustest.New(t)
			subscribe(t, bus, func(context.Context, eventbus.Event) error { handled = true; return nil })
			publish(t, bus, "order.placed", nil)
		})
		require.True(t, handled, "what was published is handled before the test ends")
		_, err := bus.Publish(t.Context(), "order.placed", nil)
		require.ErrorIs(t, err, eventbus.ErrShutdown)
	})
}

func TestNew_BadOption(t *testing.T) {
	_, finished := failuresOf(t, func(t testing.TB) {
		eventbustest.New(t, eventbus.WithConcurrency(0))
	})
	require.False(t, finished)
	oneFailure(t, func(t testing.TB) { eventbustest.NewUnstarted(t, eventbus.WithConcurrency(0)) }, "WithConcurrency(0)")
}

func TestNewUnstarted_IsStartedByTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes(t, func(t testing.TB) {
			bus := eventbustest.NewUnstarted(t)
			subscribe(t, bus, ok)
			publish(t, bus, "order.placed", nil)
			require.NoError(t, bus.Start(context.Background()))
		})
	})
}

func TestNewUnstarted_NeverStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes(t, func(t testing.TB) { eventbustest.NewUnstarted(t) })
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.NewUnstarted(t)
			subscribe(t, bus, ok, eventbus.Named("mail"))
			publish(t, bus, "order.placed", nil)
		}, "1 event unfinished", "never started", "order.placed", "shutdown at mail after 0 attempts")
	})
}

func TestAdopt_RefusesWhatItCannotEnd(t *testing.T) {
	oneFailure(t, func(t testing.TB) { eventbustest.Adopt(t, nil) }, "was not made with New")
	oneFailure(t, func(t testing.TB) { eventbustest.Adopt(t, new(eventbus.Bus)) }, "was not made with New")
	oneFailure(t, func(t testing.TB) { eventbustest.WaitSettled(t, nil) }, "was not made with New")
	oneFailure(t, func(t testing.TB) { eventbustest.AdvanceUntilSettled(t, nil, nil) }, "was not made with New")
	oneFailure(t, func(t testing.TB) { eventbustest.Adopt(t, eventbustest.New(t)) }, "adopted already")
}

func TestAdopt_ABusThatTheServiceShutsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes(t, func(t testing.TB) {
			bus, err := eventbus.New()
			require.NoError(t, err)
			eventbustest.Adopt(t, bus)
			require.NoError(t, bus.Start(context.Background()))
			require.NoError(t, bus.Shutdown(context.Background()))
		})
	})
}

func TestEnd_ReportsDeadLettersNotLookedAt(t *testing.T) {
	test := func(look func(testing.TB, *eventbus.Bus)) func(testing.TB) {
		return func(t testing.TB) {
			bus := eventbustest.New(t, seconds)
			subscribe(t, bus, eventbustest.Fail(errBank), eventbus.Named("billing"))
			publish(t, bus, "order.placed", "o-17")
			look(t, bus)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		oneFailure(t, test(func(testing.TB, *eventbus.Bus) {}),
			"1 dead letter that it did not expect", "AllowDeadLetters",
			"order.placed", "exhausted at billing after 4 attempts", "attempt 4", "the bank is busy")
		passes(t, test(func(t testing.TB, bus *eventbus.Bus) {
			eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
		}))
		passes(t, test(func(t testing.TB, bus *eventbus.Bus) {
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
		}))
		passes(t, test(func(t testing.TB, bus *eventbus.Bus) {
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{Subscription: "billing", Reason: eventbus.ReasonExhausted})
		}))
		oneFailure(t, test(func(t testing.TB, bus *eventbus.Bus) {
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{Subscription: "mail"})
		}), "1 dead letter that it did not expect")
		oneFailure(t, test(func(t testing.TB, bus *eventbus.Bus) {
			letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
			require.NoError(t, bus.DLQ().Replay(context.Background(), letter.ID)) // and it dies again
		}), "replayed 1 time", "attempt 4")
	})
}

func TestEnd_ReportsEvictedLetters(t *testing.T) {
	test := func(allowed eventbus.LetterQuery) func(testing.TB) {
		return func(t testing.TB) {
			bus := eventbustest.New(t, eventbus.WithDeadLetterCapacity(1))
			eventbustest.AllowDeadLetters(t, bus, allowed)
			subscribe(t, bus, eventbustest.Fail(eventbus.Permanent(errBank)))
			publish(t, bus, "order.placed", nil)
			publish(t, bus, "order.placed", nil)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		oneFailure(t, test(eventbus.LetterQuery{Type: "order.*"}), "1 dead letter evicted from the full queue")
		passes(t, test(eventbus.LetterQuery{All: true}))
	})
}

func TestEnd_ReportsWhatIsUnfinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			subscribe(t, bus, eventbustest.Fail(errBank), eventbus.Named("billing"),
				eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited)), eventbus.Circuit(eventbus.NoCircuit()))
			publish(t, bus, "order.placed", nil)
		}, "1 event unfinished", "cut short", "shutdown at billing", "the last 20 of", "the bank is busy")
		require.Equal(t, 24*time.Hour, time.Since(begun))
	})
}

// A cut that the test has asked for is no failure once its letters are expected.
func TestEnd_AShutdownCutOnPurpose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			subscribe(t, bus, eventbustest.Overrun)
			publish(t, bus, "order.placed", nil)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			var cut *eventbus.ShutdownError
			require.ErrorAs(t, bus.Shutdown(ctx), &cut)
			eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonShutdown})
		})
	})
}

func TestEnd_ReportsLeakedHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stubborn := func(context.Context, eventbus.Event) error { <-release; return nil }
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
			subscribe(t, bus, stubborn, eventbus.Named("billing"), eventbus.Retry(eventbus.MaxRetries(0)))
			publish(t, bus, "order.placed", nil)
		}, "1 handler abandoned", "still running", "billing, with order.placed", "since 00:00:30.00")
		close(release)
	})
}

// A handler that is only slow to notice its cancellation is waited for.
func TestEnd_WaitsForAbandonedHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
			subscribe(t, bus, func(context.Context, eventbus.Event) error {
				time.Sleep(time.Hour)
				return nil
			}, eventbus.Retry(eventbus.MaxRetries(0)))
			publish(t, bus, "order.placed", nil)
		})
	})
}

// The end of a test that has failed waits for a second, and not for the default limit.
func TestEnd_AfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pretendRealTime()
		begun := time.Now()
		release := make(chan struct{})
		failures, _ := failuresOf(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			subscribe(t, bus, eventbustest.Block(release))
			publish(t, bus, "order.placed", nil)
			t.Errorf("the test has failed")
		})
		require.InDelta(t, time.Second, time.Since(begun), float64(time.Millisecond), "the end of the workers may take a tick or two")
		require.Len(t, failures, 2)
		require.Contains(t, failures[1], "1 event unfinished")
	})
}

func TestAllowDeadLetters_Refuses(t *testing.T) {
	oneFailure(t, func(t testing.TB) {
		eventbustest.AllowDeadLetters(t, eventbustest.New(t), eventbus.LetterQuery{Type: "order..placed"})
	}, "invalid pattern")
	oneFailure(t, func(t testing.TB) {
		eventbustest.AllowDeadLetters(t, eventbustest.New(t), eventbus.LetterQuery{Limit: 3})
	}, "LetterQuery{Limit: 3}", "must be zero")
	oneFailure(t, func(t testing.TB) {
		bus, err := eventbus.New()
		require.NoError(t, err)
		eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
	}, "Adopt it")
}

func TestNew_WhatIsHeldOrForLaterIsUnfinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leave := func(t testing.TB) *eventbus.Bus {
			bus := eventbustest.New(t)
			subscribe(t, bus, ok, eventbus.Named("mail"))
			require.NoError(t, bus.Subscription("mail").Pause())
			publish(t, bus, "order.placed", nil)
			_, err := bus.Publish(context.Background(), "order.placed", nil, eventbus.After(time.Hour))
			require.NoError(t, err)
			eventbustest.WaitSettled(t, bus, eventbustest.HeldIsSettled())
			return bus
		}
		oneFailure(t, func(t testing.TB) { leave(t) }, "2 events unfinished", "held, paused or scheduled", "AllowDeadLetters")
		for _, query := range []eventbus.LetterQuery{{}, {All: true}, {Subscription: "mail"}} {
			oneFailure(t, func(t testing.TB) {
				eventbustest.AllowDeadLetters(t, leave(t), query)
			}, "2 events unfinished", "the reason shutdown")
		}
		passes(t, func(t testing.TB) {
			eventbustest.AllowDeadLetters(t, leave(t), eventbus.LetterQuery{Reason: eventbus.ReasonShutdown, Subscription: "mail"})
		})
		passes(t, func(t testing.TB) {
			eventbustest.AllowDeadLetters(t, leave(t), eventbus.LetterQuery{Reason: eventbus.ReasonShutdown})
		})
		passes(t, func(t testing.TB) {
			bus := leave(t)
			require.NoError(t, bus.Subscription("mail").Resume())
			time.Sleep(2 * time.Hour)
		})
	})
}
