package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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

func TestOverview_CountsMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		o := get[admin.Overview](t, h, "/api/v1/overview")
		require.Len(t, o.History, 1)
		require.True(t, o.Balanced)
		require.Nil(t, o.OldestWaiting)

		_ = bus.die(t, 3)
		time.Sleep(time.Minute)
		synctest.Wait() // the minute is complete
		_ = bus.die(t, 2)
		o = get[admin.Overview](t, h, "/api/v1/overview")
		require.Len(t, o.History, 2)
		require.EqualValues(t, 3, o.History[0].Accepted)
		require.EqualValues(t, 3, o.History[0].Failures)
		require.EqualValues(t, 2, o.History[1].DeadLettered)
		require.Equal(t, time.Minute, o.History[1].Start.Sub(o.History[0].Start))

		time.Sleep(2 * time.Hour)
		synctest.Wait()
		o = get[admin.Overview](t, h, "/api/v1/overview")
		require.Len(t, o.History, 60)
		for i, m := range o.History[1:] {
			require.Equal(t, time.Minute, m.Start.Sub(o.History[i].Start), "no minute is missing")
			require.Zero(t, m.Accepted)
		}
	})
}

func TestOverview_ShowsWhatWaitsAndWhichCircuitsAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		_, err := bus.Subscribe("mail.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
		require.NoError(t, err)
		h := newHandler(t, bus.Bus)
		m := post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/mail/trip", `{"why":"the provider is down"}`)
		require.Equal(t, eventbus.CircuitOpen, m.Circuit)
		require.Equal(t, "anna", m.Directive.By)
		id, err := bus.Publish(t.Context(), "mail.sent", 1)
		require.NoError(t, err)
		synctest.Wait()
		o := get[admin.Overview](t, h, "/api/v1/overview")
		require.Equal(t, []string{"mail"}, o.OpenCircuits)
		require.Equal(t, id, o.OldestWaiting.Event)
		require.Equal(t, eventbus.ParkCircuit, o.OldestWaiting.Parked)
		require.Equal(t, 1, o.Metrics.Held)

		_ = post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/mail/reset", `{}`)
		synctest.Wait()
		time.Sleep(5 * time.Second)
		require.Nil(t, get[admin.Overview](t, h, "/api/v1/overview").OldestWaiting)

		m = post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/mail/pause", `{"why":"deployment"}`)
		require.True(t, m.Paused)
		m = post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/mail/hold-until", `{"until":"`+time.Now().Add(time.Hour).Format(time.RFC3339)+`"}`)
		require.False(t, m.PausedUntil.IsZero())
		m = post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/mail/resume", `{}`)
		require.False(t, m.Paused)
	})
}

func TestEvents_AreFoundAndCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		id, err := bus.Publish(t.Context(), "order.placed", order{Number: 1}, eventbus.After(time.Hour))
		require.NoError(t, err)
		status := get[eventbus.EventStatus](t, h, "/api/v1/events/"+id.String())
		require.Equal(t, eventbus.DispatchScheduled, status.Dispatches[0].State)
		page := get[eventbus.DispatchPage](t, h, "/api/v1/dispatches?state=scheduled&type=order.*")
		require.Len(t, page.Dispatches, 1)
		_ = post[eventbus.ActionReport](t, h, "/api/v1/events/"+id.String()+"/cancel", `{"why":"ordered twice"}`)
		_ = refused(t, h, request(t, http.MethodPost, "/api/v1/events/"+id.String()+"/cancel", `{}`), admin.CodeSettled)
		audit := get[eventbus.AuditPage](t, h, "/api/v1/audit?action=cancel&event_id="+id.String())
		require.Equal(t, "ordered twice", audit.Entries[0].Why)

		plan := get[eventbus.Plan](t, h, "/api/v1/explain?type=order.placed")
		require.Equal(t, "billing", plan.Targets[0].Subscription)
	})
}

// counting is a store that counts the calls of Stats, of which Metrics makes one.
type counting struct {
	driver.Store
	stats atomic.Int64
}

func (c *counting) Stats(ctx context.Context) (driver.Stats, error) {
	c.stats.Add(1)
	return c.Store.Stats(ctx)
}

// stream is a client of the live page. Its Write blocks while it is stalled.
type stream struct {
	http.ResponseWriter
	stalled <-chan struct{} // nil: never

	mu      sync.Mutex
	events  []string
	flushed bool
}

func (s *stream) Write(data []byte) (int, error) {
	if s.stalled != nil {
		<-s.stalled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := strings.CutPrefix(string(data), "{"); ok {
		s.events = append(s.events, "{"+text)
	}
	return len(data), nil
}

func (s *stream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushed = true
}

func (s *stream) received() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

func TestZ18_LiveClientsShareOneReadAndSlowOnesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: newStore(t)}
		bus := newFailing(t, eventbus.WithStore(store))
		h := newHandler(t, bus.Bus)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		live := func(s *stream) (ended chan struct{}) {
			ended = make(chan struct{})
			s.ResponseWriter = httptest.NewRecorder()
			go func() {
				defer close(ended)
				h.ServeHTTP(s, request(t, http.MethodGet, "/api/v1/live", "").WithContext(ctx))
			}()
			return ended
		}
		stalled := make(chan struct{})
		slow := &stream{stalled: stalled}
		slowEnded := live(slow)
		clients := make([]*stream, 100)
		for i := range clients {
			clients[i] = new(stream)
			live(clients[i])
		}
		synctest.Wait()
		before := store.stats.Load()
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		require.LessOrEqual(t, store.stats.Load()-before, int64(11), "one read a second for 101 clients")
		for _, c := range clients {
			require.GreaterOrEqual(t, c.received(), 10, "a slow client delays no other one")
		}
		close(stalled) // the slow one can read again, but was dropped
		synctest.Wait()
		<-slowEnded
		require.LessOrEqual(t, slow.received(), 4)

		var o admin.Overview
		require.NoError(t, json.Unmarshal([]byte(clients[0].events[0]), &o))
		require.True(t, o.Balanced)
		require.Len(t, o.History, 1)

		cancel()
		synctest.Wait()
		before = store.stats.Load()
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, store.stats.Load()-before, int64(2), "no client, no read, but that of the minute")
	})
}

// A page that is opened between two messages learns at once that it is connected.
func TestLive_AnswersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newFailing(t).Bus)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		clients := [2]*stream{}
		for i := range clients {
			clients[i] = &stream{ResponseWriter: httptest.NewRecorder()}
			go h.ServeHTTP(clients[i], request(t, http.MethodGet, "/api/v1/live", "").WithContext(ctx))
			synctest.Wait()
		}
		clients[1].mu.Lock()
		defer clients[1].mu.Unlock()
		require.Empty(t, clients[1].events)
		require.True(t, clients[1].flushed)
	})
}

func TestLive_IsBoundedAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		open := func() (ended chan struct{}) {
			ended = make(chan struct{})
			go func() {
				defer close(ended)
				h.ServeHTTP(&stream{ResponseWriter: httptest.NewRecorder()}, request(t, http.MethodGet, "/api/v1/live", ""))
			}()
			return ended
		}
		first := open()
		time.Sleep(5 * time.Minute)
		<-first // a browser reconnects, and is authorized again

		var all []chan struct{}
		for range 256 {
			all = append(all, open())
		}
		synctest.Wait()
		_ = refused(t, h, request(t, http.MethodGet, "/api/v1/live", ""), admin.CodeRateLimited)
		require.NoError(t, bus.Shutdown(t.Context()))
		for _, ended := range all {
			<-ended
		}
	})
}

func TestLive_OverTheNetwork(t *testing.T) {
	bus := newFailing(t)
	server := httptest.NewServer(newHandler(t, bus.Bus))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/live", nil)
	require.NoError(t, err)
	answer, err := server.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for _, prefix := range []string{"event: overview", "data: {", "", "event: overview", "data: {"} {
		require.True(t, lines.Scan())
		require.True(t, strings.HasPrefix(lines.Text(), prefix), lines.Text())
	}
	cancel()
}

func TestTool_ShowsTheCatalogOfTheOtherBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		store := model.Open()
		bus := newFailing(t, eventbus.WithStore(store))
		letter := bus.die(t, 1)[0]
		time.Sleep(time.Minute) // the catalog is recorded

		tool, err := eventbus.New(eventbus.WithStore(model.Open()), eventbus.WithoutHandlers())
		require.NoError(t, err)
		defer tool.Shutdown(t.Context())
		h := newHandler(t, tool)
		page := get[admin.SubscriptionPage](t, h, "/api/v1/subscriptions")
		require.Equal(t, 1, page.Total)
		require.False(t, page.CatalogAt.IsZero())
		require.Equal(t, "billing", page.Subscriptions[0].Subscription)
		require.Equal(t, eventbus.CircuitDisabled, page.Subscriptions[0].Circuit)
		plan := get[eventbus.Plan](t, h, "/api/v1/explain?type=order.placed")
		require.Equal(t, "billing", plan.Targets[0].Subscription)
		require.False(t, plan.CatalogAt.IsZero())
		require.Equal(t, http.StatusOK, serve(h, request(t, http.MethodGet, "/subscriptions", "")).Code)

		m := post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/billing/pause", `{"why":"deployment"}`)
		require.True(t, m.Paused)
		require.Equal(t, "deployment", m.Directive.Why)
		time.Sleep(time.Second)
		require.True(t, bus.Metrics().Subscriptions[0].Paused, "the bus with the handlers obeys")
		_ = post[eventbus.SubscriptionMetrics](t, h, "/api/v1/subscriptions/billing/resume", `{}`)
		close(bus.healed)
		_ = post[admin.Done](t, h, "/api/v1/letters/"+letter.ID.String()+"/replay", `{}`)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, bus.letters(t))
	})
}
