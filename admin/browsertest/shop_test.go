package browsertest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

const prefix = "/admin"

// password is that of every operator.
const password = "correct horse"

// order is the payload of the shop's events.
type order struct {
	Number   int    `json:"number"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// shop is a bus with an admin page. The subscription billing refuses order.paid until the bank answers, mail handles every
// order, and stock is for tests to hold.
type shop struct {
	*eventbus.Bus
	t    *testing.T
	url  string // of the page, without a slash at the end
	bank atomic.Bool

	server  *httptest.Server
	handler atomic.Pointer[http.Handler] // nil while the process of the page is down
	streams atomic.Int64                 // that are open
}

// ServeHTTP passes a request to the handler, and counts the streams.
func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler := s.handler.Load()
	if handler == nil {
		panic(http.ErrAbortHandler)
	}
	if r.Header.Get("Accept") == "text/event-stream" {
		s.streams.Add(1)
		defer s.streams.Add(-1)
	}
	(*handler).ServeHTTP(w, r)
}

// up starts the page with a password for every operator.
func (s *shop) up(secret string) {
	s.t.Helper()
	var operators []admin.Operator
	for _, name := range []string{"anna", "boris"} {
		operators = append(operators, admin.Operator{Name: name, Secret: secret})
	}
	operators = append(operators, admin.Operator{Name: "guest", Secret: secret, Actions: []admin.Action{admin.ActionView}})
	authorize, err := admin.BasicAuth(operators...)
	require.NoError(s.t, err)
	handler, err := admin.New(s.Bus, admin.WithAuthorizer(authorize), admin.WithPrefix(prefix))
	require.NoError(s.t, err)
	s.handler.Store(&handler)
}

// down breaks all connections, as the end of the process does.
func (s *shop) down() {
	s.handler.Store(nil)
	s.server.CloseClientConnections()
}

func newShop(t *testing.T, opts ...eventbus.Option) *shop {
	t.Helper()
	bus, err := eventbus.New(opts...)
	require.NoError(t, err)
	s := &shop{Bus: bus, t: t}
	for _, sub := range []struct {
		name, pattern string
		handle        eventbus.Handler
	}{{"billing", "order.paid", s.bill}, {"mail", "order.*", accept}, {"stock", "stock.*", accept}} {
		_, err := bus.Subscribe(sub.pattern, sub.handle, eventbus.Named(sub.name), eventbus.Circuit(eventbus.MinEvents(1_000_000)))
		require.NoError(t, err)
	}
	require.NoError(t, bus.Start(context.WithoutCancel(t.Context())))

	s.up(password)
	server := httptest.NewServer(s)
	s.server, s.url = server, server.URL+prefix
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel() // the unfinished become dead letters at once
		if err := bus.Shutdown(ended); err != nil && !errors.As(err, new(*eventbus.ShutdownError)) {
			t.Errorf("shutdown: %v", err)
		}
		server.CloseClientConnections()
		server.Close()
	})
	return s
}

func accept(context.Context, eventbus.Event) error { return nil }

func (s *shop) bill(_ context.Context, e eventbus.Event) error {
	if s.bank.Load() {
		return nil
	}
	o, _ := e.Payload.(order)
	return eventbus.Permanent(fmt.Errorf("the bank refused card %d", o.Number))
}

// die publishes events that the bank refuses, and returns the ids of their letters, oldest first.
func (s *shop) die(n int, opts ...eventbus.PublishOption) (letters []string) {
	s.t.Helper()
	for i := range n {
		_, err := s.PublishAndWait(s.t.Context(), "order.paid", order{Number: i + 1, Customer: "c-17", Cents: 4200}, opts...)
		var failed *eventbus.DeliveryError
		require.ErrorAs(s.t, err, &failed)
		for _, l := range failed.Letters {
			letters = append(letters, l.ID.String())
		}
	}
	return letters
}

// schedule publishes an event that is due in an hour.
func (s *shop) schedule() string {
	s.t.Helper()
	id, err := s.Publish(s.t.Context(), "order.reminded", order{Number: 7}, eventbus.After(time.Hour))
	require.NoError(s.t, err)
	return id.String()
}

// hold pauses stock and publishes events that it holds.
func (s *shop) hold(n int) {
	s.t.Helper()
	require.NoError(s.t, s.Subscription("stock").Pause(eventbus.By("anna"), eventbus.Because("the warehouse moves")))
	for range n {
		_, err := s.Publish(s.t.Context(), "stock.moved", order{})
		require.NoError(s.t, err)
	}
}

// lettersLeft returns the number of dead letters.
func (s *shop) lettersLeft() int {
	s.t.Helper()
	page, err := s.DLQ().List(s.t.Context(), eventbus.LetterQuery{Limit: 1, ExactTotal: true})
	require.NoError(s.t, err)
	return page.Total
}

// lastAudit returns the newest entry of the audit.
func (s *shop) lastAudit() eventbus.AuditEntry {
	s.t.Helper()
	page, err := s.Audit(s.t.Context(), eventbus.AuditQuery{Limit: 1})
	require.NoError(s.t, err)
	require.NotEmpty(s.t, page.Entries)
	return page.Entries[0]
}

// status is an HTTP status with its name, for messages.
func status(code int) string { return fmt.Sprintf("%d %s", code, http.StatusText(code)) }
