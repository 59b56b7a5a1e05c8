package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

// begin begins an operation.
func begin(t *testing.T, h http.Handler, body string) admin.Operation {
	t.Helper()
	return post[admin.Operation](t, h, "/api/v1/operations", body)
}

// finished waits until an operation has ended.
func finished(t *testing.T, h http.Handler, op admin.Operation) admin.Operation {
	t.Helper()
	require.Eventually(t, func() bool {
		op = get[admin.Operation](t, h, "/api/v1/operations/"+op.ID)
		return op.State != admin.OperationRunning
	}, time.Minute, time.Millisecond)
	return op
}

// state returns an operation when the bubble of the test is at rest.
func state(t *testing.T, h http.Handler, op admin.Operation) admin.Operation {
	t.Helper()
	synctest.Wait()
	return get[admin.Operation](t, h, "/api/v1/operations/"+op.ID)
}

func TestOperations_RunAfterTheirRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		_ = bus.die(t, 3)
		close(bus.healed)

		ctx, cancel := context.WithCancel(t.Context())
		r := request(t, http.MethodPost, "/api/v1/operations", `{"action":"replay_matching","query":{"type":"order.*"},"expect":3,"rate":1,"why":"fixed"}`).WithContext(ctx)
		w := serve(h, r)
		cancel() // the request is over, and its client has gone
		require.Equal(t, http.StatusAccepted, w.Code, w.Body)
		var op admin.Operation
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &op))

		op = state(t, h, op)
		require.Equal(t, admin.OperationRunning, op.State)
		require.Equal(t, 1, op.Done)
		require.Equal(t, 3, op.Total)
		require.Equal(t, time.Now().UTC(), op.Query.Until, "the set is fixed")
		time.Sleep(2 * time.Second)
		op = state(t, h, op)
		require.Equal(t, admin.OperationDone, op.State)
		require.Equal(t, 3, op.ReplayReport.Replayed)
		require.Equal(t, "anna", op.By)
		require.Equal(t, 2*time.Second, op.EndedAt.Sub(op.StartedAt))
		require.Zero(t, bus.letters(t))

		page := get[admin.OperationPage](t, h, "/api/v1/operations")
		require.Equal(t, 1, page.Total)
		require.Equal(t, op, page.Operations[0])
	})
}

func TestOperations_AreCancelledAndStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		_ = bus.die(t, 5)

		op := begin(t, h, `{"action":"purge_matching","query":{"all":true},"expect":5,"rate":1}`)
		synctest.Wait()
		r := request(t, http.MethodPost, "/api/v1/operations/"+op.ID+"/cancel", `{"why":"wrong filter"}`)
		r.Header.Set("X-Test-User", "ben")
		require.Equal(t, http.StatusOK, serve(h, r).Code)
		op = state(t, h, op)
		require.Equal(t, admin.OperationCancelled, op.State)
		require.Equal(t, "ben", op.CancelledBy)
		require.Equal(t, 1, op.PurgeReport.Purged)
		require.Equal(t, 4, bus.letters(t))
		_ = refused(t, h, request(t, http.MethodPost, "/api/v1/operations/"+op.ID+"/cancel", `{}`), admin.CodeConflict)

		op = begin(t, h, `{"action":"replay_matching","query":{"all":true},"expect":4,"rate":1,"stop_after":2}`)
		time.Sleep(time.Minute)
		op = state(t, h, op)
		require.Equal(t, admin.OperationStopped, op.State)
		require.Equal(t, 2, op.Failed)

		op = begin(t, h, `{"action":"purge_matching","query":{"all":true},"expect":4,"dry_run":true}`)
		require.Equal(t, admin.OperationDone, state(t, h, op).State)
		require.Equal(t, 4, bus.letters(t))
	})
}

func TestOperations_EndWithTheBus(t *testing.T) {
	for _, action := range []string{"replay_matching", "purge_matching"} {
		synctest.Test(t, func(t *testing.T) {
			bus := newFailing(t)
			h := newHandler(t, bus.Bus)
			_ = bus.die(t, 3)
			op := begin(t, h, `{"action":"`+action+`","query":{"all":true},"expect":3,"rate":0.001}`)
			synctest.Wait()
			require.NoError(t, bus.Shutdown(t.Context()))
			op = state(t, h, op)
			require.Equal(t, admin.OperationFailed, op.State)
			require.Equal(t, admin.CodeShutDown, op.Error.Code)
			require.Equal(t, 1, op.Done)
			if action == "replay_matching" {
				w := serve(h, request(t, http.MethodPost, "/api/v1/letters/"+op.ID+"/replay", `{}`))
				require.Equal(t, http.StatusServiceUnavailable, w.Code, w.Body)
			}
		})
	}
}

func TestOperations_OfTwoOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		_ = bus.die(t, 4)
		const body = `{"action":"purge_matching","query":{"subscription":"billing"},"rate":1,"expect":`
		op := begin(t, h, body+"4}")
		synctest.Wait()
		e := refused(t, h, request(t, http.MethodPost, "/api/v1/operations", body+"3}"), admin.CodeConflict)
		require.Contains(t, e.Message, op.ID)
		e = refused(t, h, request(t, http.MethodPost, "/api/v1/operations", body+"4}"), admin.CodeConflict) // a double click
		require.Contains(t, e.Message, op.ID)
		e = refused(t, h, request(t, http.MethodPost, "/api/v1/operations", `{"action":"purge_matching","query":{"all":true},"expect":4}`), admin.CodeStaleCount)
		require.Contains(t, e.Message, "3 letters match now, not 4")

		other := begin(t, h, `{"action":"purge_matching","query":{"all":true},"expect":3}`)
		require.Equal(t, 3, state(t, h, other).PurgeReport.Purged)
		time.Sleep(time.Minute)
		op = state(t, h, op)
		require.Equal(t, admin.OperationDone, op.State)
		require.Equal(t, 3, op.PurgeReport.Gone)
	})
}

func TestOperations_AreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		_ = bus.die(t, 2)
		for range 4 {
			_ = begin(t, h, fmt.Sprintf(`{"action":"purge_matching","query":{"since":%q},"expect":%d,"rate":0.000001}`,
				time.Now().Add(-time.Hour).Format(time.RFC3339Nano), bus.letters(t)))
			time.Sleep(time.Millisecond)
			_ = bus.die(t, 1)
		}
		_ = refused(t, h, request(t, http.MethodPost, "/api/v1/operations", `{"action":"replay_matching","query":{"reason":"crash"},"expect":0}`), admin.CodeConflict)
		running := get[admin.OperationPage](t, h, "/api/v1/operations")
		for _, op := range running.Operations {
			_ = post[admin.Operation](t, h, "/api/v1/operations/"+op.ID+"/cancel", `{}`)
		}
		synctest.Wait()
		for range 120 {
			_ = begin(t, h, `{"action":"replay_matching","query":{"reason":"crash"},"expect":0}`)
			synctest.Wait()
		}
		page := get[admin.OperationPage](t, h, "/api/v1/operations?limit=60&offset=60")
		require.Equal(t, 100, page.Total)
		require.Len(t, page.Operations, 40)
		require.Zero(t, page.Next)
	})
}

// Each letter is replayed once, however many operators press the button.
func TestLetters_ReplayedByManyOperators(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	id := bus.die(t, 1)[0].ID.String()
	close(bus.healed)
	codes := make(chan int, 8)
	var all sync.WaitGroup
	for range cap(codes) {
		all.Go(func() { codes <- serve(h, request(t, http.MethodPost, "/api/v1/letters/"+id+"/replay", `{}`)).Code })
	}
	all.Wait()
	close(codes)
	count := make(map[int]int)
	for code := range codes {
		count[code]++
	}
	require.Equal(t, 1, count[http.StatusOK])
	require.Equal(t, cap(codes)-1, count[http.StatusConflict]+count[http.StatusNotFound], count)
	require.EqualValues(t, 1, bus.Metrics().Ledger.Replays)
}

func TestLetters_OfAMissingSubscription(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	id := bus.die(t, 1)[0].ID.String()
	bus.Subscription("billing").Unsubscribe()
	_ = refused(t, h, request(t, http.MethodPost, "/api/v1/letters/"+id+"/replay", `{}`), admin.CodeNoSubscription)
	op := begin(t, h, `{"action":"replay_matching","query":{"all":true},"expect":1}`)
	op = finished(t, h, op)
	require.Equal(t, admin.OperationDone, op.State)
	require.Len(t, op.ReplayReport.Stayed, 1)
	require.Equal(t, 1, op.Done)
	require.Equal(t, 1, bus.letters(t))
	preview := get[eventbus.ReplayPreview](t, h, "/api/v1/preview")
	require.Equal(t, 1, preview.Missing)
}

// A destination that is not well is on the page of its subscription, with its directives.
func TestO6_DestinationsAreShownAndDirected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t)
		s, err := bus.Subscribe("hook", func(_ context.Context, e eventbus.Event) error {
			if e.Payload == "other" {
				return eventbus.Permanent(errDeclined)
			}
			return nil
		}, eventbus.Named("hooks"),
			eventbus.PerDestination(func(e eventbus.Event) string { return e.Payload.(string) }))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Destination("acme <&>").Pause(eventbus.By("ann"), eventbus.Because("their migration")))
		for _, to := range []string{"acme <&>", "acme <&>", "other"} {
			_, err = bus.Publish(t.Context(), "hook", to)
			require.NoError(t, err)
		}
		synctest.Wait()
		v := newVisitor(t, bus)
		d := v.visit(prefix + "/subscriptions/hooks")
		require.Contains(t, d.text(), "2 known, 1 not well")
		require.Contains(t, d.text(), "their migration")
		require.Contains(t, v.visit(prefix).text(), "hooks to acme <&> is paused 2 deliveries are held.", "it needs attention")
		d = v.follow(v.submit(d.formWith(t, "Resume"), "Resume", nil))
		require.Contains(t, d.text(), "2 known, 0 not well")
		require.NotContains(t, v.visit(prefix).text(), "acme <&> is paused")
		synctest.Wait()
		require.EqualValues(t, 2, bus.Metrics().Subscriptions[0].Successes)

		h := newHandler(t, bus)
		m := post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/hooks/pause", `{"destination":"other"}`)
		require.False(t, m.Paused)
		require.Equal(t, "other", m.Destinations.List[0].Destination)
		require.EqualValues(t, 1, m.Destinations.List[0].Failures)
		require.Contains(t, v.visit(prefix+"/subscriptions/hooks").text(), " 1 1 100 % 0", "calls, failures, failure rate, parked")
		require.Contains(t, v.visit(prefix+"/audit").text(), "subscription hooks destination other")
		audit, err := bus.Audit(t.Context(), eventbus.AuditQuery{})
		require.NoError(t, err)
		require.Equal(t, "other", audit.Entries[0].Destination)
	})
}

// The page says which subscriptions are of dead letters.
func TestO6_HandlersOfDeadLettersAreMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t)
		_, err := bus.OnDeadLetter("order.*", func(context.Context, eventbus.DeadLetter) error { return nil }, eventbus.Named("apologies"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		v := newVisitor(t, bus)
		require.Contains(t, v.visit(prefix+"/subscriptions").text(), "order.* dead letters")
		require.Contains(t, v.visit(prefix+"/subscriptions/apologies").text(), "of the types of dead letters")
		m := get[eventbus.SubscriptionMetrics](t, newHandler(t, bus), "/api/v1/subscriptions/apologies")
		require.True(t, m.DeadLetters)
		require.NoError(t, bus.Shutdown(t.Context()))
	})
}

// linkWith returns the target of the link of a page that has a text.
func (d *document) linkWith(t *testing.T, text string) string {
	t.Helper()
	for _, e := range d.all("a") {
		if strings.TrimSpace(e.text) == text {
			return e.attrs["href"]
		}
	}
	require.Fail(t, "no link", "no link %q: %s", text, d.text())
	return ""
}

// The page of an operation shows how fast it is and how long it takes, what died again, and how to go on.
func TestOperations_AreFollowedToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		v := newVisitor(t, bus.Bus)
		_ = bus.die(t, 10)
		time.Sleep(time.Second)
		d := v.visit(prefix + "/bulk?action=replay_matching&subscription=billing&reason=permanent")
		d = v.submit(d.formWith(t, "Replay 10 letters"), "Replay 10 letters", map[string]string{"rate": "2", "stop_after": "5", "why": "a try"})
		at := d.Header().Get("Location")
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait()
		_ = bus.die(t, 7) // for the first time
		d = v.visit(at)
		require.Contains(t, d.text(), "running : 3 of 10 letters")
		require.Contains(t, d.text(), "Duration 1.2 s, about 2.8 s left")
		require.Contains(t, d.text(), "Rate 2.5 letters per second")
		require.NotEmpty(t, v.visit(d.linkWith(t, "3 letters")))

		time.Sleep(time.Minute)
		d = v.visit(at)
		require.Contains(t, d.text(), "stopped : 5 of 10 letters, 5 failures")
		require.Contains(t, d.text(), "Duration 2 s By", "it does not grow")
		again := v.visit(d.linkWith(t, "5 letters"))
		require.Contains(t, again.text(), "5 letters", "those of the operation only")
		require.NotEmpty(t, v.visit(again.linkWith(t, "Replay all matching…")).formWith(t, "Replay 5 letters"))

		d = v.visit(d.linkWith(t, "Go on with the rest"))
		f := d.formWith(t, "Replay 5 letters")
		require.Equal(t, "2", f.values.Get("rate"))
		require.Equal(t, "5", f.values.Get("stop_after"))
		require.Equal(t, "a try", f.values.Get("why"))
		close(bus.healed)
		d = v.submit(f, "Replay 5 letters", nil)
		time.Sleep(time.Minute)
		d = v.follow(d)
		require.Contains(t, d.text(), "done : 5 of 5 letters, 0 failures")
		require.Contains(t, d.text(), "Died again 0 letters")
		require.NotContains(t, d.text(), "Go on with the rest")
		require.Equal(t, 12, bus.letters(t), "5 died again, and 7 are new")
	})
}

// An operation whose query a redactor changes offers no form for the rest: it would be of other letters.
func TestOperations_TheRestIsNotOfAnotherQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		v := newVisitor(t, bus.Bus, admin.WithRedactor(func(text admin.Text) string { return strings.ReplaceAll(text.Value, "declined", "…") }))
		_ = bus.die(t, 3)
		for query, offered := range map[string]bool{`{"error":"card declined"}`: false, `{"error":"card"}`: true} {
			op := post[admin.Operation](t, v.h, prefix+"/api/v1/operations", fmt.Sprintf(`{"action":"purge_matching","query":%s,"expect":%d,"rate":0.001}`, query, bus.letters(t)))
			_ = post[admin.Operation](t, v.h, prefix+"/api/v1/operations/"+op.ID+"/cancel", `{}`)
			synctest.Wait()
			text := v.visit(prefix + "/operations/" + op.ID).text()
			require.Regexp(t, `cancelled : [01] of [1-3] letters`, text, "also before it has fixed its set")
			require.Equal(t, offered, strings.Contains(text, "Go on"), query)
		}
	})
}
