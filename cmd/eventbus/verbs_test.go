package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/store/sqlite"
)

// shop is a bus over a file, with an admin API. Its subscription mail retries in an hour, crm is tripped, and calls has calls that do not return.
type shop struct {
	*eventbus.Bus
	at map[string][]string // the flags of each backend
}

func newShop(t *testing.T) *shop {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	store, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithSlog(slog.DiscardHandler), eventbus.WithIsolation())
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel() // calls would hang for an hour
		_ = bus.Shutdown(ended)
	})
	fails := func(context.Context, eventbus.Event) error { return errors.New("closed") }
	for name, handler := range map[string]eventbus.Handler{
		"mail": fails, "copy": fails, "crm": fails, "calls": func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return ctx.Err() },
	} {
		pattern := map[string]string{"copy": "mail"}[name]
		if pattern == "" {
			pattern = name
		}
		_, err = bus.Subscribe(pattern, handler, eventbus.Named(name), eventbus.Timeout(time.Hour), eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
		require.NoError(t, err)
	}
	require.NoError(t, bus.Start(t.Context()))
	require.NoError(t, bus.Subscription("crm").Trip())
	h, err := admin.New(bus, admin.WithAuthorizer(func(*http.Request, admin.Action) (admin.Principal, error) { return admin.Principal{Name: "anna"}, nil }))
	require.NoError(t, err)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return &shop{bus, map[string][]string{"store": {"--store", path}, "url": {"--url", server.URL}}}
}

// publish returns the id of an event of which all dispatches have a state.
func (s *shop) publish(t *testing.T, eventType string, state eventbus.DispatchState) string {
	t.Helper()
	id, err := s.Publish(t.Context(), eventType, nil, eventbus.ID(eventbus.NewEventID()))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		status, err := s.Event(t.Context(), id)
		for _, d := range status.Dispatches {
			if d.State != state {
				return false
			}
		}
		return err == nil && len(status.Dispatches) > 0
	}, settles, tick)
	return id.String()
}

// onShop runs a test for each backend.
func onShop(t *testing.T, test func(t *testing.T, s *shop, events func(args ...string) (code int, out, errOut string))) {
	t.Helper()
	for _, how := range []string{"store", "url"} {
		t.Run(how, func(t *testing.T) {
			s := newShop(t)
			test(t, s, func(args ...string) (int, string, string) {
				t.Helper()
				return call(t, append(append([]string{"events"}, args...), s.at[how]...)...)
			})
		})
	}
}

// An event ends wherever it is. Once more is a conflict.
func TestV1_EventsCancel(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		for eventType, state := range map[string]eventbus.DispatchState{"calls": eventbus.DispatchRunning, "crm": eventbus.DispatchParked} {
			id := s.publish(t, eventType, state)
			code, out, errOut := events("cancel", id, "--because", "ordered twice")
			require.Zero(t, code, errOut)
			require.True(t, strings.HasPrefix(out, "cancelled "+id), out)
			code, out, errOut = events("cancel", id)
			require.Contains(t, []int{exitConflict, exitNotFound}, code)
			require.Empty(t, out)
			require.Contains(t, errOut, "next: ")
		}
		page, err := s.Audit(t.Context(), eventbus.AuditQuery{Action: eventbus.AuditCancel})
		require.NoError(t, err)
		require.Len(t, page.Entries, 2)
		require.Equal(t, "ordered twice", page.Entries[0].Why)
	})
}

// A report lists each delivery with what was done, as text and as JSON.
func TestV1_TheReportOfSeveralDeliveries(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		id := s.publish(t, "mail", eventbus.DispatchWaiting)
		code, out, errOut := events("retry", id)
		require.Zero(t, code, errOut)
		require.Regexp(t, `^retried `+id+`\nSUBSCRIPTION +WAS +TRIES +THEN +RESULT\n(copy|mail) +waiting +1 +retried\n(copy|mail) +waiting +1 +retried\n$`, out)
		id = s.publish(t, "mail", eventbus.DispatchWaiting)
		code, out, errOut = events("cancel", id, "--json")
		require.Zero(t, code, errOut)
		var report eventbus.ActionReport
		require.NoError(t, json.Unmarshal([]byte(out), &report))
		require.Equal(t, id, report.Event.String())
		require.Len(t, report.Deliveries, 2)
		require.True(t, report.Deliveries[0].Done && report.Deliveries[1].Done)
	})
}

// What is held needs --probe, and the error says so.
func TestV2_EventsRetry(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		id := s.publish(t, "crm", eventbus.DispatchParked)
		code, out, errOut := events("retry", id)
		require.Equal(t, exitConflict, code)
		require.Regexp(t, `crm +parked \(circuit_open\) +0 +left: it is held; Probe tries it nevertheless`, out)
		require.Contains(t, errOut, "nothing was done: crm is parked: it is held")
		code, out, errOut = events("retry", id, "--json")
		require.Equal(t, exitConflict, code)
		require.True(t, json.Valid([]byte(out)), out)
		require.Contains(t, errOut, "next: ")
		code, out, errOut = events("retry", id, "--probe", "--because", "the CRM answers")
		require.Zero(t, code, errOut)
		require.Equal(t, "retried "+id+"\n", out)
		running := s.publish(t, "calls", eventbus.DispatchRunning)
		code, out, errOut = events("retry", running)
		require.Zero(t, code, errOut)
		require.Equal(t, running+" goes on by itself: nothing had to be done\n", out)
	})
}

// What waits becomes dead letters, a running call does not.
func TestV3_EventsGiveUp(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		id := s.publish(t, "crm", eventbus.DispatchParked)
		code, out, errOut := events("give-up", id, "--because", "no customer")
		require.Zero(t, code, errOut)
		require.Equal(t, "gave up "+id+"\n", out)
		letters, err := s.DLQ().List(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonOperator})
		require.NoError(t, err)
		require.Equal(t, 1, letters.Total)
		code, _, errOut = events("give-up", s.publish(t, "calls", eventbus.DispatchRunning))
		require.Equal(t, exitConflict, code)
		require.Contains(t, errOut, "its handler runs")
	})
}

// One delivery ends, and the other stays.
func TestV4_EventsOfOneSubscription(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		id := s.publish(t, "mail", eventbus.DispatchWaiting)
		code, out, errOut := events("give-up", id, "--subscription", "copy")
		require.Zero(t, code, errOut)
		require.Equal(t, "gave up "+id+"\n", out)
		_, out, _ = events("show", id)
		require.Contains(t, out, "mail")
		for _, name := range []string{"copy", "nobody"} {
			code, _, errOut = events("give-up", id, "--subscription", name)
			require.Equal(t, exitConflict, code)
			require.Contains(t, errOut, "for the subscription \""+name+"\"")
		}
	})
}

// Without a running bus, the command does it.
func TestV4_EventsOfflineAreActedOn(t *testing.T) {
	s := newShop(t)
	id := s.publish(t, "crm", eventbus.DispatchParked)
	require.NoError(t, s.Shutdown(t.Context()))
	args := append([]string{"--by", "joe"}, s.at["store"]...)
	code, out, errOut := call(t, append([]string{"events", "give-up", id}, args...)...)
	require.Zero(t, code, errOut)
	require.Equal(t, "gave up "+id+"\n", out)
	code, out, errOut = call(t, append([]string{"audit", "--action", "give_up", "--json"}, s.at["store"]...)...)
	require.Zero(t, code, errOut)
	require.Contains(t, out, `"by":"joe"`)
}

// After a replay, 'events show' says what became of the event, and by whom it was replayed. The exit code is 0.
func TestV5_EventsShowTellsWhatBecameOfAnEvent(t *testing.T) {
	s := newShop(t)
	at := s.at["url"]
	healed := make(chan struct{})
	_, err := s.Subscribe("order", func(context.Context, eventbus.Event) error {
		select {
		case <-healed:
			return nil
		default:
			return eventbus.Permanent(errors.New("declined"))
		}
	}, eventbus.Named("billing"))
	require.NoError(t, err)
	_, err = s.PublishAndWait(t.Context(), "order", nil)
	var failed *eventbus.DeliveryError
	require.ErrorAs(t, err, &failed)
	id := failed.Letters[0].Event.ID.String()
	code, out, errOut := call(t, append([]string{"events", "show", id}, at...)...)
	require.Zero(t, code, errOut)
	require.Regexp(t, `^dead-lettered at billing at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ, attempt 1\n`, out)
	close(healed)
	code, _, errOut = call(t, append([]string{"dlq", "replay", failed.Letters[0].ID.String()}, at...)...)
	require.Zero(t, code, errOut)
	require.NoError(t, s.Drain(t.Context()))
	code, out, errOut = call(t, append([]string{"events", "show", id}, at...)...)
	require.Zero(t, code, errOut)
	require.Regexp(t, `\nhandled by billing at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ, attempt 1, replayed by anna\n$`, out)
	code, out, errOut = call(t, append([]string{"events", "show", id, "--json"}, at...)...)
	require.Zero(t, code, errOut)
	require.Regexp(t, `"settled":\[.*\{"subscription":"billing","outcome":"handled","at":"[^"]+","attempts":1,"replays":1,"replayed_by":"anna"\}\]`, out)
}

// A report of a server is data: names and reasons are escaped, as text and as JSON.
func TestV1_AHostileReport(t *testing.T) {
	hostile := "\x1b[2J\u202e<b>\r\nnext: forged\n" + strings.Repeat("x", 8192)
	text, err := json.Marshal(hostile)
	require.NoError(t, err)
	report := `{"event_id":"01930000-0000-7000-8000-0000000000a1","deliveries":[{"subscription":` + string(text) + `,"targets":["a",` + string(text) + `],"state":` + string(text) + `,"parked":` + string(text) + `,"left":` + string(text) + `}]}`
	for _, answer := range []string{report, `{"error":{"code":"nothing_done","message":` + string(text) + `,"remedy":` + string(text) + `,"report":` + report + `}}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if strings.HasPrefix(answer, `{"error"`) {
				w.WriteHeader(http.StatusConflict)
			}
			_, _ = w.Write([]byte(answer))
		}))
		for _, more := range [][]string{nil, {"--json"}} {
			_, out, errOut := call(t, append([]string{"events", "retry", "01930000-0000-7000-8000-0000000000a1", "--url", server.URL}, more...)...)
			harmless(t, "report", out+errOut)
			require.NotContains(t, out, "\nnext: forged")
		}
		server.Close()
	}
}

// 'dlq show' and 'events show' list the replays of an event, with hostile names escaped.
func TestL3_ReplaysAreListed(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		_, err := s.Subscribe("order", func(context.Context, eventbus.Event) error { return eventbus.Permanent(errors.New("declined")) }, eventbus.Named("billing"))
		require.NoError(t, err)
		_, err = s.PublishAndWait(t.Context(), "order", nil)
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		first := failed.Letters[0]
		require.NoError(t, s.DLQ().Replay(t.Context(), first.ID, eventbus.By("\u202eanna<b>")))
		require.NoError(t, s.Drain(t.Context()))
		_, err = s.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Type: "order"}, eventbus.By("bob"))
		require.NoError(t, err)
		require.NoError(t, s.Drain(t.Context()))
		page, err := s.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		last := page.Letters[0]
		const at = `20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ`
		want := `replayed      ` + at + ` by \\u202eanna<b>, letter ` + first.ID.String() + `\nreplayed      ` + at + ` by bob, in bulk since ` + at + `, letter ` + last.ReplayLog[1].Letter.String() + `\n`
		for _, how := range s.at {
			code, out, errOut := call(t, append([]string{"dlq", "show", last.ID.String()}, how...)...)
			require.Zero(t, code, errOut)
			require.Regexp(t, want, out)
		}
		code, out, errOut := events("show", last.Event.ID.String())
		require.Zero(t, code, errOut)
		require.Regexp(t, want, out)
	})
}
