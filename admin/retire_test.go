package admin_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/storetest"
)

// orphan is the name of a subscription that is gone. It needs escapes in a path and in HTML.
const orphan = `old/mail <b>?`

// newOrphaned returns a bus over a store in which three deliveries wait for a subscription that it does not have.
func newOrphaned(t *testing.T) (*eventbus.Bus, *storetest.Model) {
	t.Helper()
	model := storetest.NewModel()
	before := newBus(t, eventbus.WithStore(model.Open()))
	s, err := before.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named(orphan))
	require.NoError(t, err)
	require.NoError(t, before.Start(t.Context()))
	require.NoError(t, s.Pause())
	for range 3 {
		_, err = before.Publish(t.Context(), "order.placed", order{})
		require.NoError(t, err)
	}
	synctest.Wait()
	require.NoError(t, before.Shutdown(t.Context()))
	bus := newBus(t, eventbus.WithStore(model.Open()))
	_, err = bus.Subscribe("user.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("crm"))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	synctest.Wait()
	return bus, model
}

// A name without a subscription is on the page of subscriptions. It is retired by typing its name, and its deliveries become
// dead letters, or are dropped.
func TestD14_RetireOnThePage(t *testing.T) {
	for name, drop := range map[string]bool{"dead letters": false, "dropped": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := newOrphaned(t)
				v := newVisitor(t, bus)
				page := get[admin.OrphanPage](t, v.h, prefix+"/api/v1/orphans")
				require.Equal(t, []admin.Orphan{{Subscription: orphan, Parked: 3}}, page.Orphans)
				d := v.visit(prefix + "/subscriptions")
				require.Contains(t, d.text(), "1 name, those with most deliveries first")
				require.Contains(t, d.text(), orphan+" 3")
				d = v.visit(d.linkWith(t, "Retire…"))
				require.Contains(t, d.text(), "Deliveries that wait 3")
				f := d.formWith(t, "Retire the name")
				typed := map[string]string{"confirm": "old/mail", "why": "it is no more"}
				if drop {
					typed["drop"] = "true"
				}
				d = v.submit(f, "Retire the name", typed)
				require.Equal(t, http.StatusBadRequest, d.Code)
				require.Equal(t, "it is no more", d.formWith(t, "Retire the name").values.Get("why"), "it stays")
				require.Equal(t, drop, d.formWith(t, "Retire the name").values.Get("drop") == "true")
				typed["confirm"] = orphan
				d = v.follow(v.submit(f, "Retire the name", typed))
				require.Contains(t, d.text(), "The name is retired")
				require.NotContains(t, d.text(), "Orphans")
				letters, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonUnsubscribed})
				require.NoError(t, err)
				require.Equal(t, map[bool]int{false: 3, true: 0}[drop], letters.Total)
				entry := lastAudit(t, bus)
				require.Equal(t, []any{eventbus.AuditRetire, "anna", "it is no more", orphan, drop}, []any{entry.Action, entry.By, entry.Why, entry.Subscription, entry.Drop})
				require.Equal(t, 3, entry.Outcome.Done)

				d = v.submit(f, "Retire the name", typed)
				require.Contains(t, []int{http.StatusSeeOther, http.StatusNotFound}, d.Code, "another operator was faster")
			})
		})
	}
}

// A name that comes back while the operator reads the page is not retired.
func TestD14_RetireOfANameThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newOrphaned(t)
		v := newVisitor(t, bus)
		f := v.visit(v.visit(prefix+"/subscriptions").linkWith(t, "Retire…")).formWith(t, "Retire the name")
		_, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named(orphan))
		require.NoError(t, err)
		d := v.submit(f, "Retire the name", map[string]string{"confirm": orphan})
		require.Equal(t, http.StatusConflict, d.Code)
		require.Contains(t, d.text(), `a live bus has the subscription "old/mail <b>?" again`)
		require.Contains(t, d.text(), "This bus has a subscription of the name.")
		for _, f := range d.forms {
			require.NotContains(t, f.action, "retire")
		}
		require.NoError(t, bus.Subscription(orphan).Resume())
		time.Sleep(time.Second)
		require.EqualValues(t, 3, bus.Metrics().Subscriptions[1].Successes, "it has its deliveries")
	})
}

// Beside the bus, the page knows orphans by the catalog, and another process ends them.
func TestD14_RetireBesideTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, model := newOrphaned(t)
		v := newVisitor(t, newTool(t, model))
		d := v.visit(prefix + "/subscriptions")
		require.Contains(t, d.text(), orphan+" 3")
		d = v.visit(d.linkWith(t, "Retire…"))
		d = v.follow(v.submit(d.formWith(t, "Retire the name"), "Retire the name", map[string]string{"confirm": orphan}))
		require.Contains(t, d.text(), "its deliveries that waited have ended")
		require.Equal(t, 3, bus.Metrics().DeadLetters)

		require.NoError(t, bus.Shutdown(t.Context()))
		synctest.Wait()
		e := refused(t, v.h, request(t, http.MethodPost, prefix+"/api/v1/subscriptions/nobody/retire", `{}`), admin.CodeNotFound)
		require.Contains(t, e.Message, `neither a subscription nor a delivery has the name "nobody"`)
	})
}

// A subscription that is detached is retired from its page. Whoever may not retire is not offered to.
func TestD14_RetireOfADetachedSubscription(t *testing.T) {
	bus := newBusy(t)
	s := bus.Subscription("stock")
	v := newVisitor(t, bus.Bus)
	assert.NotContains(t, v.visit(prefix+"/subscriptions/stock").text(), "Retire")
	assert.Contains(t, v.visit(prefix+"/subscriptions/stock/retire").text(), "This bus has a subscription of the name.")
	require.NoError(t, s.Detach())
	d := v.visit(v.visit(prefix+"/subscriptions/stock").linkWith(t, "Retire…"))
	d = v.follow(v.submit(d.formWith(t, "Retire the name"), "Retire the name", map[string]string{"confirm": "stock"}))
	assert.Contains(t, d.text(), "The name is retired")
	assert.False(t, bus.Subscription("stock").Exists())

	others := newVisitor(t, bus.Bus, admin.WithAuthorizer(func(_ *http.Request, action admin.Action) (admin.Principal, error) {
		if action == admin.ActionRetire {
			return admin.Principal{Name: "vera"}, admin.ErrForbidden
		}
		return admin.Principal{Name: "vera"}, nil
	}))
	require.NoError(t, bus.Subscription("billing").Detach())
	assert.NotContains(t, others.visit(prefix+"/subscriptions/billing").text(), "Retire")
	assert.Equal(t, http.StatusForbidden, others.load(prefix+"/subscriptions/billing/retire").Code)
}
