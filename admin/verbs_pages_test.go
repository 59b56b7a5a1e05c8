package admin_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

// ask opens the page that asks, and submits its form.
func (v *visitor) ask(page *document, link, button string, typed map[string]string) *document {
	v.t.Helper()
	return v.submit(v.visit(page.linkWith(v.t, link)).formWith(v.t, button), button, typed)
}

// Cancel asks first, and the event's page shows the report. A reload shows it again, and does nothing.
func TestV1_CancelOnThePage(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		v := newVisitor(t, p.Bus)
		id := p.publish(t, "paused", eventbus.ID(eventbus.NewEventID()))
		list := v.visit(prefix + "/events")
		ask := v.visit(list.linkWith(t, "Cancel…"))
		require.Contains(t, ask.text(), "cannot be restored")
		require.Len(t, status(t, p.Bus, id).Dispatches, 1, "a GET does nothing")
		f := ask.formWith(t, "Cancel the event")
		d := v.submit(f, "Cancel the event", map[string]string{"why": "ordered twice"})
		at := d.Header().Get("Location")
		for range 2 {
			text := v.visit(at).text()
			require.Contains(t, text, "It was cancelled.")
			require.Contains(t, text, "Cancel found 1 delivery: done 1, left 0")
			require.Contains(t, text, "The id and the idempotency key of the event can be used again.")
		}
		require.Equal(t, "ordered twice", lastAudit(t, p.Bus).Why)
		require.Len(t, audits(t, p.Bus), 3, "pause, trip and one cancel")
		again := v.submit(f, "Cancel the event", nil)
		require.Contains(t, []int{http.StatusConflict, http.StatusNotFound}, again.Code)
	})
}

// Retry now is on the row of the list and on the event's page. What is held needs the tick, and the page says so.
func TestV2_RetryOnThePage(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		v := newVisitor(t, p.Bus)
		id := p.publish(t, "held", eventbus.ID(eventbus.NewEventID()))
		d := v.submit(v.visit(prefix+"/events").formWith(t, "Retry now"), "Retry now", nil)
		require.Equal(t, http.StatusConflict, d.Code)
		require.Contains(t, d.text(), "nothing was done: held is parked: it is held")
		require.Contains(t, d.text(), "Retry now found 1 delivery: done 0, left 1")
		require.Contains(t, d.text(), "left it is held; Probe tries it nevertheless")
		p.broken.Store(false)
		d = v.follow(v.submit(d.formWith(t, "Retry now"), "Retry now", map[string]string{"probe": "true", "why": "the bank is open"}))
		require.Contains(t, d.text(), "What waited goes on now.")
		require.Equal(t, "the bank is open", lastAudit(t, p.Bus).Why)
		synctest.Wait()
		require.Empty(t, status(t, p.Bus, id).Dispatches)
		require.NotContains(t, v.visit(prefix+"/events/"+id).text(), "Retry now")
	})
}

// Give up asks first. A call that runs is left, and nothing offers to give it up.
func TestV3_GiveUpOnThePage(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		v := newVisitor(t, p.Bus)
		id := p.publish(t, "held", eventbus.ID(eventbus.NewEventID()))
		d := v.follow(v.ask(v.visit(prefix+"/events/"+id), "Give up…", "Give up the event", map[string]string{"why": "no customer"}))
		require.Contains(t, d.text(), "What waited became dead letters")
		require.Contains(t, d.text(), "operator", "the letter is on the page")
		running := p.publish(t, "runs")
		page := v.visit(prefix + "/events/" + running)
		require.NotContains(t, page.text(), "Give up…")
		require.Contains(t, page.text(), "Cancel…")
		d = v.submit(v.visit(prefix+"/events/"+running+"/give-up").formWith(t, "Give up the event"), "Give up the event", nil)
		require.Equal(t, http.StatusConflict, d.Code)
		require.Contains(t, d.text(), "left its handler runs; Cancel ends the call")
	})
}

// Of an event with several deliveries, the page acts on one of them or on all.
func TestV4_OneDeliveryOnThePage(t *testing.T) {
	onPlaces(t, func(t *testing.T, p *places) {
		v := newVisitor(t, p.Bus)
		id := p.publish(t, "waits", eventbus.ID(eventbus.NewEventID()))
		page := v.visit(prefix + "/events/" + id)
		require.Contains(t, page.links(), prefix+"/events/"+id+"/cancel", "the whole event")
		ask := v.visit(prefix + "/events/" + id + "/cancel?subscription=then")
		require.Contains(t, page.links(), prefix+"/events/"+id+"/cancel?subscription=then")
		require.Contains(t, ask.text(), "only the delivery to then")
		d := v.follow(v.submit(ask.formWith(t, "Cancel the delivery"), "Cancel the delivery", nil))
		require.Contains(t, d.text(), "Cancel found 1 delivery: done 1, left 0")
		left := status(t, p.Bus, id).Dispatches
		require.Len(t, left, 1)
		require.Equal(t, "waits", left[0].Subscription)
		require.Equal(t, "then", lastAudit(t, p.Bus).Subscription)
	})
}

// Names, keys and errors of events, and what an address claims, are shown with escapes and cut.
func TestV1_HostileTextsInReports(t *testing.T) {
	for _, text := range []string{"<script>alert(1)</script>", "\u202egnp.exe\u2066", "\"><b>", strings.Repeat("x&", 127)} {
		synctest.Test(t, func(t *testing.T) {
			bus := newBus(t)
			_, err := bus.Subscribe("*", func(context.Context, eventbus.Event) error {
				return errors.New(strings.Repeat(text+"\x1b[2J\n", 8192/len(text)))
			}, eventbus.Named(text), eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
			require.NoError(t, err)
			require.NoError(t, bus.Start(t.Context()))
			id, err := bus.Publish(t.Context(), "x", nil, eventbus.Key(text))
			require.NoError(t, err)
			synctest.Wait()
			v := newVisitor(t, bus)
			at := prefix + "/events/" + id.String()
			v.follow(v.submit(v.visit(at).formWith(t, "Retry now"), "Retry now", map[string]string{"subscription": text}))
			synctest.Wait()
			require.Contains(t, []int{http.StatusConflict, http.StatusSeeOther}, v.submit(v.visit(at).formWith(t, "Retry now"), "Retry now", nil).Code)
			synctest.Wait()
			d := v.follow(v.ask(v.visit(at), "Give up…", "Give up the event", map[string]string{"why": text}))
			require.Contains(t, d.text(), "Give up found 1 delivery")
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(t)
		v := newVisitor(t, p.Bus)
		id := p.publish(t, "paused")
		for _, query := range []string{"subscription=a%0Ab", "subscription=" + strings.Repeat("x", 300), "subscription=a&subscription=b", "other=1"} {
			require.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, v.load(prefix+"/events/"+id+"/cancel?"+query).Code, query)
		}
		require.NotContains(t, v.visit(prefix+"/events/"+id+"?done=cancelled&report="+id).text(), "found", "no address makes a report")
	})
}

// An operator is offered what the operator may do.
func TestV4_PagesOfferPermittedActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(t)
		id := p.publish(t, "held")
		for action, offers := range map[admin.Action]string{admin.ActionCancel: "Cancel…", admin.ActionRetry: "Retry now", admin.ActionGiveUp: "Give up…", admin.ActionReplay: ""} {
			v := newVisitor(t, p.Bus, admin.WithAuthorizer(func(_ *http.Request, asked admin.Action) (admin.Principal, error) {
				if asked != action && asked != admin.ActionView {
					return admin.Principal{Name: "vera"}, admin.ErrForbidden
				}
				return admin.Principal{Name: "vera"}, nil
			}))
			for _, page := range []string{"/events", "/events/" + id} {
				d := v.visit(prefix + page)
				for _, text := range []string{"Cancel…", "Retry now", "Give up…"} {
					require.Equal(t, text == offers, strings.Contains(strings.ReplaceAll(d.text(), "Retry now lets", ""), text), "%s on %s with %s", text, page, action)
				}
			}
		}
	})
}

// The page of a name without a subscription leads to the page that retires it, and the list of orphans to that page.
func TestD14_AnOrphansPageOffersToRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newOrphaned(t)
		v := newVisitor(t, bus)
		d := v.visit(v.visit(prefix+"/subscriptions").linkWith(t, orphan))
		require.Contains(t, d.text(), "does not exist")
		require.Contains(t, v.visit(d.linkWith(t, "Retire…")).text(), "Deliveries that wait 3")
	})
}
