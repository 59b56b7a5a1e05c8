package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/storetest"
)

// ended returns an operation that has ended.
func ended(t *testing.T, h http.Handler, op admin.Operation) admin.Operation {
	t.Helper()
	synctest.Wait()
	op = get[admin.Operation](t, h, "/api/v1/operations/"+op.ID)
	require.NotEqual(t, admin.OperationRunning, op.State)
	return op
}

// An event is found by its type and its idempotency key, by the page and the API. Without such an event the page says so, and keeps what was typed.
func TestO6_AnEventIsFoundByItsKeyOnThePage(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		v := newVisitor(t, p.Bus)
		id := p.publish(t, "paused", eventbus.IdempotencyKey("checkout-17"), eventbus.Key("customer"))
		page := prefix + "/events"
		d := v.visit(page)
		require.Contains(t, d.text(), "Find by idempotency key")
		find := func(eventType, key string) *document {
			return v.load(page + "?" + url.Values{"find_type": {eventType}, "find_idempotency_key": {key}}.Encode())
		}
		d = find("paused", "checkout-17")
		require.Equal(t, http.StatusSeeOther, d.Code)
		require.Contains(t, v.visit(d.Header().Get("Location")).text(), "This event has the idempotency key.")
		require.Contains(t, d.Header().Get("Location"), id)
		for _, typed := range [][2]string{{"paused", "customer"}, {"waits", "checkout-17"}} {
			d = find(typed[0], typed[1])
			require.Equal(t, http.StatusNotFound, d.Code)
			require.Contains(t, d.text(), "no event of this type is known by this idempotency key")
			require.Contains(t, d.Body.String(), `value="`+typed[1]+`"`)
		}
		for _, typed := range [][2]string{{"", "checkout-17"}, {"paused", ""}, {"a*", "k"}, {"paused", strings.Repeat("k", 300)}} {
			require.Equal(t, http.StatusBadRequest, find(typed[0], typed[1]).Code, typed)
		}
		for _, name := range hostileNames {
			require.Contains(t, []int{http.StatusNotFound, http.StatusBadRequest}, find("paused", name).Code, name)
		}

		status := get[eventbus.EventStatus](t, v.h, prefix+"/api/v1/events?type=paused&idempotency_key=checkout-17")
		require.Equal(t, id, status.ID.String())
		require.Len(t, status.Dispatches, 1)
		_ = refused(t, v.h, request(t, http.MethodGet, prefix+"/api/v1/events?type=paused&idempotency_key=x", ""), admin.CodeNotFound)
		_ = refused(t, v.h, request(t, http.MethodGet, prefix+"/api/v1/events?type=paused", ""), admin.CodeBadRequest)
	})
}

// An event of which only the key is left has settled, and its page says so.
func TestO6_AKeyOfAForgottenEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		p := newPlaces(t, eventbus.WithStore(model.Open()))
		p.broken.Store(false)
		p.publish(t, "waits", eventbus.IdempotencyKey("k"))
		require.NoError(t, p.Shutdown(t.Context()))
		v := newVisitor(t, newTool(t, model))
		d := v.load(prefix + "/events?find_type=waits&find_idempotency_key=k")
		require.Contains(t, v.visit(d.Header().Get("Location")).text(), "has the idempotency key")
	})
}

// Each bulk action has a preview and a report. The audit has its query.
func TestV4_BulkActionsByTheAPI(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		p.publish(t, "waits", eventbus.Key("a"))
		p.publish(t, "waits", eventbus.Key("b"))
		p.publish(t, "paused")
		p.publish(t, "runs")
		preview := get[eventbus.ActionPreview](t, h, "/api/v1/dispatches/preview?type=waits")
		require.Equal(t, 2, preview.Matched)
		require.Equal(t, 4, preview.States[eventbus.DispatchWaiting])

		op := ended(t, h, begin(t, h, `{"action":"retry_now_matching","dispatches":{"error":"the bank is closed","key":"a"},"expect":1,"why":"the bank is open"}`))
		require.Equal(t, admin.OperationDone, op.State)
		require.Equal(t, []int{1, 1, 1}, []int{op.Total, op.Done, op.ActionsReport.Done})
		entry := lastAudit(t, p.Bus)
		require.Equal(t, []any{eventbus.AuditRetryNow, "anna", "the bank is open", "a", op.ID}, []any{entry.Action, entry.By, entry.Why, entry.Dispatches.Key, entry.RequestID})
		require.Equal(t, 1, entry.Outcome.Done)

		op = ended(t, h, begin(t, h, `{"action":"give_up_matching","dispatches":{"all":true},"expect":9}`))
		require.Equal(t, []int{4, 3, 1}, []int{op.ActionsReport.Matched, op.ActionsReport.Done, op.ActionsReport.Left}, "fewer than expected is no error")
		require.Len(t, op.ActionsReport.Reasons, 1)
		op = ended(t, h, begin(t, h, `{"action":"cancel_matching","dispatches":{"state":"running"},"expect":1,"dry_run":true}`))
		require.Equal(t, []int{1, 0}, []int{op.Total, op.ActionsReport.Done})
		op = ended(t, h, begin(t, h, `{"action":"cancel_matching","dispatches":{"state":"running"},"expect":1}`))
		require.Equal(t, 1, op.ActionsReport.Done)
		op = ended(t, h, begin(t, h, `{"action":"cancel_matching","dispatches":{"state":"running"},"expect":0}`))
		require.Equal(t, []any{admin.OperationDone, 0}, []any{op.State, op.ActionsReport.Matched}, "nothing matches")
	})
}

// A request that is not sound changes nothing, and says what to send.
func TestV4_BadBulkActionsByTheAPI(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus)
		p.publish(t, "paused")
		p.publish(t, "paused")
		known := len(audits(t, p.Bus))
		for body, code := range map[string]admin.Code{
			`{"action":"cancel_matching","dispatches":{},"expect":2}`:                                                    admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"published_until":"2099-01-01T00:00:00Z"}}`:                       admin.CodeBadRequest,
			`{"action":"cancel_matching","expect":2}`:                                                                    admin.CodeBadRequest,
			`{"action":"cancel_matching","query":{"all":true},"expect":2}`:                                               admin.CodeBadRequest,
			`{"action":"cancel_matching","query":{"type":"a"},"dispatches":{"all":true},"expect":2}`:                     admin.CodeBadRequest,
			`{"action":"replay_matching","query":{"all":true},"dispatches":{"all":true},"expect":0}`:                     admin.CodeBadRequest,
			`{"action":"purge_matching","query":{"all":true},"probe":true,"expect":0}`:                                   admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"all":true},"probe":true,"expect":2}`:                             admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"all":true},"stop_after":1,"expect":2}`:                           admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"all":true},"rate":-1,"expect":2}`:                                admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"all":true,"limit":1},"expect":2}`:                                admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"all":true,"payloads":true},"expect":2}`:                          admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"state":"gone"},"expect":2}`:                                      admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"type":"a..b"},"expect":2}`:                                       admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"other":"a"},"expect":2}`:                                         admin.CodeBadRequest,
			`{"action":"trip_matching","dispatches":{"all":true},"expect":2}`:                                            admin.CodeBadRequest,
			`{"action":"cancel_matching","dispatches":{"all":true},"expect":1}`:                                          admin.CodeStaleCount,
			`{"action":"cancel_matching","dispatches":{"all":true},"expect":2,"why":"` + strings.Repeat("x", 300) + `"}`: admin.CodeBadRequest,
		} {
			_ = refused(t, h, request(t, http.MethodPost, "/api/v1/operations", body), code)
		}
		require.Len(t, audits(t, p.Bus), known)
		require.Equal(t, 2, get[eventbus.ActionPreview](t, h, "/api/v1/dispatches/preview").Matched)
		_ = refused(t, h, request(t, http.MethodGet, "/api/v1/dispatches/preview?limit=1", ""), admin.CodeBadRequest)
	})
}

// The list of events leads to a page that shows what matches, asks, and begins an operation with a fixed set.
func TestV4_BulkActionsOnThePage(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		v := newVisitor(t, p.Bus)
		p.publish(t, "waits", eventbus.Key("a"))
		p.publish(t, "waits", eventbus.Key("b"))
		d := v.visit(v.visit(prefix+"/events?type=waits").linkWith(t, "Cancel all matching…"))
		for _, text := range []string{"2 events match", "Type, a pattern waits", "cannot be restored", "Waiting 4"} {
			require.Contains(t, d.text(), text)
		}
		f := d.formWith(t, "Cancel: 2 events")
		time.Sleep(time.Second)
		p.publish(t, "waits", eventbus.Key("c"))
		unconfirmed := v.submit(f, "Cancel: 2 events", map[string]string{"why": "ordered twice"})
		require.Equal(t, http.StatusBadRequest, unconfirmed.Code)
		require.Contains(t, unconfirmed.text(), "type 2 to cancel")
		require.Equal(t, "ordered twice", unconfirmed.formWith(t, "Cancel: 2 events").values.Get("why"))
		d = v.submit(f, "Cancel: 2 events", map[string]string{"confirm": "2", "why": "ordered twice"})
		at := d.Header().Get("Location")
		v.follow(d)
		p.finish()
		d = v.visit(at)
		require.Contains(t, d.text(), "done : 2 of 2 events")
		require.Contains(t, d.text(), "Every event of the set was looked at.")
		require.Contains(t, d.text(), "ordered twice")
		require.Contains(t, v.visit(prefix+"/operations").text(), "Cancel matching done 2 of 2")
		require.Contains(t, v.visit(prefix+"/audit").text(), "events published_until=")
		require.Contains(t, v.visit(d.linkWith(t, "Events that match now")).text(), "waits key c", "it was published later")

		p.broken.Store(false)
		d = v.visit(prefix + "/events/bulk?action=retry_now_matching&key=c")
		d = v.submit(d.formWith(t, "Retry now: 1 event"), "Retry now: 1 event", map[string]string{"probe": "true", "rate": "10"})
		at = d.Header().Get("Location")
		p.finish()
		require.Contains(t, v.visit(at).text(), "done : 1 of 1 events")
		require.Contains(t, v.visit(prefix+"/events/bulk?action=give_up_matching&key=c").text(), "No event matches.")
	})
}

// A form without a filter needs the tick for every event.
func TestV4_EveryEventNeedsATick(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		v := newVisitor(t, p.Bus)
		p.publish(t, "paused")
		d := v.visit(v.visit(prefix+"/events").linkWith(t, "Give up all matching…"))
		f := d.formWith(t, "Give up: 1 event")
		refused := v.submit(f, "Give up: 1 event", nil)
		require.Equal(t, http.StatusBadRequest, refused.Code)
		require.Contains(t, refused.text(), "an empty query matches every event")
		v.follow(v.submit(f, "Give up: 1 event", map[string]string{"all": "true"}))
		p.finish()
		require.Equal(t, 1, p.Metrics().DeadLetters)
		for _, query := range []string{"", "?action=replay_matching", "?action=x", "?action=cancel_matching&other=1"} {
			require.Equal(t, http.StatusBadRequest, v.load(prefix+"/events/bulk"+query).Code, query)
		}
	})
}

// A page that was left open over a changed set acts on what is left of it, and refuses a set that has grown. Over a restart it acts on the
// events that it has shown.
func TestV4_AFormThatWasLeftOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		p := newPlaces(t, eventbus.WithStore(model.Open()), eventbus.WithIsolation())
		v := newVisitor(t, p.Bus)
		one := p.publish(t, "paused", eventbus.Key("a"))
		p.publish(t, "paused", eventbus.Key("b"))
		f := v.visit(prefix+"/events/bulk?action=give_up_matching&type=paused").formWith(t, "Give up: 2 events")
		_, err := p.Cancel(t.Context(), eventID(t, one))
		require.NoError(t, err)
		require.NoError(t, p.Shutdown(t.Context()))

		p = newPlaces(t, eventbus.WithStore(model.Open()), eventbus.WithIsolation())
		v = newVisitor(t, p.Bus)
		time.Sleep(time.Second)
		p.publish(t, "paused", eventbus.Key("c"))
		d := v.submit(f, "Give up: 2 events", nil)
		at := d.Header().Get("Location")
		v.follow(d)
		p.finish()
		require.Contains(t, v.visit(at).text(), "done : 1 of 1 events")

		f = v.visit(prefix+"/events/bulk?action=cancel_matching&type=paused").formWith(t, "Cancel: 1 event")
		_, err = p.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true}) // it was published before the instant of the form
		require.NoError(t, err)
		synctest.Wait()
		d = v.submit(f, "Cancel: 1 event", map[string]string{"confirm": "1"})
		require.Equal(t, http.StatusConflict, d.Code)
		require.Contains(t, d.text(), "2 events match now, more than 1")
		require.NotEmpty(t, d.formWith(t, "Cancel: 2 events"))
	})
}

// Of two operators with contrary bulk actions, each event has one outcome, and the reports add up.
func TestV4_ContraryBulkOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t, eventbus.WithIsolation())
		s, err := bus.Subscribe("x", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("x"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		const n = 900
		for i := range n {
			_, err := bus.Publish(t.Context(), "x", nil, eventbus.Key(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		synctest.Wait()
		h := newHandler(t, bus)
		cancels := begin(t, h, `{"action":"cancel_matching","dispatches":{"type":"x"},"expect":900,"rate":1000}`)
		gives := begin(t, h, `{"action":"give_up_matching","dispatches":{"subscription":"x"},"expect":900,"rate":1000}`)
		again := refused(t, h, request(t, http.MethodPost, "/api/v1/operations", `{"action":"cancel_matching","dispatches":{"type":"x"},"expect":900}`), admin.CodeConflict)
		require.Contains(t, again.Message, cancels.ID)
		time.Sleep(time.Minute)
		c, g := ended(t, h, cancels).ActionsReport, ended(t, h, gives).ActionsReport
		require.Equal(t, c.Matched, c.Done+c.Gone)
		require.Equal(t, g.Matched, g.Done+g.Gone)
		require.Equal(t, n, c.Done+g.Done)
		l := bus.Metrics().Ledger
		require.Equal(t, []int{c.Done, g.Done}, []int{int(l.Cancelled), int(l.DeadLettered)})
	})
}

// A bulk action that is cancelled says how far it came, and goes on with the rest.
func TestV4_ACancelledBulkAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t)
		s, err := bus.Subscribe("x", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("x"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		for range 10 {
			_, err := bus.Publish(t.Context(), "x", nil)
			require.NoError(t, err)
		}
		synctest.Wait()
		v := newVisitor(t, bus)
		d := v.submit(v.visit(prefix+"/events/bulk?action=give_up_matching&type=x").formWith(t, "Give up: 10 events"), "Give up: 10 events", map[string]string{"rate": "2"})
		at := d.Header().Get("Location")
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait()
		d = v.visit(at)
		require.Contains(t, d.text(), "running : 3 of 10 events")
		v.follow(v.submit(d.formWith(t, "Cancel the operation"), "Cancel the operation", nil))
		synctest.Wait()
		d = v.visit(at)
		require.Contains(t, d.text(), "cancelled : 3 of 10 events")
		require.Contains(t, d.text(), "The events that were not processed are unchanged.")
		f := v.visit(d.linkWith(t, "Go on with the rest")).formWith(t, "Give up: 7 events")
		require.Equal(t, "2", f.values.Get("rate"))
		require.Equal(t, 3, bus.Metrics().DeadLetters)
	})
}

// Each bulk action needs its own permission, also to cancel it, and a refused one is in the audit with its query.
func TestV4_PermissionsOfBulkActions(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		h := newHandler(t, p.Bus, admin.WithAuthorizer(byRole))
		p.publish(t, "paused")
		body := func(action string) string {
			return `{"action":"` + action + `","dispatches":{"type":"paused"},"expect":1,"why":"a test"}`
		}
		for action, needs := range map[string]admin.Action{"cancel_matching": admin.ActionCancel, "retry_now_matching": admin.ActionRetry, "give_up_matching": admin.ActionGiveUp} {
			for _, granted := range []admin.Action{admin.ActionReplay, admin.ActionPurge, admin.ActionCancel, admin.ActionRetry, admin.ActionGiveUp} {
				if granted == needs {
					continue
				}
				_ = refused(t, h, as(granted, request(t, http.MethodPost, "/api/v1/operations", body(action))), admin.CodeForbidden)
				entry := lastAudit(t, p.Bus)
				require.Equal(t, []any{"forbidden", strings.TrimSuffix(action, "_matching"), "paused", "a test"}, []any{entry.Denied, string(entry.Action), entry.Dispatches.Type, entry.Why})
			}
		}
		require.Equal(t, 1, get[eventbus.ActionPreview](t, newHandler(t, p.Bus), "/api/v1/dispatches/preview").Matched)
		for action, offers := range map[admin.Action]string{admin.ActionCancel: "Cancel all matching…", admin.ActionRetry: "Retry now all matching…", admin.ActionGiveUp: "Give up all matching…"} {
			v := newVisitor(t, p.Bus, admin.WithAuthorizer(func(_ *http.Request, asked admin.Action) (admin.Principal, error) {
				if asked != action && asked != admin.ActionView {
					return admin.Principal{Name: "vera"}, admin.ErrForbidden
				}
				return admin.Principal{Name: "vera"}, nil
			}))
			d := v.visit(prefix + "/events")
			for _, text := range []string{"Cancel all matching…", "Retry now all matching…", "Give up all matching…"} {
				require.Equal(t, text == offers, strings.Contains(d.text(), text), "%s with %s", text, action)
			}
			for _, other := range []string{"cancel_matching", "retry_now_matching", "give_up_matching"} {
				allowed := strings.HasPrefix(other, string(action))
				require.Equal(t, allowed, v.load(prefix+"/events/bulk?type=paused&action="+other).Code == http.StatusOK, "%s with %s", other, action)
			}
		}
	})
}

// A tool asks the bus beside it to act, and its report has the counts of the answers.
func TestV4_BulkActionsOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		p := newPlaces(t, eventbus.WithStore(model.Open()))
		p.publish(t, "paused")
		p.publish(t, "paused")
		h := newHandler(t, newTool(t, model))
		op := begin(t, h, `{"action":"cancel_matching","dispatches":{"type":"paused"},"expect":2}`)
		time.Sleep(time.Minute)
		require.Equal(t, 2, ended(t, h, op).ActionsReport.Done)
		require.Zero(t, p.Metrics().Held)
	})
}

// Names, keys and errors of events are escaped and cut on the pages of bulk actions.
func TestZ9_HostileTextsInBulkActions(t *testing.T) {
	for _, text := range append(hostileNames, "\x1b[2J\u202e<b>\r\nforged") {
		synctest.Test(t, func(t *testing.T) {
			bus := newBus(t)
			name := strings.Map(func(r rune) rune {
				if r < ' ' {
					return -1
				}
				return r
			}, text)
			_, err := bus.Subscribe("*", func(context.Context, eventbus.Event) error {
				return errors.New(strings.Repeat(text+"\x1b[2J\n", 8192/len(text)))
			}, eventbus.Named(name), eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
			require.NoError(t, err)
			require.NoError(t, bus.Start(t.Context()))
			for range 12 {
				_, err = bus.Publish(t.Context(), "x", text, eventbus.Key(name))
				require.NoError(t, err)
			}
			synctest.Wait()
			v := newVisitor(t, bus)
			query := url.Values{"action": {"give_up_matching"}, "subscription": {name}, "key": {name}, "error": {name[:3]}}
			d := v.visit(prefix + "/events/bulk?" + query.Encode())
			f := d.forms[len(d.forms)-1]
			require.NotEmpty(t, f.buttons, d.text())
			d = v.submit(f, strings.TrimSpace(f.buttons[0].text), map[string]string{"why": name})
			at := d.Header().Get("Location")
			require.NotEmpty(t, at, d.text())
			synctest.Wait()
			for _, page := range []string{at, prefix + "/operations", prefix + "/audit", prefix + "/events?" + query.Encode()} {
				d = v.load(page)
				assert.Contains(t, []int{http.StatusOK, http.StatusBadRequest}, d.Code, page)
			}
		})
	}
}

// A redactor hides the texts of events in the queries of bulk actions, too.
func TestZ11_QueriesOfBulkActionsAreRedacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(t)
		p.publish(t, "paused", eventbus.Key(canary), eventbus.IdempotencyKey(canary))
		v := newVisitor(t, p.Bus, admin.WithRedactor(withoutCanary))
		op := post[admin.Operation](t, v.h, prefix+"/api/v1/operations", `{"action":"cancel_matching","dispatches":{"key":"`+canary+`","idempotency_key":"`+canary+`"},"expect":1}`)
		synctest.Wait()
		v.secret = canary
		d := v.visit(prefix + "/operations/" + op.ID)
		require.Contains(t, d.text(), "(card)")
		require.NotContains(t, d.text(), "Go on with the rest")
		v.visit(prefix + "/audit")
		for _, path := range []string{"/api/v1/operations", "/api/v1/operations/" + op.ID, "/api/v1/audit"} {
			w := serve(v.h, request(t, http.MethodGet, prefix+path, ""))
			require.NotContains(t, w.Body.String(), canary, path)
			require.Contains(t, w.Body.String(), "(card)", path)
		}
	})
}
