package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// onLetters registers a handler of dead letters that notes what it gets, and then returns what end returns.
func onLetters(t *testing.T, bus *eventbus.Bus, pattern, name string, end func(attempt int) error, opts ...eventbus.SubscribeOption) *journal[eventbus.DeadLetter] {
	t.Helper()
	got := new(journal[eventbus.DeadLetter])
	_, err := bus.OnDeadLetter(pattern, func(ctx context.Context, l eventbus.DeadLetter) error {
		got.add(l)
		if end == nil {
			return nil
		}
		d, _ := eventbus.FromContext(ctx)
		return end(d.Attempt)
	}, append([]eventbus.SubscribeOption{eventbus.Named(name)}, opts...)...)
	require.NoError(t, err)
	return got
}

var errDeclined = errors.New("declined")

// dies subscribes a handler whose events become letters.
func dies(t *testing.T, bus *eventbus.Bus, pattern string) {
	t.Helper()
	mustSubscribe(t, bus, pattern, failing(eventbus.Permanent(errDeclined)), eventbus.Named("dies "+pattern), eventbus.Circuit(eventbus.NoCircuit()))
}

// A handler of dead letters gets the letter, as an event of its own.
func TestL8_ALetterCallsItsHandlers(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		dies(t, bus, "order.*")
		dies(t, bus, "mail.*")
		orders, all := onLetters(t, bus, "order.*", "orders", nil), onLetters(t, bus, "**", "all", nil)
		var delivery eventbus.Delivery
		_, err := bus.OnDeadLetter("order.placed", func(ctx context.Context, l eventbus.DeadLetter) error {
			delivery, _ = eventbus.FromContext(ctx)
			_, err := eventbus.Emit(ctx, "apology", "for "+l.Event.ID.String())
			return err
		}, eventbus.Named("tells"))
		require.NoError(t, err)
		apologies := noting(t, bus, "apology")
		everything := new(journal[string])
		mustSubscribe(t, bus, "**", func(_ context.Context, e eventbus.Event) error { everything.add(e.Type); return nil }, eventbus.Named("everything"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "order.placed", "o", eventbus.Key("k"), eventbus.Metadata("tenant", "blue"))
		mustPublish(t, bus, "mail.sent", "m")
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.Len(t, orders.all(), 1)
		require.Len(t, all.all(), 2)
		letter := orders.all()[0]
		require.Equal(t, id, letter.Event.ID)
		require.Equal(t, "order.placed", letter.Event.Type)
		require.Equal(t, "dies order.*", letter.Subscription)
		require.Equal(t, eventbus.ReasonPermanent, letter.Reason)
		require.Equal(t, []string{"everything"}, letter.NotReached)
		require.Equal(t, errDeclined.Error(), letter.Failures[0].Error)
		kept := list(t, bus, eventbus.LetterQuery{Event: id}).Letters
		require.Len(t, kept, 1, "the letter stays")
		require.Equal(t, kept[0].ID, letter.ID)
		require.Equal(t, eventbus.EventID(letter.ID), delivery.Event.ID)
		require.Equal(t, "eventbus.dead_letter", delivery.Event.Type)
		require.Equal(t, "blue", delivery.Event.Metadata.Get("tenant"))
		require.Empty(t, delivery.Event.Key)
		require.Equal(t, []string{"for " + id.String()}, apologies.all())
		require.Equal(t, []string{"apology"}, everything.all(), "no event of a letter is routed by its type")
		requireBalanced(t, bus)
		require.True(t, metricsOf(t, bus, "tells").DeadLetters)
	})
}

// It has retries and letters of its own. Of those there are no further letters' events.
func TestL8_AHandlerThatFails(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("failed") },
		"panic": func() error { panic("failed") },
		"hangs": func() error { time.Sleep(time.Hour); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				dies(t, bus, "order")
				var fixed atomic.Bool
				fails := onLetters(t, bus, "*", "fails", func(int) error {
					if fixed.Load() {
						return nil
					}
					return fail()
				}, eventbus.Retry(eventbus.MaxRetries(2), eventbus.BaseDelay(time.Second)), eventbus.Timeout(10*time.Second))
				works := onLetters(t, bus, "*", "works", nil)
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "order", "o")
				time.Sleep(2 * time.Hour)
				require.Len(t, works.all(), 1, "the other handler is not held up")
				require.Len(t, fails.all(), 3)
				own := list(t, bus, eventbus.LetterQuery{Subscription: "fails"}).Letters
				require.Len(t, own, 1)
				require.Equal(t, "eventbus.dead_letter", own[0].Event.Type)
				require.Equal(t, eventbus.ReasonExhausted, own[0].Reason)
				require.Len(t, letters(t, bus), 2)
				fixed.Store(true)
				require.NoError(t, bus.DLQ().Replay(t.Context(), own[0].ID))
				synctest.Wait()
				require.Len(t, fails.all(), 4)
				require.Equal(t, fails.all()[0].ID, fails.all()[3].ID)
				require.Len(t, letters(t, bus), 1)
				requireBalanced(t, bus)
			})
		})
	}
}

// A letter that is replayed calls its handlers again only if the event dies again. One that is imported does not.
func TestL8_ReplaysAndImports(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var works atomic.Bool
		mustSubscribe(t, bus, "order", func(context.Context, eventbus.Event) error {
			if works.Load() {
				return nil
			}
			return eventbus.Permanent(errDeclined)
		}, eventbus.Named("order"), eventbus.Circuit(eventbus.NoCircuit()))
		got := onLetters(t, bus, "*", "tells", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", "o")
		synctest.Wait()
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		synctest.Wait()
		require.Len(t, got.all(), 2)
		require.Equal(t, 1, got.all()[1].Replays)
		require.NotEqual(t, got.all()[0].ID, got.all()[1].ID)
		var exported strings.Builder
		_, err := bus.DLQ().Export(t.Context(), &exported, eventbus.LetterQuery{})
		require.NoError(t, err)
		works.Store(true)
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		synctest.Wait()
		_, err = bus.DLQ().Import(t.Context(), strings.NewReader(exported.String()))
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, got.all(), 2)
		requireBalanced(t, bus)
	}, eventbus.WithEncodedPayloads())
}

// An import of many letters beside a handler calls it for none of them.
func TestL8_AnImportOfManyLetters(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := onLetters(t, bus, "**", "tells", nil)
		require.NoError(t, bus.Start(t.Context()))
		n := searching(10_000, 1000)
		var lines strings.Builder
		for range n {
			l := eventbus.DeadLetter{
				ID: eventbus.LetterID(eventbus.NewEventID()), Reason: eventbus.ReasonExhausted, Subscription: "mail", DiedAt: time.Now(),
				Event: eventbus.Event{ID: eventbus.NewEventID(), Type: "order", Time: time.Now()},
			}
			line, err := json.Marshal(&l)
			require.NoError(t, err)
			lines.Write(append(line, '\n'))
		}
		report, err := bus.DLQ().Import(t.Context(), strings.NewReader(lines.String()))
		require.NoError(t, err)
		require.Equal(t, n, report.Imported)
		synctest.Wait()
		require.Empty(t, got.all())
		require.EqualValues(t, 0, bus.Metrics().Ledger.Accepted)
	}, eventbus.WithDeadLetterCapacity(10_000))
}

// Letters of Shutdown call no handler: in memory nothing could run it.
func TestL8_LettersOfShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		mustSubscribe(t, bus, "order", ok)
		got := onLetters(t, bus, "*", "tells", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", "o", eventbus.After(time.Hour))
		require.ErrorContains(t, bus.Shutdown(t.Context()), "scheduled events")
		require.Equal(t, eventbus.ReasonShutdown, oneLetter(t, bus).Reason)
		require.Empty(t, got.all())
		requireBalanced(t, bus)
	})
}

// Whatever ends a delivery with a letter, its handlers get the letter.
func TestL8_EachReason(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := onLetters(t, bus, "**", "tells", nil)
		gone := mustSubscribe(t, bus, "unsubscribed", ok, eventbus.Named("unsubscribed"))
		open := mustSubscribe(t, bus, "open", ok, eventbus.Named("open"), eventbus.DeadLetterWhenOpen)
		id := eventbus.NewEventID()
		mustSubscribe(t, bus, "emits", func(ctx context.Context, e eventbus.Event) error {
			_, err := eventbus.Emit(ctx, "child", "c", eventbus.ID(id))
			return err
		}, eventbus.Named("emits"))
		noting(t, bus, "child")
		full := mustSubscribe(t, bus, "full", ok, eventbus.Named("full"), eventbus.LineCapacity(1), eventbus.DeadLetterWhenFull, eventbus.Concurrency(1))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, gone.Pause())
		require.NoError(t, full.Pause())
		require.NoError(t, open.Trip())
		mustPublish(t, bus, "unsubscribed", "u")
		mustPublish(t, bus, "full", "1")
		mustPublish(t, bus, "full", "2")
		mustPublish(t, bus, "open", "o")
		mustPublish(t, bus, "unrouted", "x", eventbus.ID(id))
		synctest.Wait()
		gone.Unsubscribe()
		mustPublish(t, bus, "emits", "x")
		time.Sleep(time.Minute)
		var reasons []eventbus.Reason
		for _, l := range got.all() {
			reasons = append(reasons, l.Reason)
		}
		require.ElementsMatch(t, []eventbus.Reason{eventbus.ReasonUnsubscribed, eventbus.ReasonOverflow, eventbus.ReasonCircuitOpen, eventbus.ReasonDuplicate}, reasons)
		requireBalanced(t, bus)
	})
}

// diesOnceReleased adds a subscription of which each call waits for the channel, and fails.
func diesOnceReleased(t *testing.T, bus *eventbus.Bus) (release chan struct{}) {
	release = make(chan struct{})
	mustSubscribe(t, bus, "order", func(context.Context, eventbus.Event) error {
		<-release
		return eventbus.Permanent(errDeclined)
	}, eventbus.Timeout(time.Hour), eventbus.Circuit(eventbus.NoCircuit()))
	return release
}

// The queue of a bus in memory has no room for the event of a letter.
func TestL8_AFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		release := diesOnceReleased(t, bus)
		got := onLetters(t, bus, "*", "tells", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", 1)
		synctest.Wait()
		mustPublish(t, bus, "order", 2)
		mustPublish(t, bus, "order", 3)
		release <- struct{}{}
		synctest.Wait()
		close(release)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		over := list(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonOverflow}).Letters
		require.NotEmpty(t, over)
		require.Equal(t, "tells", over[0].Subscription)
		require.Equal(t, "eventbus.dead_letter", over[0].Event.Type)
		require.Len(t, got.all(), 3-len(over))
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// The line of the handler is full.
func TestL8_AFullLine(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		dies(t, bus, "order")
		tells, err := bus.OnDeadLetter("*", func(context.Context, eventbus.DeadLetter) error { return nil }, eventbus.Named("tells"),
			eventbus.LineCapacity(1), eventbus.DeadLetterWhenFull, eventbus.Concurrency(1))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, tells.Pause())
		for range 3 {
			mustPublish(t, bus, "order", nil)
		}
		time.Sleep(time.Minute)
		over := list(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonOverflow}).Letters
		require.Len(t, over, 2)
		require.Equal(t, "tells", over[0].Subscription)
		requireBalanced(t, bus)
	})
}

// The store has the letter with its event, or neither. A process that dies before the handler has run leaves it to the next.
func TestL8_TheLetterAndItsEventAreOneCommit(t *testing.T) {
	for kind, name := range map[storetest.FaultKind]string{storetest.FailBefore: "before", storetest.FailAfter: "after"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failed atomic.Bool
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					if len(b.Bury) > 0 && !failed.Swap(true) {
						require.Len(t, b.New, 1)
						f.Kind = kind
					}
					return f
				}))
				bus, _ := disk.open(t)
				dies(t, bus, "order")
				hangs := make(chan struct{})
				onLetters(t, bus, "*", "tells", func(int) error { <-hangs; return nil }, eventbus.Timeout(time.Hour))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "order", "o")
				time.Sleep(time.Minute)
				require.True(t, failed.Load())
				require.Len(t, letters(t, bus), 1)
				disk.crash(bus)
				close(hangs)

				again, _ := disk.open(t)
				dies(t, again, "order")
				got := onLetters(t, again, "*", "apologizes", nil, eventbus.Formerly("tells"))
				require.NoError(t, again.Start(t.Context()))
				time.Sleep(time.Minute)
				require.Len(t, got.all(), 1)
				require.Equal(t, oneLetter(t, again).ID, got.all()[0].ID)
				require.Empty(t, disk.Dump().Records)
				shutdown(t, again)
			})
		})
	}
}

// The bus with the lease has not the handler. It opens the event for the one of a standby, where it is parked until that has the lease.
func TestL8_AHandlerOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		active, _ := disk.open(t)
		dies(t, active, "order")
		mustSubscribe(t, active, "other", ok, eventbus.Named("only here"))
		require.NoError(t, active.Start(t.Context()))
		standby, _ := disk.open(t, eventbus.WithStandby())
		dies(t, standby, "order")
		got := onLetters(t, standby, "ord*", "tells", nil)
		onLetters(t, standby, "other", "tells others", nil)
		started := make(chan error, 1)
		go func() { started <- standby.Start(t.Context()) }()
		time.Sleep(time.Minute)
		mustPublish(t, active, "order", "o")
		time.Sleep(time.Minute)
		require.Len(t, letters(t, active), 1)
		require.Equal(t, map[string]int64{"tells": 1}, active.Metrics().Orphaned)
		requireBalanced(t, active)
		shutdown(t, active)
		require.NoError(t, <-started)
		time.Sleep(time.Minute)
		require.Len(t, got.all(), 1)
		mustPublish(t, standby, "order", "p")
		time.Sleep(time.Minute)
		require.Len(t, got.all(), 2, "it is one handler, here and in the catalog")
		require.Empty(t, disk.Dump().Records)
		shutdown(t, standby)
	})
}

// A replay with another payload is no letter.
func TestL8_AnEditedLetter(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		dies(t, bus, "order")
		got := onLetters(t, bus, "*", "fails", func(int) error { return eventbus.Permanent(errors.New("failed")) }, eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", "o")
		synctest.Wait()
		own := func() eventbus.DeadLetter {
			t.Helper()
			page := list(t, bus, eventbus.LetterQuery{Subscription: "fails"}).Letters
			require.Len(t, page, 1)
			return page[0]
		}
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), own().ID, "x"))
		synctest.Wait()
		require.Len(t, got.all(), 1)
		last := own().Failures
		require.Contains(t, last[len(last)-1].Error, "cannot become a eventbus.DeadLetter")
		requireBalanced(t, bus)
	})
}

func TestL8_BadInput(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		handle := func(context.Context, eventbus.DeadLetter) error { return nil }
		_, err := bus.OnDeadLetter("*", nil, eventbus.Named("a"))
		require.ErrorIs(t, err, eventbus.ErrNilHandler)
		_, err = bus.OnDeadLetter("[", handle, eventbus.Named("a"))
		require.ErrorIs(t, err, eventbus.ErrInvalidPattern)
		_, err = bus.OnDeadLetter("*", handle, eventbus.Named(""))
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		_, err = bus.OnDeadLetter("*", handle, eventbus.Named("a"), eventbus.StrictDecoding())
		requireOptionError(t, err, "StrictDecoding")
		_, err = (*eventbus.Bus)(nil).OnDeadLetter("*", handle)
		require.ErrorIs(t, err, eventbus.ErrUninitialized)
		mustSubscribe(t, bus, "*", ok, eventbus.Named("a"))
		_, err = bus.OnDeadLetter("*", handle, eventbus.Named("a"))
		require.ErrorIs(t, err, eventbus.ErrDuplicateName)
		_, err = bus.Publish(t.Context(), "eventbus.dead_letter", nil)
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		require.ErrorContains(t, err, "reserved")
	})
}

// A handler that is detached keeps its events for the next one, which must be a handler of letters too.
func TestL8_DetachedAndUnsubscribed(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		dies(t, bus, "order")
		first, err := bus.OnDeadLetter("*", func(context.Context, eventbus.DeadLetter) error { return nil }, eventbus.Named("tells"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, first.Detach())
		mustPublish(t, bus, "order", "o")
		synctest.Wait()
		_, err = bus.Subscribe("*", ok, eventbus.Named("tells"), eventbus.Isolated())
		requireOptionError(t, err, "OnDeadLetter")
		got := onLetters(t, bus, "*", "tells", nil)
		time.Sleep(time.Minute)
		require.Len(t, got.all(), 1)
		all, err := bus.Catalog(t.Context())
		require.NoError(t, err)
		in, found := all.Find("tells")
		require.True(t, found)
		require.True(t, in.DeadLetters)
		require.Len(t, all.Explain("order").Targets, 1, "a plan is that of the event")
		require.Len(t, bus.Explain("order").Targets, 1)
		requireBalanced(t, bus)
	})
}

// upper is a codec that is no JSON.
type upper struct{}

func (upper) Marshal(v any) ([]byte, error) { return []byte(strings.ToUpper(fmt.Sprint(v))), nil }

func (upper) Unmarshal(data []byte, v any) error { *v.(*string) = string(data); return nil }

func TestL8_AnotherCodec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithCodec(upper{}))
		dies(t, bus, "order")
		hangs := make(chan struct{})
		onLetters(t, bus, "*", "tells", func(int) error { <-hangs; return nil }, eventbus.Timeout(time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", "o")
		time.Sleep(time.Minute)
		disk.crash(bus)
		close(hangs)
		again, _ := disk.open(t, eventbus.WithCodec(upper{}))
		dies(t, again, "order")
		got := onLetters(t, again, "*", "tells", nil)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Len(t, got.all(), 1)
		require.Equal(t, eventbus.EncodedPayload("O"), got.all()[0].Event.Payload)
		shutdown(t, again)
	})
}

// A handler that the bus with the lease has, too, under another name, is one.
func TestL8_AHandlerOfBothProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		active, _ := disk.open(t)
		dies(t, active, "order")
		got := onLetters(t, active, "*", "tells", nil)
		require.NoError(t, active.Start(t.Context()))
		standby, _ := disk.open(t, eventbus.WithStandby())
		dies(t, standby, "order")
		onLetters(t, standby, "*", "renamed", nil, eventbus.Formerly("tells"))
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan error, 1)
		go func() { started <- standby.Start(ctx) }()
		time.Sleep(time.Minute)
		mustPublish(t, active, "order", "o")
		time.Sleep(time.Minute)
		require.Len(t, got.all(), 1)
		require.Empty(t, active.Metrics().Orphaned)
		require.Empty(t, disk.Dump().Records)
		cancel()
		require.Error(t, <-started)
		requireBalanced(t, active)
		shutdown(t, standby)
		shutdown(t, active)
	})
}
