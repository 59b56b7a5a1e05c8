package admin_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

const prefix = "/admin"

// newVisitor returns an operator who may do everything.
func newVisitor(t *testing.T, bus *eventbus.Bus, opts ...admin.Option) *visitor {
	t.Helper()
	return &visitor{t: t, h: newHandler(t, bus, append([]admin.Option{admin.WithPrefix(prefix)}, opts...)...)}
}

// newBus returns a bus that ends with the test, however much is unfinished.
func newBus(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel() // the unfinished become dead letters at once
		err := bus.Shutdown(ended)
		require.True(t, err == nil || errors.As(err, new(*eventbus.ShutdownError)), err)
	})
	return bus
}

// pagesOf are the pages that exist whatever the bus has.
var pagesOf = []string{"/", "/groups", "/letters", "/operations", "/subscriptions", "/events", "/explain", "/audit"}

// Each page of an empty bus says what appears there, and no link leads nowhere.
func TestPages_Empty(t *testing.T) {
	bus := newBus(t)
	v := newVisitor(t, bus)
	paths := v.crawl(prefix+"/", 400)
	for _, page := range pagesOf {
		assert.True(t, paths[prefix+page], "no link to %s", page)
	}
	for page, text := range map[string]string{
		"/":              "Nothing: every circuit is closed",
		"/groups":        "There is no dead letter.",
		"/letters":       "There is no dead letter.",
		"/operations":    "No bulk operation ran",
		"/subscriptions": "There is no subscription.",
		"/events":        "every event has settled",
		"/explain":       "Enter a type",
		"/audit":         "No operator has done anything yet.",
		"/bulk?action=replay_matching&type=order.*": "No letter matches.",
		"/letters?type=order.*":                     "No letter matches. Remove a filter",
		"/explain?type=order.placed":                "the event would be unrouted",
	} {
		assert.Contains(t, v.visit(prefix+page).text(), text, page)
	}
}

// busy is a bus with something of everything.
type busy struct {
	*eventbus.Bus
	letters   []eventbus.DeadLetter
	scheduled eventbus.EventID
}

func newBusy(t *testing.T) *busy {
	t.Helper()
	b := &busy{Bus: newBus(t, eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))}
	_, err := b.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error {
		if e.Type == "order.retried" {
			return errors.New("bank is busy")
		}
		return eventbus.Permanent(errors.New("card declined"))
	}, eventbus.Named("billing"), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	mail, err := b.Subscribe("mail.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail/eu"))
	require.NoError(t, err)
	stock, err := b.Subscribe("stock.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("stock"))
	require.NoError(t, err)
	require.NoError(t, b.Start(t.Context()))
	require.NoError(t, mail.Pause(eventbus.By("anna"), eventbus.Because("the mail server moves")))
	require.NoError(t, stock.Trip(eventbus.By("ben")))

	for i := range 60 {
		_, err := b.PublishAndWait(t.Context(), "order.placed", order{Number: i}, eventbus.Key("k-1"), eventbus.Metadata("channel", "web"))
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		b.letters = append(b.letters, failed.Letters...)
	}
	for _, eventType := range []string{"mail.sent", "stock.counted"} {
		_, err = b.Publish(t.Context(), eventType, nil)
		require.NoError(t, err)
	}
	_, err = b.Publish(t.Context(), "order.retried", nil)
	require.NoError(t, err)
	b.scheduled, err = b.Publish(t.Context(), "order.reminded", nil, eventbus.After(time.Hour))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		m := b.Metrics()
		return m.Held == 2 && m.WaitingRetries == 1
	}, 10*time.Second, time.Millisecond)
	return b
}

// Every page of a busy bus is well formed and light, and every link leads somewhere.
func TestPages_Busy(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	_, err := bus.PublishAndWait(t.Context(), "order.placed", nil) // for the charts, which begin with the handler
	require.Error(t, err)
	v.follow(v.submit(v.visit(prefix+"/bulk?action=purge_matching&key=k-1&until="+rfc(bus.letters[0].DiedAt)).formWith(t, "Purge 1 letter"), "Purge 1 letter", map[string]string{"confirm": "1"}))
	paths := v.crawl(prefix+"/", 400)
	letter := prefix + "/letters/" + bus.letters[59].ID.String()
	for _, path := range []string{
		letter, letter + "/edit", letter + "/purge", prefix + "/bulk", prefix + "/subscriptions/mail/eu", prefix + "/events/" + bus.scheduled.String(),
		prefix + "/static/app.css", prefix + "/static/app.js", prefix + "/static/icon.svg", prefix + "/api/v1/letters/export",
	} {
		assert.True(t, paths[path], "no link to %s", path)
	}

	overview := v.visit(prefix + "/")
	for _, text := range []string{
		"mail/eu is paused", "stock has its circuit open", "1 delivery is held", "card declined *errors.errorString billing 60 60 60", "growing Replay…", "books balance",
		"Accepted 65", "Oldest dispatch:",
	} {
		assert.Contains(t, overview.text(), text)
	}
	assert.Len(t, overview.all("svg"), 3)
	assert.NotEmpty(t, overview.all("rect"))
	groups := v.visit(prefix + "/groups").text()
	assert.Contains(t, groups, "1 group")
	assert.Contains(t, groups, "card declined")
	subscription := v.visit(prefix + "/subscriptions/mail%2Feu").text()
	assert.Contains(t, subscription, "paused by anna: the mail server moves")
	events := v.visit(prefix + "/events?state=waiting").text()
	assert.Contains(t, events, "order.retried")
	assert.NotContains(t, events, "mail.sent")
	assert.Contains(t, v.visit(prefix+"/audit?by=ben").text(), "Trip")
}

func rfc(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// The list has pages, and its filters are in the address, so that a link can be shared.
func TestPages_LettersFilteredAndPaged(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	found, pages := make(map[string]bool), 0
	for next := prefix + "/letters?type=order.*&key=k-1&subscription=&reason=permanent&metadata_name=channel&metadata_value=web&limit=25"; next != ""; pages++ {
		d := v.visit(next)
		next = ""
		for _, e := range d.all("a") {
			switch id, isLetter := strings.CutPrefix(e.attrs["href"], prefix+"/letters/"); {
			case isLetter:
				found[id] = true
			case e.attrs["rel"] == "next":
				next = e.attrs["href"]
				assert.Contains(t, next, "key=k-1")
			}
		}
	}
	assert.Equal(t, 3, pages)
	assert.Len(t, found, 60)
	assert.Contains(t, v.visit(prefix+"/letters?error=no+such+text").text(), "No letter matches.")
}

// A filter that is not valid keeps the form as it was typed, and says what to correct.
func TestPages_BadFilters(t *testing.T) {
	v := newVisitor(t, newBus(t))
	for target, want := range map[string]string{
		"/letters?since=yesterday&type=order.*": "RFC 3339",
		"/letters?colour=red":                   "unknown",
		"/letters?type=%5B":                     "pattern",
		"/letters?limit=0":                      "number from 1 to 500",
		"/letters?type=a&type=b":                "repeated",
		"/events?state=lost":                    "State",
		"/events?id=42":                         "not the id of an event",
		"/events/42":                            "not the id of an event",
		"/letters/42":                           "not the id of a dead letter",
		"/audit?before=-1":                      "before",
		"/explain?type=order.*":                 "order.*",
		"/bulk":                                 "action",
		"/bulk?action=drop":                     "action",
		"/groups?offset=x":                      "offset",
		"/?x=1":                                 "unknown",
		"/static/passwd":                        "no such file",
	} {
		d := v.load(prefix + target)
		assert.GreaterOrEqual(t, d.Code, 400, target)
		assert.Less(t, d.Code, 500, target)
		assert.Contains(t, d.text(), want, target)
	}
	d := v.load(prefix + "/letters?since=yesterday&type=order.*")
	assert.Equal(t, "yesterday", d.formWith(t, "Filter").values.Get("since"))
	assert.Equal(t, "order.*", d.formWith(t, "Filter").values.Get("type"))
}

// What the operator may not do is not offered, and payloads stay hidden.
func TestPages_OfferWhatIsPermitted(t *testing.T) {
	bus := newBusy(t)
	id := bus.letters[0].ID.String()
	viewer := func(_ *http.Request, action admin.Action) (admin.Principal, error) {
		if action != admin.ActionView {
			return admin.Principal{Name: "vera"}, admin.ErrForbidden
		}
		return admin.Principal{Name: "vera"}, nil
	}
	pages := append([]string{"/letters/" + id, "/subscriptions/stock", "/events/" + bus.scheduled.String()}, pagesOf...)
	for name, opts := range map[string][]admin.Option{
		"a viewer":           {admin.WithAuthorizer(viewer)},
		"a read-only page":   {admin.ReadOnly()},
		"without authorizer": nil,
	} {
		t.Run(name, func(t *testing.T) {
			v := newVisitor(t, bus.Bus, opts...)
			if opts == nil {
				v.h = admin.Handler(bus.Bus, admin.WithPrefix(prefix))
			}
			for _, page := range pages {
				d := v.visit(prefix + page)
				for _, f := range d.forms {
					assert.Equal(t, "get", f.method, page)
				}
				for _, link := range d.links() {
					assert.NotRegexp(t, `/bulk|/edit|/purge`, link, page)
				}
				assert.Contains(t, d.Body.String(), "read-only", page)
			}
			letter := v.visit(prefix + "/letters/" + id).text()
			if name == "a read-only page" {
				assert.Contains(t, letter, `"number": 0`)
			} else {
				assert.Contains(t, letter, "Hidden: 12 bytes, SHA-256")
				assert.NotContains(t, letter, `"number"`)
			}
			for _, page := range []string{"/letters/" + id + "/edit", "/letters/" + id + "/purge", "/bulk?action=replay_matching"} {
				assert.Equal(t, http.StatusForbidden, v.load(prefix+page).Code, page)
			}
		})
	}
}

// Errors before a page is known are pages for browsers, too, and never ask for another login.
func TestPages_Errors(t *testing.T) {
	v := newVisitor(t, newBus(t), admin.WithAuthorizer(func(*http.Request, admin.Action) (admin.Principal, error) {
		return admin.Principal{}, &admin.ChallengeError{Challenge: `Basic realm="eventbus"`}
	}))
	d := v.load(prefix + "/groups")
	assert.Equal(t, http.StatusUnauthorized, d.Code)
	assert.Equal(t, `Basic realm="eventbus"`, d.Header().Get("WWW-Authenticate"))
	assert.Contains(t, d.text(), "no valid credentials")
	assert.Contains(t, d.text(), d.Header().Get("X-Request-Id"))

	v = newVisitor(t, newBus(t))
	r := request(t, http.MethodGet, prefix+"/nowhere", "")
	r.Header.Set("Accept", "text/html,*/*")
	d = v.check("/nowhere", serve(v.h, r))
	assert.Equal(t, http.StatusNotFound, d.Code)
	assert.Equal(t, http.StatusNotFound, v.load(prefix+"/letters/"+eventbus.LetterID{1}.String()).Code)
	assert.Equal(t, http.StatusNotFound, v.load(prefix+"/events/"+eventbus.NewEventID().String()).Code)
	assert.Equal(t, http.StatusNotFound, v.load(prefix+"/subscriptions/none").Code)
	assert.Equal(t, http.StatusNotFound, v.load(prefix+"/operations/none").Code)
}

// The story of a letter has every attempt with its delay, its duration and its error, and the stack of a panic.
func TestPages_Story(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t, eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(7*time.Second), eventbus.NoJitter))
		calls := 0
		_, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
			time.Sleep(2 * time.Second)
			if calls++; calls > 1 {
				panic("no such customer")
			}
			return errors.New("bank is busy\nticket 7")
		}, eventbus.Named("billing"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		_, err = bus.PublishAndWait(t.Context(), "order.placed", order{Number: 1})
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		v := newVisitor(t, bus)
		d := v.visit(prefix + "/letters/" + failed.Letters[0].ID.String())
		for _, text := range []string{
			"Attempt 1 failed at billing", "took 2 s", "bank is busy ticket 7",
			"Attempt 2 failed at billing", "began 7 s after the failure before", "no such customer", "Stack goroutine",
			"Dead letter: exhausted", "11 s ago",
		} {
			assert.Contains(t, d.text(), text)
		}
	})
}
