package contracttest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// A deploy that removes a handler of letters, with a clean shutdown.
func TestL8_AHandlerThatIsGone(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, d *disk, bus *eventbus.Bus){
		"shutdown": func(t *testing.T, d *disk, bus *eventbus.Bus) { shutdown(t, bus) },
		"crash":    func(t *testing.T, d *disk, bus *eventbus.Bus) { d.crash(bus) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				dies(t, bus, "order")
				onLetters(t, bus, "*", "tells", nil)
				require.NoError(t, bus.Start(t.Context()))
				time.Sleep(time.Minute)
				end(t, disk, bus)

				again, _ := disk.open(t)
				dies(t, again, "order")
				require.NoError(t, again.Start(t.Context()))
				time.Sleep(25 * time.Hour)
				require.Len(t, disk.Dump().Catalogs, 1, "the old catalog is gone")
				mustPublish(t, again, "order", 1)
				time.Sleep(time.Minute)
				require.Len(t, letters(t, again), 1)
				require.Empty(t, again.Metrics().Orphaned)
				require.Empty(t, disk.Dump().Records)
				shutdown(t, again)
			})
		})
	}
}

// Incoming events of invalid types become letters, which have handlers.
func TestL8_LettersOfInvalidEvents(t *testing.T) {
	for _, eventType := range []string{"", ".", "a..b", "a*", "**", "a b", "\xff", "a.", strings.Repeat("x", 100_000), strings.Repeat("x.", 1000)} {
		t.Run(eventType[:min(len(eventType), 5)], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				mustSubscribe(t, bus, "mail", ok, eventbus.Named("mail"))
				got := onLetters(t, bus, "**", "tells", nil)
				onLetters(t, bus, "a.*", "some", nil)
				require.NoError(t, bus.Start(t.Context()))
				disk.leaves(t, &driver.Record{Type: eventType, Targets: []string{"mail"}})
				time.Sleep(time.Minute)
				require.Len(t, letters(t, bus), 1)
				require.LessOrEqual(t, len(got.all()), 1)
				requireBalanced(t, bus)
				shutdown(t, bus)
			})
		})
	}
}

// Two versions on standby: a handler and the same one under its new name.
func TestL8_ARenamedHandlerOfTwoStandbys(t *testing.T) {
	for _, names := range [][]string{{"old first"}, {"new first"}} {
		t.Run(names[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				active, _ := disk.open(t)
				dies(t, active, "order")
				mustSubscribe(t, active, "x1", ok, eventbus.Named("only here"))
				require.NoError(t, active.Start(t.Context()))
				got := new(journal[eventbus.DeadLetter])
				var buses []*eventbus.Bus
				var dones []chan error
				ctx, cancel := context.WithCancel(t.Context())
				start := func(opts ...eventbus.SubscribeOption) {
					standby, _ := disk.open(t, eventbus.WithStandby())
					dies(t, standby, "order")
					_, err := standby.OnDeadLetter("*", func(_ context.Context, l eventbus.DeadLetter) error { got.add(l); return nil }, opts...)
					require.NoError(t, err)
					done := make(chan error, 1)
					go func() { done <- standby.Start(ctx) }()
					buses, dones = append(buses, standby), append(dones, done)
					time.Sleep(time.Minute)
				}
				renamed := []eventbus.SubscribeOption{eventbus.Named("renamed"), eventbus.Formerly("tells")}
				old := []eventbus.SubscribeOption{eventbus.Named("tells")}
				if names[0] == "old first" {
					start(old...)
					start(renamed...)
				} else {
					start(renamed...)
					start(old...)
				}
				mustPublish(t, active, "order", "o")
				time.Sleep(time.Minute)
				require.Len(t, disk.Dump().Records, 1, "it is one handler: %v", active.Metrics().Orphaned)
				cancel()
				for i, b := range buses {
					t.Log(<-dones[i])
					shutdown(t, b)
				}
				shutdown(t, active)
			})
		})
	}
}

// A letter is an end: its handler may publish the key of UntilSettled again.
func TestL8_TheKeyIsFreeForTheHandlerOfTheLetter(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var calls atomic.Int64
		mustSubscribe(t, bus, "order", func(context.Context, eventbus.Event) error {
			if calls.Add(1) == 1 {
				return eventbus.Permanent(errBoom)
			}
			return nil
		}, eventbus.Named("order"))
		_, err := bus.OnDeadLetter("*", func(ctx context.Context, l eventbus.DeadLetter) error {
			_, err := bus.Publish(ctx, "order", "again", idem("k"), eventbus.UntilSettled())
			return err
		}, eventbus.Named("tells"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", "o", idem("k"), eventbus.UntilSettled())
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, calls.Load())
		requireBalanced(t, bus)
	}, eventbus.WithObserver(eventbus.Observer{Accepted: func(e eventbus.Event) {
		if e.Type == "eventbus.dead_letter" {
			time.Sleep(time.Second)
		}
	}}))
}

// The next version has an ordinary subscription of the name of a handler of letters. The delivery becomes a letter, which only a handler of
// letters can replay.
func TestL8_ANameChangesItsKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		dies(t, bus, "order")
		hangs := make(chan struct{})
		onLetters(t, bus, "*", "tells", func(int) error { <-hangs; return nil }, eventbus.Timeout(time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", "o")
		time.Sleep(time.Minute)
		disk.crash(bus)
		close(hangs)
		again, _ := disk.open(t)
		dies(t, again, "order")
		var types []string
		mustSubscribe(t, again, "mail", func(_ context.Context, e eventbus.Event) error { types = append(types, e.Type); return nil }, eventbus.Named("tells"))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Empty(t, types, "an ordinary handler gets no letters")
		own := list(t, again, eventbus.LetterQuery{Subscription: "tells"}).Letters
		require.Len(t, own, 1)
		require.Equal(t, eventbus.ReasonUnsubscribed, own[0].Reason)
		require.ErrorIs(t, again.DLQ().Replay(t.Context(), own[0].ID), eventbus.ErrNoSubscription)
		requireBalanced(t, again)
		shutdown(t, again)
	})
}

// A standby has a handler of letters, whose name an ordinary subscription has here.
func TestL8_TheNameIsAnotherKindHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		active, _ := disk.open(t)
		dies(t, active, "order")
		mustSubscribe(t, active, "mail", ok, eventbus.Named("tells"))
		mustSubscribe(t, active, "x1", ok, eventbus.Named("only here"))
		require.NoError(t, active.Start(t.Context()))
		standby, _ := disk.open(t, eventbus.WithStandby())
		dies(t, standby, "order")
		got := onLetters(t, standby, "*", "tells", nil)
		done := make(chan error, 1)
		go func() { done <- standby.Start(t.Context()) }()
		time.Sleep(time.Minute)
		mustPublish(t, active, "order", "o")
		time.Sleep(time.Minute)
		own := list(t, active, eventbus.LetterQuery{Subscription: "tells"}).Letters
		require.Len(t, own, 1)
		require.Equal(t, eventbus.ReasonUnsubscribed, own[0].Reason)
		shutdown(t, active)
		require.NoError(t, <-done)
		require.NoError(t, standby.DLQ().Replay(t.Context(), own[0].ID))
		time.Sleep(time.Minute)
		require.Len(t, got.all(), 1)
		shutdown(t, standby)
	})
}

// A standby has the handler with a wider pattern: the handler of its name here gets the letter.
func TestL8_APatternIsWidened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		active, _ := disk.open(t)
		dies(t, active, "order")
		got := onLetters(t, active, "mail", "tells", nil)
		mustSubscribe(t, active, "x1", ok, eventbus.Named("only here"))
		require.NoError(t, active.Start(t.Context()))
		standby, _ := disk.open(t, eventbus.WithStandby())
		dies(t, standby, "order")
		onLetters(t, standby, "*", "tells", nil)
		done := make(chan error, 1)
		go func() { done <- standby.Start(t.Context()) }()
		time.Sleep(time.Minute)
		mustPublish(t, active, "order", "o")
		time.Sleep(time.Minute)
		shutdown(t, active)
		require.NoError(t, <-done)
		time.Sleep(time.Minute)
		require.Len(t, got.all(), 1)
		shutdown(t, standby)
	})
}

// Each handler receives a letter by itself, and so does a full queue end its delivery.
func TestL8_AFullQueueOfTwoHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		release := diesOnceReleased(t, bus)
		handlers := map[string]*journal[eventbus.DeadLetter]{"tells": onLetters(t, bus, "*", "tells", nil), "tells too": onLetters(t, bus, "*", "tells too", nil)}
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", 1)
		synctest.Wait()
		mustPublish(t, bus, "order", 2)
		release <- struct{}{}
		synctest.Wait()
		close(release)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		over := list(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonOverflow}).Letters
		require.NotEmpty(t, over)
		for name, got := range handlers {
			own := list(t, bus, eventbus.LetterQuery{Subscription: name, Reason: eventbus.ReasonOverflow}).Letters
			require.Equal(t, 2, len(own)+got.len(), name)
			for _, l := range own {
				require.Empty(t, l.NotReached)
			}
		}
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}
