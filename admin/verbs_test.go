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
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// places is a bus with a subscription for each place in which an event may be, named as their patterns.
type places struct {
	*eventbus.Bus
	broken atomic.Bool // waits and held fail while it is set
}

func newPlaces(t *testing.T, opts ...eventbus.Option) *places {
	t.Helper()
	p := &places{Bus: newBus(t, opts...)}
	p.broken.Store(true)
	handle := func(context.Context, eventbus.Event) error {
		if p.broken.Load() {
			return errors.New("the bank is closed")
		}
		return nil
	}
	for name, handler := range map[string]eventbus.Handler{
		"waits": handle, "held": handle, "paused": handle, "then": handle,
		"runs": func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return ctx.Err() },
	} {
		pattern := name
		if name == "then" {
			pattern = "waits"
		}
		_, err := p.Subscribe(pattern, handler, eventbus.Named(name), eventbus.Timeout(1000*time.Hour), eventbus.LineCapacity(2),
			eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
		require.NoError(t, err)
	}
	require.NoError(t, p.Start(t.Context()))
	require.NoError(t, p.Subscription("paused").Pause())
	require.NoError(t, p.Subscription("held").Trip())
	synctest.Wait()
	return p
}

// publish returns the id of an event that has reached its place.
func (p *places) publish(t *testing.T, eventType string, opts ...eventbus.PublishOption) string {
	t.Helper()
	id, err := p.Publish(t.Context(), eventType, nil, opts...)
	require.NoError(t, err)
	synctest.Wait()
	return id.String()
}

// finish waits for an operation that the server runs: with a store, its batches pause between looks at what is on its way.
func (p *places) finish() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// onPlaces runs a test in memory and with a store.
func onPlaces(t *testing.T, test func(t *testing.T, p *places)) {
	t.Helper()
	for _, name := range []string{"memory", "store"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts []eventbus.Option
				if name == "store" {
					opts = append(opts, eventbus.WithStore(storetest.NewModel().Open()))
				}
				test(t, newPlaces(t, append(opts, eventbus.WithIsolation())...))
			})
		})
	}
}

const api = "/api/v1/events/"

// act posts an action, which must succeed.
func act(t *testing.T, h http.Handler, id, verb, body string) eventbus.ActionReport {
	t.Helper()
	r := post[eventbus.ActionReport](t, h, api+id+"/"+verb, body)
	require.Equal(t, id, r.Event.String())
	return r
}

// refusedAction posts an action, which must fail.
func refusedAction(t *testing.T, h http.Handler, id, verb, body string, code admin.Code) *admin.Error {
	t.Helper()
	return refused(t, h, request(t, http.MethodPost, api+id+"/"+verb, body), code)
}

// The API answers with what was found, done and left. The audit has the operator, the reason and the event.
func TestV1_CancelByTheAPI(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		for place, state := range map[string]eventbus.DispatchState{"waits": eventbus.DispatchWaiting, "paused": eventbus.DispatchParked, "runs": eventbus.DispatchRunning} {
			id := p.publish(t, place)
			r := act(t, h, id, "cancel", `{"why":"sent by hand","subscription":"`+place+`"}`)
			require.NotEmpty(t, r.Deliveries)
			require.Equal(t, []any{place, state, true}, []any{r.Deliveries[0].Subscription, r.Deliveries[0].State, r.Deliveries[0].Done})
			entry := lastAudit(t, p.Bus)
			require.Equal(t, []any{eventbus.AuditCancel, "anna", "sent by hand", id, place}, []any{entry.Action, entry.By, entry.Why, entry.Event.String(), entry.Subscription})
			require.NotEmpty(t, entry.RequestID)
		}
		id := p.publish(t, "waits", eventbus.After(time.Hour))
		require.True(t, act(t, h, id, "cancel", `{}`).Forgotten)
		require.Zero(t, p.Metrics().DeadLetters)
	})
}

// A second request finds nothing: it does no harm and says so.
func TestV1_TwiceByTheAPI(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		for verb, code := range map[string]admin.Code{"cancel": admin.CodeSettled, "give-up": admin.CodeSettled} {
			id := p.publish(t, "waits", eventbus.ID(eventbus.NewEventID()))
			act(t, h, id, verb, `{}`)
			before := len(audits(t, p.Bus))
			e := refusedAction(t, h, id, verb, `{}`, code)
			require.Contains(t, e.Message, "settled")
			require.Len(t, audits(t, p.Bus), before, "nothing was done")
			_ = refusedAction(t, h, id, "retry", `{}`, admin.CodeSettled)
		}
	})
}

func audits(t *testing.T, bus *eventbus.Bus) []eventbus.AuditEntry {
	t.Helper()
	page, err := bus.Audit(t.Context(), eventbus.AuditQuery{})
	require.NoError(t, err)
	return page.Entries
}

// A retry that waits goes on. What is held needs probe, and what an operator has paused stays: the error says why, and
// what to do.
func TestV2_RetryByTheAPI(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		id := p.publish(t, "waits")
		p.broken.Store(false)
		r := act(t, h, id, "retry", `{"why":"the bank is open"}`)
		require.Len(t, r.Deliveries, 2)
		require.True(t, r.Deliveries[0].Done && r.Deliveries[1].Done)
		require.Equal(t, eventbus.AuditRetryNow, lastAudit(t, p.Bus).Action)
		synctest.Wait()
		require.Zero(t, p.Metrics().WaitingRetries)

		held := p.publish(t, "held")
		e := refusedAction(t, h, held, "retry", `{}`, admin.CodeNothingDone)
		require.Equal(t, "nothing was done: held is parked: it is held", e.Message)
		require.Equal(t, "Probe tries it nevertheless", e.Remedy)
		require.Len(t, e.Report.Deliveries, 1)
		require.Equal(t, eventbus.ParkCircuit, e.Report.Deliveries[0].Parked)
		require.True(t, act(t, h, held, "retry", `{"probe":true}`).Deliveries[0].Done)
		synctest.Wait()
		require.Zero(t, p.Metrics().Held, "its success closes the circuit")

		paused := p.publish(t, "paused")
		e = refusedAction(t, h, paused, "retry", `{"probe":true}`, admin.CodeNothingDone)
		require.Equal(t, []string{"nothing was done: paused is parked: an operator has paused the subscription", "Resume ends that"}, []string{e.Message, e.Remedy})

		running := p.publish(t, "runs")
		d := act(t, h, running, "retry", `{}`).Deliveries[0]
		require.Equal(t, []any{false, ""}, []any{d.Done, d.Left}, "it goes on anyway, which is no error")
	})
}

// Behind an earlier delivery of its key, and in a full line, a held delivery is left. It says so.
func TestV2_RetryOfAHeldKeyAndAFullLine(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		p.publish(t, "held", eventbus.Key("k"))
		behind := p.publish(t, "held", eventbus.Key("k"))
		e := refusedAction(t, h, behind, "retry", `{"probe":true}`, admin.CodeNothingDone)
		require.Contains(t, e.Message, "another delivery probes, or has to go before it because they have the same key")
		full := p.publish(t, "held", eventbus.Key("other")) // the line takes two
		status, err := p.Event(t.Context(), eventID(t, full))
		require.NoError(t, err)
		w := serve(h, request(t, http.MethodPost, api+full+"/retry", `{"probe":true}`))
		if status.IsSettled() { // in memory it was given up when it met the full line
			_ = errorIn(t, w, admin.CodeSettled)
			return
		}
		require.Contains(t, []int{http.StatusOK, http.StatusConflict}, w.Code, "%s", w.Body)
		require.Contains(t, w.Body.String(), `"subscription":"held"`)
	})
}

func eventID(t *testing.T, text string) eventbus.EventID {
	t.Helper()
	id, err := eventbus.ParseEventID(text)
	require.NoError(t, err)
	return id
}

// What waits becomes dead letters with the reason operator. A running call is left.
func TestV3_GiveUpByTheAPI(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		id := p.publish(t, "waits")
		require.True(t, act(t, h, id, "give-up", `{"why":"the customer has left","subscription":"waits"}`).Deliveries[0].Done)
		letters, err := p.DLQ().List(t.Context(), eventbus.LetterQuery{Event: eventID(t, id)})
		require.NoError(t, err)
		require.Len(t, letters.Letters, 1)
		require.Equal(t, eventbus.ReasonOperator, letters.Letters[0].Reason)
		require.Equal(t, eventbus.AuditGiveUp, lastAudit(t, p.Bus).Action)

		e := refusedAction(t, h, p.publish(t, "runs"), "give-up", `{}`, admin.CodeNothingDone)
		require.Equal(t, "Cancel ends the call", e.Remedy)
	})
}

// An action on one delivery leaves the others. One for a subscription that has none is told from an unknown event.
func TestV4_OneDeliveryByTheAPI(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		id := p.publish(t, "waits", eventbus.ID(eventbus.NewEventID()))
		require.Len(t, get[eventbus.EventStatus](t, h, api+id).Dispatches, 2)
		require.Len(t, act(t, h, id, "cancel", `{"subscription":"then"}`).Deliveries, 1)
		left := get[eventbus.EventStatus](t, h, api+id).Dispatches
		require.Len(t, left, 1)
		require.Equal(t, "waits", left[0].Subscription)
		for _, name := range []string{"then", "nobody"} {
			e := refusedAction(t, h, id, "give-up", `{"subscription":"`+name+`"}`, admin.CodeSettled)
			require.Equal(t, `nothing of the event is left for the subscription "`+name+`"`, e.Message)
		}
	})
}

// Of two operators with contrary actions one is first, and the other learns that nothing is left.
func TestV4_ContraryOperators(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		for range 20 {
			id := p.publish(t, "paused", eventbus.ID(eventbus.NewEventID()))
			answers := make(chan int, 2)
			for _, verb := range []string{"cancel", "give-up"} {
				go func() { answers <- serve(h, request(t, http.MethodPost, api+id+"/"+verb, `{}`)).Code }()
			}
			codes := []int{<-answers, <-answers}
			require.Contains(t, codes, http.StatusOK)
			require.Subset(t, []int{http.StatusOK, http.StatusConflict, http.StatusNotFound}, codes)
			require.NotEqual(t, codes[0], codes[1], "one of them was first")
			require.Empty(t, status(t, p.Bus, id).Dispatches)
		}
		l := p.Metrics().Ledger
		require.EqualValues(t, 20, l.Cancelled+l.DeadLettered)
	})
}

// status returns what is left of an event, which may be forgotten.
func status(t *testing.T, bus *eventbus.Bus, id string) eventbus.EventStatus {
	t.Helper()
	s, err := bus.Event(t.Context(), eventID(t, id))
	require.True(t, err == nil || errors.Is(err, eventbus.ErrUnknownEvent), err)
	return s
}

// An event that settles while the operator decides is no error of the operator's: the answer says what became of it.
func TestV1_AnEventThatSettlesMeanwhile(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		id := p.publish(t, "waits", eventbus.ID(eventbus.NewEventID()))
		p.broken.Store(false)
		time.Sleep(2 * time.Hour)
		for _, verb := range []string{"cancel", "retry", "give-up"} {
			e := refusedAction(t, h, id, verb, `{}`, admin.CodeSettled)
			require.Equal(t, "look at the event", e.Remedy)
		}
	})
}

// A tool beside the bus asks it. One whose bus does not answer says so, and nothing is done.
func TestV4_ActionsOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		p := newPlaces(t, eventbus.WithStore(model.Open()))
		h := newHandler(t, newTool(t, model))
		id := p.publish(t, "waits")
		r := act(t, h, id, "give-up", `{"why":"by the tool"}`)
		require.True(t, r.Deliveries[0].Done)
		require.Equal(t, []string{"anna", "by the tool"}, []string{lastAudit(t, p.Bus).By, lastAudit(t, p.Bus).Why})
		held := p.publish(t, "held")
		require.Equal(t, "Probe tries it nevertheless", refusedAction(t, h, held, "retry", `{}`, admin.CodeNothingDone).Remedy)
		require.True(t, act(t, h, held, "cancel", `{}`).Deliveries[0].Done)
	})
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		p := newPlaces(t, eventbus.WithStore(model.Open()))
		id := p.publish(t, "paused")
		require.NoError(t, p.Shutdown(t.Context()))
		hung := model.Open() // it has the lease, and answers nothing
		_, err := hung.Acquire(t.Context(), driver.AcquireQuery{Wait: true})
		require.NoError(t, err)
		defer func() { require.NoError(t, hung.Close(context.WithoutCancel(t.Context()))) }()
		tool := newTool(t, model)
		e := refusedAction(t, newHandler(t, tool), id, "cancel", `{}`, admin.CodeConflict)
		require.Contains(t, e.Message, "does not answer; nothing was done")
		require.Len(t, status(t, tool, id).Dispatches, 1)
	})
}

// While the store fails, the answer has nothing of its error, and the event stays. When it works again, so does the action.
func TestV4_WhileTheStoreFails(t *testing.T) {
	for _, verb := range []string{"give-up", "cancel"} {
		synctest.Test(t, func(t *testing.T) {
			var fails atomic.Bool
			model := storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
				if !fails.Load() || len(b.Audit) == 0 {
					return storetest.Fault{}
				}
				return storetest.Fault{Kind: storetest.FailBefore}
			}))
			p := newPlaces(t, eventbus.WithStore(model.Open()))
			h := newHandler(t, p.Bus)
			id := p.publish(t, "paused")
			fails.Store(true)
			e := refusedAction(t, h, id, verb, `{"why":"a test"}`, admin.CodeStoreFailed)
			require.NotContains(t, e.Message, "fault")
			fails.Store(false)
			time.Sleep(time.Minute) // it reopens
			require.Len(t, status(t, p.Bus, id).Dispatches, 1)
			require.True(t, act(t, h, id, verb, `{}`).Deliveries[0].Done)
		})
	}
}

// Each action has a permission of its own, and a refused one is in the audit with its event.
func TestV4_PermissionsOfActions(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus, admin.WithAuthorizer(byRole))
		id := p.publish(t, "paused")
		for verb, needs := range map[string]admin.Action{"cancel": admin.ActionCancel, "retry": admin.ActionRetry, "give-up": admin.ActionGiveUp} {
			for _, granted := range []admin.Action{admin.ActionView, admin.ActionCancel, admin.ActionRetry, admin.ActionGiveUp} {
				if granted != needs {
					_ = refused(t, h, as(granted, request(t, http.MethodPost, api+id+"/"+verb, `{}`)), admin.CodeForbidden)
				}
			}
			entry := lastAudit(t, p.Bus)
			require.Equal(t, []any{"forbidden", id, strings.ReplaceAll(verb, "-", "_")}, []any{entry.Denied, entry.Event.String(), strings.TrimSuffix(string(entry.Action), "_now")})
		}
		require.Len(t, status(t, p.Bus, id).Dispatches, 1)
	})
}
