package admin_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/storetest"
)

// newTool returns a bus WithoutHandlers beside another one, over the same store.
func newTool(t *testing.T, model *storetest.Model) *eventbus.Bus {
	t.Helper()
	return newBus(t, eventbus.WithStore(model.Open()), eventbus.WithoutHandlers())
}

// Beside the bus, the handler shows subscriptions and plans from the catalog in the store, and its orders are obeyed.
func TestTool_ShowsTheCatalog(t *testing.T) {
	model := storetest.NewModel()
	store := model.Open()
	bus := newBus(t, eventbus.WithStore(store))
	_, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errDeclined)
	}, eventbus.Named("billing"), eventbus.Retry(eventbus.MaxRetries(5)))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	_, err = bus.PublishAndWait(t.Context(), "order.placed", order{Number: 1})
	require.ErrorAs(t, err, new(*eventbus.DeliveryError))

	v := newVisitor(t, newTool(t, model))
	v.crawl(prefix+"/", 100)
	list := get[admin.SubscriptionPage](t, v.h, prefix+"/api/v1/subscriptions")
	require.Len(t, list.Subscriptions, 1)
	assert.Equal(t, "order.*", list.Subscriptions[0].Pattern)
	assert.False(t, list.CatalogAt.IsZero())
	plan := get[eventbus.Plan](t, v.h, prefix+"/api/v1/explain?type=order.placed")
	require.Len(t, plan.Targets, 1)
	assert.Equal(t, "billing", plan.Targets[0].Subscription)
	for page, text := range map[string]string{
		"/":                          "In the store",
		"/subscriptions":             "the catalog that the bus recorded at",
		"/subscriptions/billing":     "the catalog that the bus recorded at",
		"/explain?type=order.placed": "MaxRetries 5 billing",
		"/groups":                    "card declined",
	} {
		d := v.visit(prefix + page)
		assert.Contains(t, d.text(), text, page)
		assert.NotContains(t, d.text(), "circuit closed", "%s: it is not known", page)
	}
	assert.NotContains(t, v.visit(prefix+"/").text(), "Ledger", "this process has none")

	f := v.visit(prefix+"/subscriptions/billing").formWith(t, "Pause")
	d := v.follow(v.submit(f, "Pause", map[string]string{"why": "a deployment"}))
	assert.Contains(t, d.text(), "paused by anna: a deployment")
	v.follow(v.submit(d.formWith(t, "Resume"), "Resume", nil))
	v.follow(v.submit(v.visit(prefix+"/subscriptions/billing").formWith(t, "Trip the circuit"), "Trip the circuit", nil))
	v.follow(v.submit(v.visit(prefix+"/subscriptions/billing").formWith(t, "Reset the circuit"), "Reset the circuit", nil))
}

// A store that no bus has started with has no catalog.
func TestTool_WithoutACatalog(t *testing.T) {
	v := newVisitor(t, newTool(t, storetest.NewModel()))
	v.crawl(prefix+"/", 100)
	assert.Contains(t, v.visit(prefix+"/subscriptions").text(), "There is no subscription.")
	d := v.load(prefix + "/explain?type=order.placed")
	assert.Equal(t, http.StatusNotFound, d.Code)
	assert.Contains(t, d.text(), "start the bus that runs the handlers once")
	assert.NotEmpty(t, refused(t, v.h, request(t, http.MethodGet, prefix+"/api/v1/explain?type=order.placed", ""), admin.CodeNotFound).Remedy)
}

// A standby says that it is one, and shows the events that wait for the bus with the lease.
func TestStandby_IsShown(t *testing.T) {
	bus := newBus(t, eventbus.WithStore(storetest.NewModel().Open()), eventbus.WithStandby())
	_, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("billing"))
	require.NoError(t, err)
	id, err := bus.Publish(t.Context(), "order.placed", order{Number: 1}, eventbus.After(time.Hour))
	require.NoError(t, err)

	v := newVisitor(t, bus)
	assert.Contains(t, v.visit(prefix+"/").text(), "Incoming 1 not taken in yet")
	o := get[admin.Overview](t, v.h, prefix+"/api/v1/overview")
	assert.False(t, o.Active)
	assert.NotEmpty(t, o.Instance)
	event := v.visit(prefix + "/events/" + id.String())
	assert.Contains(t, event.text(), "The bus with the lease of the store has not taken the event in.")
	v.follow(v.submit(v.visit(event.linkWith(t, "Cancel…")).formWith(t, "Cancel the event"), "Cancel the event", nil))

	require.NoError(t, bus.Start(t.Context()))
	assert.Contains(t, v.visit(prefix+"/").text(), "Incoming 0 not taken in yet")
	assert.True(t, get[admin.Overview](t, v.h, prefix+"/api/v1/overview").Active)
}
