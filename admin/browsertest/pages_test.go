package browsertest_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// shownPage is a page with something to show.
type shownPage struct {
	name, path string
	status     int // of a page that is an error; 0 for 200
}

// orphan is a name with deliveries and no subscription in the shop of newFullOfPages.
const orphan = "crm of last year"

// newFullOfPages returns a shop in which every page has something to show, and its pages. It stays as it is, apart from its times.
func newFullOfPages(t *testing.T) (*shop, []shownPage) {
	t.Helper()
	s := newShop(t, eventbus.WithStore(withOrphan(t).Open()))
	letters := s.die(12, eventbus.Key("o-17"), eventbus.Metadata("channel", "web"))
	s.hold(3)
	s.schedule()
	s.detach()
	s.divide()
	id := func(letter string) (eventbus.LetterID, string) {
		parsed, err := eventbus.ParseLetterID(letter)
		require.NoError(t, err)
		found, err := s.DLQ().Get(t.Context(), parsed)
		require.NoError(t, err)
		return parsed, found.Event.ID.String()
	}
	s.bank.Store(true)
	handled, handledEvent := id(letters[0])
	require.NoError(t, s.DLQ().Replay(t.Context(), handled, eventbus.By("anna"), eventbus.Because("the bank answers")))
	require.Eventually(t, func() bool { return s.Metrics().Ledger.Running == 0 && s.Metrics().Subscriptions[0].Successes == 1 }, patience, time.Millisecond)
	s.bank.Store(false)
	again, againEvent := id(letters[1])
	require.NoError(t, s.DLQ().Replay(t.Context(), again, eventbus.By("boris")))
	letters[1] = s.letterOf(againEvent)
	held := s.heldEvent()

	b := open(t, s, "anna")
	replay := b.operate("/bulk?action=replay_matching&key=o-17", "Replay 11 letters", "")
	b.untilText("done: 11 of 11 letters")
	require.Eventually(t, func() bool { return s.lettersLeft() == 11 }, patience, time.Millisecond)
	running := b.operate("/bulk?action=replay_matching&key=o-17", "Replay 11 letters", "0.0001")
	b.until("the first letter", progress+" > 0")
	verbs := b.operate("/events/bulk?action=retry_now_matching&subscription=stock", "Retry now: 3 events", "")
	require.Eventually(t, func() bool { return s.lettersLeft() == 11 }, patience, time.Millisecond)
	letters[1] = s.letterOf(againEvent)

	letter := "/letters/" + letters[1]
	return s, []shownPage{
		{name: "overview", path: "/"},
		{name: "groups", path: "/groups"},
		{name: "letters", path: "/letters"},
		{name: "letters-filtered", path: "/letters?key=o-17&metadata_name=channel&metadata_value=web"},
		{name: "letter-again", path: letter},
		{name: "letter-replayed", path: "/letters/" + handled.String()},
		{name: "edit", path: letter + "/edit"},
		{name: "purge", path: letter + "/purge"},
		{name: "bulk", path: "/bulk?action=replay_matching&subscription=billing"},
		{name: "bulk-purge", path: "/bulk?action=purge_matching"},
		{name: "operations", path: "/operations"},
		{name: "operation", path: replay},
		{name: "operation-running", path: running},
		{name: "operation-events", path: verbs},
		{name: "subscriptions", path: "/subscriptions"},
		{name: "subscription", path: "/subscriptions/stock"},
		{name: "day", path: "/subscriptions/billing?span=day"},
		{name: "destinations", path: "/subscriptions/hooks"},
		{name: "detached", path: "/subscriptions/moved"},
		{name: "orphan", path: "/subscriptions/" + url.PathEscape(orphan)},
		{name: "retire-detached", path: "/subscriptions/moved/retire"},
		{name: "retire-orphan", path: "/subscriptions/" + url.PathEscape(orphan) + "/retire"},
		{name: "retire-refused", path: "/subscriptions/billing/retire"},
		{name: "events", path: "/events"},
		{name: "events-filtered", path: "/events?state=parked&subscription=stock"},
		{name: "event-handled", path: "/events/" + handledEvent},
		{name: "event-dead", path: "/events/" + againEvent},
		{name: "event-held", path: "/events/" + held},
		{name: "cancel", path: "/events/" + held + "/cancel"},
		{name: "give-up", path: "/events/" + held + "/give-up?subscription=stock"},
		{name: "bulk-retry-now", path: "/events/bulk?action=retry_now_matching&subscription=stock"},
		{name: "bulk-give-up", path: "/events/bulk?action=give_up_matching&subscription=stock"},
		{name: "bulk-cancel", path: "/events/bulk?action=cancel_matching"},
		{name: "explain", path: "/explain?type=order.paid"},
		{name: "explain-nothing", path: "/explain"},
		{name: "audit", path: "/audit"},
		{name: "error", path: "/events/no-id", status: http.StatusBadRequest},
		{name: "unknown", path: "/no-such-page", status: http.StatusNotFound},
	}
}

// withOrphan returns a store in which deliveries wait for a subscription that the shop does not have.
func withOrphan(t *testing.T) *storetest.Model {
	t.Helper()
	model := storetest.NewModel()
	before, err := eventbus.New(eventbus.WithStore(model.Open()))
	require.NoError(t, err)
	s, err := before.Subscribe("customer.*", accept, eventbus.Named(orphan))
	require.NoError(t, err)
	require.NoError(t, before.Start(t.Context()))
	require.NoError(t, s.Pause())
	for range 2 {
		_, err = before.Publish(t.Context(), "customer.moved", order{})
		require.NoError(t, err)
	}
	require.NoError(t, before.Shutdown(t.Context()))
	return model
}

// detach detaches a subscription for which a delivery waits.
func (s *shop) detach() {
	s.t.Helper()
	moved, err := s.Subscribe("moved.*", accept, eventbus.Named("moved"))
	require.NoError(s.t, err)
	require.NoError(s.t, moved.Pause())
	_, err = s.Publish(s.t.Context(), "moved.away", order{})
	require.NoError(s.t, err)
	require.NoError(s.t, moved.Detach())
}

// divide subscribes with PerDestination. The destination globex fails, and acme is paused.
func (s *shop) divide() {
	s.t.Helper()
	destination := func(e eventbus.Event) string { return strings.TrimPrefix(e.Type, "hook.") }
	hooks, err := s.Subscribe("hook.*", func(_ context.Context, e eventbus.Event) error {
		if destination(e) == "globex" {
			return errors.New("globex does not answer")
		}
		return nil
	}, eventbus.Named("hooks"), eventbus.PerDestination(destination),
		eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited), eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
	require.NoError(s.t, err)
	require.NoError(s.t, hooks.Destination("acme").Pause(eventbus.By("anna"), eventbus.Because("their migration")))
	for range 3 {
		for _, customer := range []string{"acme", "globex", "initech"} {
			_, err := s.Publish(s.t.Context(), "hook."+customer, order{})
			require.NoError(s.t, err)
		}
	}
	require.Eventually(s.t, func() bool { return s.Metrics().Subscriptions[4].Failures == 3 }, patience, time.Millisecond)
	require.NoError(s.t, hooks.Destination("globex").Trip(eventbus.By("boris")))
}

// letterOf returns the letter of an event, once it has one.
func (s *shop) letterOf(event string) (letter string) {
	s.t.Helper()
	id, err := eventbus.ParseEventID(event)
	require.NoError(s.t, err)
	require.Eventually(s.t, func() bool {
		status, err := s.Event(s.t.Context(), id)
		require.NoError(s.t, err)
		if status.Letters.Total > 0 {
			letter = status.Letters.Letters[0].ID.String()
		}
		return letter != ""
	}, patience, time.Millisecond)
	return letter
}

// heldEvent returns an event that stock holds.
func (s *shop) heldEvent() string {
	s.t.Helper()
	page, err := s.Dispatches(s.t.Context(), eventbus.DispatchQuery{Subscription: "stock", State: eventbus.DispatchParked, Limit: 1})
	require.NoError(s.t, err)
	require.NotEmpty(s.t, page.Dispatches)
	return page.Dispatches[0].Event.String()
}

// operate begins a bulk operation on the page with its form, and returns the path of its own page.
func (b *tab) operate(form, button, rate string) string {
	b.t.Helper()
	b.visit(form)
	if rate != "" {
		b.fill("Rate, in letters per second", rate)
	}
	b.fill("Why (in the audit)", "a drill")
	b.do(button, "Started")
	return b.path()
}

// open loads a page with something to show.
func (b *tab) open(p shownPage) {
	b.t.Helper()
	if p.status == 0 {
		b.visit(p.path)
		return
	}
	require.Equal(b.t, p.status, b.load(b.shop.url+p.path), p.path)
	b.refused(p.status)
}

// pathOf returns the path of a page by its name.
func pathOf(pages []shownPage, name string) string {
	return pages[slices.IndexFunc(pages, func(p shownPage) bool { return p.name == name })].path
}
