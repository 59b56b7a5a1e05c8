package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/storetest"
)

// newRefusing returns a bus whose subscription billing refuses each event with the error that its payload names.
func newRefusing(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus := newBus(t, opts...)
	_, err := bus.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error {
		text, _ := e.Payload.(string)
		if encoded, ok := e.Payload.(json.RawMessage); ok { // from a store
			_ = json.Unmarshal(encoded, &text)
		}
		if text == "" {
			return nil
		}
		return eventbus.Permanent(errors.New(text))
	}, eventbus.Named("billing"), eventbus.Circuit(eventbus.MinEvents(1_000_000)))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	return bus
}

// refuse publishes events that die of an error.
func refuse(t *testing.T, bus *eventbus.Bus, n int, text string) {
	t.Helper()
	for range n {
		_, err := bus.PublishAndWait(t.Context(), "order.placed", text)
		require.ErrorAs(t, err, new(*eventbus.DeliveryError))
	}
}

// The overview has a line for each cause: what died, how much of it lately, and whether it goes on.
func TestOverview_CausesSayWhatGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newRefusing(t)
		h := newHandler(t, bus)
		require.Empty(t, get[admin.Overview](t, h, "/api/v1/overview").Causes)
		refuse(t, bus, 5, "card declined")
		time.Sleep(30 * time.Minute)
		refuse(t, bus, 2, "bank is closed")
		time.Sleep(2 * time.Minute)
		refuse(t, bus, 1, "bank is closed")

		o := get[admin.Overview](t, h, "/api/v1/overview")
		require.Len(t, o.Causes, 2)
		require.Equal(t, 2, o.CausesTotal)
		require.Equal(t, 2+1, o.NeedAttention, "billing fails, too")
		first, second := o.Causes[0], o.Causes[1]
		require.Equal(t, "bank is closed", first.Group.Message, "what grows is first")
		require.Equal(t, []int{3, 3, 3}, []int{first.Last5Minutes, first.LastHour, first.Group.Count})
		require.True(t, first.Growing)
		require.Equal(t, []int{0, 5, 5}, []int{second.Last5Minutes, second.LastHour, second.Group.Count})
		require.False(t, second.Growing)

		time.Sleep(61 * time.Minute)
		o = get[admin.Overview](t, h, "/api/v1/overview")
		for _, c := range o.Causes {
			require.False(t, c.Growing)
			require.Zero(t, c.LastHour)
		}
		require.Equal(t, "card declined", o.Causes[0].Group.Message, "then what is largest")
	})
}

// From a cause on the overview, two clicks begin its bulk replay.
func TestOverview_TwoClicksToTheReplayOfACause(t *testing.T) {
	bus := newRefusing(t)
	refuse(t, bus, 3, "card declined")
	refuse(t, bus, 2, "bank is closed")
	v := newVisitor(t, bus)
	d := v.visit(prefix + "/")
	require.Contains(t, d.text(), "card declined *errors.errorString billing 3 3 3")
	var link string
	for _, e := range d.all("a") {
		if e.text == "Replay…" && link == "" {
			link = e.attrs["href"]
		}
	}
	require.NotEmpty(t, link)
	f := v.visit(link).formWith(t, "Replay 3 letters")
	d = v.follow(v.submit(f, "Replay 3 letters", nil))
	require.Contains(t, d.text(), "of 3 letters")
}

// attention is the badge of the navigation.
func attention(d *document) string {
	for _, e := range d.elements {
		if e.attrs["id"] == "attention-count" {
			return strings.Join(strings.Fields(e.text), " ")
		}
	}
	return "no badge"
}

// Each page has the number of causes in its navigation, and an error page has none: its reader may not be an operator.
func TestPages_TheNavigationCountsCauses(t *testing.T) {
	bus := newRefusing(t)
	v := newVisitor(t, bus)
	require.Empty(t, attention(v.visit(prefix+"/")))
	refuse(t, bus, 1, "card declined")
	require.NoError(t, bus.Subscription("billing").Pause())
	for _, page := range pagesOf {
		require.Equal(t, "2 causes need attention", attention(v.visit(prefix+page)), page)
	}
	require.Empty(t, attention(v.load(prefix+"/static/none")))
}

// A closed circuit is not green while calls fail.
func TestSubscriptions_AFailingOneIsNotGreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newRefusing(t)
		v := newVisitor(t, bus)
		publish := func(n int) {
			for range n {
				_, err := bus.PublishAndWait(t.Context(), "order.placed", "")
				require.NoError(t, err)
			}
		}
		colour := func() (class string) {
			for _, page := range []string{"/subscriptions", "/subscriptions/billing"} {
				for _, e := range v.visit(prefix + page).all("span") {
					if e.text == "circuit closed" {
						class += " " + strings.TrimSpace(strings.TrimPrefix(e.attrs["class"], "badge"))
					}
				}
			}
			return class
		}
		publish(7)
		require.Equal(t, " good good", colour())
		refuse(t, bus, 3, "bank is closed")
		require.Equal(t, "  ", colour())
		require.Contains(t, v.visit(prefix+"/subscriptions").text(), "circuit closed 30 % fail")
		o := get[admin.Overview](t, v.h, prefix+"/api/v1/overview")
		require.Equal(t, admin.SeverityBad, o.Concerns[0].Severity)
		require.Equal(t, "billing fails: 30 % of 10 calls", o.Concerns[0].Title)

		time.Sleep(7 * time.Minute)
		require.Equal(t, "  ", colour(), "no call since")
		publish(1)
		require.Equal(t, " good good", colour())
	})
}

// The list can be sorted by links, without JavaScript, and so can the API.
func TestSubscriptions_AreSortedByLinks(t *testing.T) {
	bus := newRefusing(t)
	for i, name := range []string{"archive", "mail"} {
		_, err := bus.Subscribe("mail."+name, func(context.Context, eventbus.Event) error { return nil }, eventbus.Named(name))
		require.NoError(t, err)
		for range 5 - i {
			_, err := bus.PublishAndWait(t.Context(), "mail."+name, nil)
			require.NoError(t, err)
		}
	}
	v := newVisitor(t, bus)
	h := v.h
	order := func(query string) (names []string) {
		page := get[admin.SubscriptionPage](t, h, prefix+"/api/v1/subscriptions"+query)
		for i, s := range page.Subscriptions {
			require.Equal(t, s.Subscription, page.Figures[i].Subscription)
			names = append(names, s.Subscription)
		}
		return names
	}
	for range 5 - 2 {
		_, err := bus.PublishAndWait(t.Context(), "mail.archive", nil)
		require.NoError(t, err)
	}
	refuse(t, bus, 1, "card declined")
	require.Equal(t, []string{"billing", "archive", "mail"}, order(""))
	require.Equal(t, []string{"archive", "billing", "mail"}, order("?sort=name"))
	require.Equal(t, []string{"mail", "billing", "archive"}, order("?sort=-name"))
	require.Equal(t, []string{"archive", "billing", "mail"}, order("?sort=-calls"))
	require.Equal(t, []string{"archive", "mail", "billing"}, order("?sort=letters"))
	_ = refused(t, h, request(t, http.MethodGet, prefix+"/api/v1/subscriptions?sort=colour", ""), admin.CodeBadRequest)

	d := v.visit(prefix + "/subscriptions")
	links := make(map[string]string)
	for _, e := range d.all("th") {
		links[strings.TrimSpace(e.text)] = e.attrs["aria-sort"]
	}
	require.Contains(t, links, "Failure rate")
	require.Empty(t, links["Failures"])
	for _, e := range d.all("a") {
		if e.text == "Failures" {
			d = v.visit(e.attrs["href"])
			break
		}
	}
	for _, e := range d.all("th") {
		if strings.TrimSpace(e.text) == "Failures" {
			require.Equal(t, "descending", e.attrs["aria-sort"])
		}
	}
	require.Len(t, d.all("svg"), 3, "a sparkline for each")
}

// The rings have the last hour by minutes and the last day by quarters, and no more.
func TestHistory_OfASubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newRefusing(t)
		h := newHandler(t, bus)
		history := func(span string) admin.SubscriptionHistory {
			return get[admin.SubscriptionHistory](t, h, "/api/v1/subscriptions/billing/history?span="+span)
		}
		require.Len(t, history("hour").Points, 1)
		refuse(t, bus, 3, "card declined")
		time.Sleep(time.Minute)
		synctest.Wait()
		_, err := bus.PublishAndWait(t.Context(), "order.placed", "")
		require.NoError(t, err)
		hour := history("hour")
		require.Equal(t, time.Minute, hour.Step)
		require.Len(t, hour.Points, 2)
		require.EqualValues(t, 3, hour.Points[0].Failures)
		require.EqualValues(t, 1, hour.Points[1].Calls)
		require.Equal(t, time.Minute, hour.Points[1].Start.Sub(hour.Points[0].Start))

		require.NoError(t, bus.Subscription("billing").Pause())
		for range 2 {
			_, err = bus.Publish(t.Context(), "order.placed", "")
			require.NoError(t, err)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		day := history("day")
		require.Equal(t, 15*time.Minute, day.Step)
		require.Len(t, day.Points, 2)
		require.EqualValues(t, 4, day.Points[0].Calls)
		require.EqualValues(t, 3, day.Points[0].Failures)
		require.EqualValues(t, 2, day.Points[1].Backlog)

		time.Sleep(30 * time.Hour)
		synctest.Wait()
		require.Len(t, history("hour").Points, 60)
		day = history("day")
		require.Len(t, day.Points, 96)
		for i, p := range day.Points[1:] {
			require.Equal(t, 15*time.Minute, p.Start.Sub(day.Points[i].Start))
			require.Zero(t, p.Calls)
		}
		_ = refused(t, h, request(t, http.MethodGet, "/api/v1/subscriptions/billing/history?span=year", ""), admin.CodeBadRequest)
	})
}

// The charts of many subscriptions have a bound, also where names come and go.
func TestHistory_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t)
		require.NoError(t, bus.Start(t.Context()))
		h := newHandler(t, bus)
		for i := range 1100 {
			_, err := bus.Subscribe("mail."+strconv.Itoa(i), func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail-"+strconv.Itoa(i)))
			require.NoError(t, err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		points := func(i int) int {
			return len(get[admin.SubscriptionHistory](t, h, "/api/v1/subscriptions/mail-"+strconv.Itoa(i)+"/history").Points)
		}
		require.Equal(t, 3, points(0))
		require.Equal(t, 3, points(999))
		require.Zero(t, points(1000))
		bus.Subscription("mail-0").Unsubscribe()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 3, points(1000), "it takes the place")

		w := serve(h, request(t, http.MethodGet, "/subscriptions/mail-1050", ""))
		require.Contains(t, w.Body.String(), "The first 1,000 subscriptions have charts, each after its first minute.")
	})
}

// Charts are pictures with a text that says the same.
func TestPages_ChartsHaveTexts(t *testing.T) {
	bus := newRefusing(t)
	v := newVisitor(t, bus)
	refuse(t, bus, 3, "card declined")
	for _, page := range []string{"/subscriptions/billing", "/subscriptions/billing?span=day"} {
		d := v.visit(prefix + page)
		labels := ""
		for _, e := range d.all("svg") {
			require.Equal(t, "img", e.attrs["role"])
			labels += e.attrs["aria-label"] + "; "
		}
		for _, text := range []string{"Calls: 3 calls, 3 now", "Failures: 3 failed calls, 100 %", "Latency: p50", "Backlog: 0 parked now"} {
			require.Contains(t, labels, text, page)
		}
		require.NotEmpty(t, d.all("rect"))
	}
}

// Deliveries of a name that no subscription has are seen, with a link to their page.
func TestOverview_Orphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		bus := eventbustest.NewUnstarted(t, eventbus.WithStore(model.Open()))
		sub, err := bus.Subscribe("mail.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, sub.Pause())
		for range 2 {
			_, err = bus.Publish(t.Context(), "mail.sent", nil)
			require.NoError(t, err)
		}
		synctest.Wait()
		require.NoError(t, bus.Shutdown(t.Context()))

		later := newBus(t, eventbus.WithStore(model.Open()))
		require.NoError(t, later.Start(t.Context()))
		synctest.Wait()
		v := newVisitor(t, later)
		o := get[admin.Overview](t, v.h, prefix+"/api/v1/overview")
		require.Len(t, o.Concerns, 1)
		require.Equal(t, "2 deliveries wait for mail", o.Concerns[0].Title)
		require.Contains(t, v.visit(o.Concerns[0].Link).text(), "2 deliveries wait in the store for this name, and no subscription has it.")
		v.crawl(prefix+"/", 100)
		assert.Contains(t, v.load(prefix+"/subscriptions/post").text(), "there is no subscription")
	})
}

// The overview says which bus has the lease, which are standbys, and what is not taken in yet.
func TestOverview_BusesOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		bus := newRefusing(t, eventbus.WithStore(model.Open()))
		time.Sleep(2 * time.Second) // its catalog is the first
		standby := newBus(t, eventbus.WithStore(model.Open()), eventbus.WithStandby())
		started := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { started <- standby.Start(ctx) }()
		time.Sleep(time.Second)
		own := get[admin.Overview](t, newHandler(t, bus), "/api/v1/overview")
		require.True(t, own.Active)
		require.Len(t, own.Buses, 2)
		require.Equal(t, own.Instance, own.Buses[0].Instance)
		require.True(t, own.Buses[0].Active)
		require.False(t, own.Buses[1].Active)
		for _, of := range []*eventbus.Bus{bus, standby} {
			v := newVisitor(t, of)
			text := v.visit(prefix + "/").text()
			require.Contains(t, text, "active: has the lease")
			require.Contains(t, text, "standby")
			require.Contains(t, text, "Incoming 0")
		}
		cancel()
		require.Error(t, <-started)
	})
}

// The overview names each subscription and destination that is open, paused, throttled, full, hung or slow, and says which.
func TestOverview_WhatIsNotWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t)
		released := make(chan struct{})
		defer close(released)
		handlers := map[string]struct {
			handle eventbus.Handler
			opts   []eventbus.SubscribeOption
		}{
			"open":      {accept, nil},
			"paused":    {accept, nil},
			"throttled": {func(context.Context, eventbus.Event) error { return eventbus.Throttle(errDeclined, time.Minute) }, nil},
			"full":      {accept, []eventbus.SubscribeOption{eventbus.LineCapacity(2)}},
			"hung": {func(context.Context, eventbus.Event) error {
				<-released
				return nil
			}, []eventbus.SubscribeOption{eventbus.Timeout(time.Second), eventbus.MaxAbandoned(1), eventbus.Retry(eventbus.MaxRetries(0))}},
			"slow": {func(context.Context, eventbus.Event) error {
				time.Sleep(500 * time.Millisecond)
				return nil
			}, []eventbus.SubscribeOption{eventbus.Timeout(time.Second)}},
			"hooks": {accept, []eventbus.SubscribeOption{eventbus.PerDestination(func(e eventbus.Event) string { return e.Payload.(string) })}},
			"well":  {accept, nil},
		}
		for name, of := range handlers {
			_, err := bus.Subscribe(name, of.handle, append(of.opts, eventbus.Named(name))...)
			require.NoError(t, err)
		}
		require.NoError(t, bus.Start(t.Context()))
		h := newHandler(t, bus)
		require.Empty(t, get[admin.Overview](t, h, "/api/v1/overview").Concerns)
		require.NoError(t, bus.Subscription("open").Trip())
		require.NoError(t, bus.Subscription("paused").Pause())
		require.NoError(t, bus.Subscription("full").Pause())
		for i := range 8 {
			require.NoError(t, bus.Subscription("hooks").Destination("customer-"+strconv.Itoa(i)).Pause())
			_, err := bus.Publish(t.Context(), "hooks", "customer-"+strconv.Itoa(i))
			require.NoError(t, err)
		}
		for name := range handlers {
			for range 2 {
				_, err := bus.Publish(t.Context(), name, "customer-0")
				require.NoError(t, err)
			}
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		o := get[admin.Overview](t, h, "/api/v1/overview")
		var titles []string
		destinations := 0
		for _, c := range o.Concerns {
			require.NotEqual(t, "well", c.Subscription)
			titles = append(titles, c.Title)
			if c.Destination != "" {
				destinations++
			}
		}
		all := strings.Join(titles, "\n") + "\n"
		for _, want := range []string{
			"open has its circuit open\n", "paused is paused\n", "throttled is throttled: 2 deliveries wait\n", "full is paused and is full: 2 deliveries are parked\n",
			"hung is hung: 2 abandoned calls run", "slow is slow: 2 calls took more than a third of the timeout in 5 minutes\n",
			"hooks to customer-0 is paused\n", "hooks has 3 more destinations that are not well\n",
		} {
			require.Contains(t, all, want)
		}
		require.Equal(t, 5, destinations, "one customer's subscription does not fill the list")
		require.Equal(t, admin.SeverityBad, o.Concerns[0].Severity)
		require.Equal(t, admin.SeverityWarn, o.Concerns[len(o.Concerns)-1].Severity)
	})
}

func accept(context.Context, eventbus.Event) error { return nil }
