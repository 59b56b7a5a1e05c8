package admin_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// healing is a bus whose subscriptions mail and billing take orders. billing fails until it is healed.
type healing struct {
	*eventbus.Bus
	healed atomic.Bool
}

func newHealing(t *testing.T, opts ...eventbus.Option) *healing {
	t.Helper()
	b := &healing{Bus: newBus(t, opts...)}
	_, err := b.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	require.NoError(t, err)
	_, err = b.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		if b.healed.Load() {
			return nil
		}
		return eventbus.Permanent(errDeclined)
	}, eventbus.Named("billing"), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	require.NoError(t, b.Start(t.Context()))
	return b
}

// die returns the letter of a new event.
func (b *healing) die(t *testing.T, opts ...eventbus.PublishOption) eventbus.DeadLetter {
	t.Helper()
	_, err := b.PublishAndWait(t.Context(), "order.placed", order{Number: 1}, opts...)
	var failed *eventbus.DeliveryError
	require.ErrorAs(t, err, &failed)
	return failed.Letters[0]
}

// dieAgain is die for a bus that was healed.
func (b *healing) dieAgain(t *testing.T) eventbus.DeadLetter {
	t.Helper()
	b.healed.Store(false)
	return b.die(t)
}

// After a replay, the page of the event proves that it was handled, by itself, and so does the API.
func TestV5_ThePageTellsWhatBecameOfAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newHealing(t)
		v := newVisitor(t, bus.Bus)
		l := bus.die(t)
		at := prefix + "/events/" + l.Event.ID.String()
		d := v.visit(at)
		require.Contains(t, d.text(), "The event has settled, with 1 dead letter.")
		require.Contains(t, d.text(), "handled by mail at 2000-01-01 00:00:00Z, attempt 1")
		require.Contains(t, d.text(), "dead-lettered at billing at 2000-01-01 00:00:00Z, attempt 1")

		open := watchPage(t, v.h, at, "alice")
		tick()
		require.NotContains(t, open.shows(t), "handled by billing")
		bus.healed.Store(true)
		f := v.visit(prefix+"/letters/"+l.ID.String()).formWith(t, "Replay")
		time.Sleep(time.Second)
		d = v.follow(v.submit(f, "Replay", nil))
		require.Contains(t, d.text(), "This page shows whether the event settles.")
		tick()
		const want = "handled by billing at 2000-01-01 00:00:02Z, attempt 1, replayed by anna"
		require.Contains(t, open.shows(t), want)
		d = v.visit(at)
		require.Contains(t, d.text(), "The event has settled without a dead letter.")
		require.Contains(t, d.text(), want)

		status := get[eventbus.EventStatus](t, v.h, prefix+"/api/v1/events/"+l.Event.ID.String())
		require.Len(t, status.Settled, 3)
		require.Equal(t, want, status.Settled[2].String())
		open.close()
		synctest.Wait()
	})
}

// An event of many deliveries shows the latest ones.
func TestV5_ManyDeliveriesOnAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t)
		for range 60 {
			_, err := bus.Subscribe("x", func(context.Context, eventbus.Event) error { return nil })
			require.NoError(t, err)
		}
		require.NoError(t, bus.Start(t.Context()))
		result, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		d := newVisitor(t, bus).visit(prefix + "/events/" + result.ID.String())
		require.Contains(t, d.text(), "35 deliveries ended before these.")
		require.Equal(t, 25, strings.Count(d.text(), "handled by "))
	})
}

// hostileNames are names of subscriptions and operators, and keys, which have no control characters.
var hostileNames = []string{"<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "\u202egnp.exe\u2066", "../../etc?x=1&y=2#z", strings.Repeat("x&", 127)}

// Names of subscriptions and operators are escaped and cut where the page tells what became of an event.
func TestZ9_HostileNamesOfSettledDeliveries(t *testing.T) {
	for _, text := range hostileNames {
		synctest.Test(t, func(t *testing.T) {
			bus := newBus(t)
			_, err := bus.Subscribe("x", func(_ context.Context, e eventbus.Event) error {
				if e.Key == "" {
					return nil
				}
				return eventbus.Permanent(errors.New(text))
			}, eventbus.Named(text))
			require.NoError(t, err)
			require.NoError(t, bus.Start(t.Context()))
			_, err = bus.PublishAndWait(t.Context(), "x", text, eventbus.Key(text))
			var failed *eventbus.DeliveryError
			require.ErrorAs(t, err, &failed)
			require.NoError(t, bus.DLQ().Replay(t.Context(), failed.Letters[0].ID, eventbus.By(text)))
			synctest.Wait()
			v := newVisitor(t, bus)
			d := v.visit(prefix + "/events/" + failed.Letters[0].Event.ID.String())
			require.Contains(t, d.text(), "replayed by ")
			require.Equal(t, http.StatusOK, d.Code)
		})
	}
}

// The page of a letter lists the replays of its event: who, when, of which operation, what became of it. Links lead to the
// operation, to the event, and from the event back.
func TestL3_ALettersPageListsItsReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newHealing(t)
		v := newVisitor(t, bus.Bus)
		first := bus.die(t)
		require.NotContains(t, v.visit(prefix+"/letters/"+first.ID.String()).text(), "Replays, oldest first")
		time.Sleep(time.Second)
		v.follow(v.submit(v.visit(prefix+"/letters/"+first.ID.String()).formWith(t, "Replay"), "Replay", map[string]string{"why": "a try"}))
		synctest.Wait()
		time.Sleep(time.Second)
		f := v.visit(prefix+"/bulk?action=replay_matching&type=order.*").formWith(t, "Replay 1 letter")
		progress := v.submit(f, "Replay 1 letter", nil).Header().Get("Location")
		synctest.Wait()
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		last := page.Letters[0]
		at := prefix + "/letters/" + last.ID.String()
		d := v.visit(at)
		require.Contains(t, d.text(), "Replays, oldest first")
		require.Regexp(t, `2000-01-01T00:00:01Z .* anna replay of one letter `+first.ID.String()+` died again, and was replayed again`, d.text())
		require.Regexp(t, `2000-01-01T00:00:02Z .* anna bulk replay `+last.ReplayLog[1].Letter.String()+` died again at 2000-01-01 00:00:02Z`, d.text())
		require.Equal(t, progress, d.linkWith(t, "bulk replay"))
		require.Contains(t, v.visit(progress).text(), "done : 1 of 1 letters")
		require.Contains(t, v.visit(prefix+"/events/"+last.Event.ID.String()).text(), "Replays, oldest first")

		// The page of a letter that was replayed tells what became of it. One that is open keeps the letter, and says so.
		open := watchPage(t, v.h, at, "alice")
		tick()
		bus.healed.Store(true)
		time.Sleep(time.Second)
		v.follow(v.submit(d.formWith(t, "Replay"), "Replay", nil))
		tick()
		problem, _, _ := open.said()
		require.Contains(t, problem, `the letter is gone: replay by "anna"`)
		require.Contains(t, open.shows(t), "card declined", "it stays to be read")
		d = v.visit(at)
		require.Contains(t, d.text(), "A replayed letter")
		require.Regexp(t, `What became of it handled by billing at 2000-01-01 00:00:0\dZ, attempt 1, replayed by anna$`, d.text())
		event := v.visit(v.visit(at).linkWith(t, last.Event.ID.String()))
		require.Contains(t, event.text(), first.ID.String()+" left no letter", "the audit has it")
		require.Contains(t, event.links(), at)
		open.close()
		synctest.Wait()

		purged := bus.dieAgain(t)
		require.NoError(t, bus.DLQ().Purge(t.Context(), purged.ID, eventbus.By("ben")))
		require.Contains(t, v.visit(prefix+"/letters/"+purged.ID.String()).text(), "A letter that is gone")
		require.Equal(t, http.StatusNotFound, v.load(prefix+"/letters/"+eventbus.NewEventID().String()).Code)
	})
}

// An event that was replayed in bulk and has settled links to the bulk replays of that operator.
func TestL3_ASettledEventLinksToTheBulkReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newHealing(t)
		l := bus.die(t)
		bus.healed.Store(true)
		_, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true}, eventbus.By("bob"))
		require.NoError(t, err)
		synctest.Wait()
		v := newVisitor(t, bus.Bus)
		d := v.visit(v.visit(prefix+"/events/"+l.Event.ID.String()).linkWith(t, "Bulk replays of the operator who replayed it"))
		require.Contains(t, d.text(), "Replay matching")
		require.Contains(t, d.text(), "bob")
	})
}
