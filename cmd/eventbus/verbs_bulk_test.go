package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// An event is shown by its type and its idempotency key. The key of its order is another one.
func TestO6_EventsShowByIdempotencyKey(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		id, err := s.Publish(t.Context(), "crm", nil, eventbus.IdempotencyKey("once"), eventbus.Key("order"))
		require.NoError(t, err)
		code, out, errOut := events("show", "--type", "crm", "--idempotency-key", "once")
		require.Zero(t, code, errOut)
		require.True(t, strings.HasPrefix(out, "event "+id.String()+"\n"), out)
		require.Contains(t, out, "crm")
		code, out, errOut = events("show", "--type", "crm", "--idempotency-key", "once", "--json")
		require.Zero(t, code, errOut)
		require.Contains(t, out, `"event_id":"`+id.String()+`"`)
		code, _, errOut = events("show", "--type", "crm", "--idempotency-key", "order")
		require.Equal(t, exitNotFound, code)
		require.Contains(t, errOut, "known by")
		for _, args := range [][]string{
			nil,
			{"--type", "crm"},
			{"--idempotency-key", "once"},
			{id.String(), "--type", "crm"},
			{"--type", "crm*", "--idempotency-key", "k"},
			{"--type", "crm", "--idempotency-key", strings.Repeat("k", 256)},
			{"--key", "once"},
		} {
			code, _, errOut = events(append([]string{"show"}, args...)...)
			require.Equal(t, exitUsage, code, "%v: %s", args, errOut)
			require.Contains(t, errOut, "next: ")
		}
	})
	s := newShop(t) // offline
	id, err := s.Publish(t.Context(), "crm", nil, eventbus.IdempotencyKey("once"))
	require.NoError(t, err)
	require.NoError(t, s.Shutdown(t.Context()))
	code, out, errOut := call(t, append([]string{"events", "show", "--type", "crm", "--idempotency-key", "once"}, s.at["store"]...)...)
	require.Zero(t, code, errOut)
	require.Contains(t, out, id.String())
}

// An action in bulk shows the number, needs a confirmation, is an operation, and is in the audit.
func TestV4_EventsInBulk(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		for range 3 {
			s.publish(t, "crm", eventbus.DispatchParked)
		}
		mail := s.publish(t, "mail", eventbus.DispatchWaiting)
		code, out, errOut := events("cancel", "--type", "crm", "--dry-run")
		require.Zero(t, code, errOut)
		require.Equal(t, "dry run: would cancel 3 events\n", out)
		require.Regexp(t, `(?s)^3 events match, published from .* to .*\n  parked: 3 dispatches\n$`, errOut)
		code, out, errOut = events("cancel", "--type", "crm")
		require.Equal(t, exitUsage, code)
		require.Empty(t, out)
		require.Contains(t, errOut, "no confirmation")

		code, out, errOut = events("retry", "--type", "crm", "--yes")
		require.Equal(t, exitConflict, code)
		require.Equal(t, "retry: 0 of 3 events done, 3 left\n", out)
		require.Contains(t, errOut, "left 3: it is held; Probe tries it nevertheless")
		code, out, errOut = events("give-up", "--subscription", "copy", "--error", "closed", "--yes", "--because", "no copies")
		require.Zero(t, code, errOut)
		require.Equal(t, "give-up: 1 of 1 event done\n", out)
		require.Len(t, dispatchesOf(t, s, mail), 1, "the other delivery is left")
		code, out, errOut = events("cancel", "--type", "crm", "--yes", "--json")
		require.Zero(t, code, errOut)
		require.Equal(t, `{"matched":3,"done":3,"idle":0,"left":0,"gone":0}`+"\n", out)
		code, out, errOut = events("cancel", "--type", "crm", "--yes")
		require.Zero(t, code, errOut)
		require.Equal(t, "no event matches: nothing to cancel\n", out)
		code, out, errOut = events("retry", "--all", "--rate", "100", "--yes")
		require.Zero(t, code, errOut)
		require.Equal(t, "retry: 1 of 1 event done\n", out)

		page, err := s.Audit(t.Context(), eventbus.AuditQuery{Action: eventbus.AuditGiveUp})
		require.NoError(t, err)
		require.Equal(t, []any{"no copies", "closed"}, []any{page.Entries[0].Why, page.Entries[0].Dispatches.Error})
	})
}

// dispatchesOf returns what is left of an event.
func dispatchesOf(t *testing.T, s *shop, id string) []eventbus.DispatchInfo {
	t.Helper()
	parsed, err := eventbus.ParseEventID(id)
	require.NoError(t, err)
	status, err := s.Event(t.Context(), parsed)
	require.NoError(t, err)
	return status.Dispatches
}

// Operations has the actions in bulk, with a command that goes on with the rest.
func TestV4_OperationsListsActions(t *testing.T) {
	for _, how := range []string{"store", "url"} {
		t.Run(how, func(t *testing.T) {
			s := newShop(t)
			at := s.at[how]
			s.publish(t, "crm", eventbus.DispatchParked)
			code, _, errOut := call(t, append([]string{"events", "cancel", s.publish(t, "crm", eventbus.DispatchParked)}, at...)...)
			require.Zero(t, code, errOut)
			code, _, errOut = call(t, append([]string{"events", "cancel", "--type", "crm", "--yes"}, at...)...)
			require.Zero(t, code, errOut)
			code, out, errOut := call(t, append([]string{"operations", "list", "--json"}, at...)...)
			require.Zero(t, code, errOut)
			var op operation
			require.NoError(t, json.Unmarshal([]byte(out), &op), "one operation: %s", out)
			require.Equal(t, []any{"cancel_matching", "done", 1, 1}, []any{op.Action, op.State, op.Done, op.Total})
			code, out, errOut = call(t, append([]string{"operations", "show", op.ID}, at...)...)
			require.Zero(t, code, errOut)
			require.Contains(t, out, "events     1 of 1 done\n")
			require.Contains(t, out, "filter     --type crm --published-until ")
			code, out, errOut = call(t, append([]string{"audit", "--action", "cancel"}, at...)...)
			require.Zero(t, code, errOut)
			require.Contains(t, out, "--type crm")
		})
	}
}

// What an operator did not mean is refused: no filter, a filter beside an id, and a set that has grown.
func TestV4_BadBulkActions(t *testing.T) {
	onShop(t, func(t *testing.T, s *shop, events func(...string) (int, string, string)) {
		id := s.publish(t, "crm", eventbus.DispatchParked)
		for _, args := range [][]string{
			{"cancel"},
			{"retry", "--probe"},
			{"give-up", "--yes"},
			{"cancel", id, "--type", "crm"},
			{"cancel", id, "--all"},
			{"cancel", id, "--dry-run"},
			{"cancel", "--type", "a..b", "--yes"},
			{"cancel", "--rate", "-1", "--type", "crm"},
			{"cancel", "--all", "--rate", "NaN"},
			{"cancel", "--state", "gone"},
			{"cancel", "--published-until", "x"},
			{"cancel", "--subscription", ""},
			{"cancel", "--all", "--probe"},
			{"cancel", id, id},
		} {
			code, _, errOut := events(args...)
			require.Equal(t, exitUsage, code, "%v: %s", args, errOut)
		}
		require.Len(t, dispatchesOf(t, s, id), 1)
	})
	s := newShop(t)
	s.publish(t, "crm", eventbus.DispatchParked)
	b, err := openStore(t.Context(), place{file: s.at["store"][1]})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) }()
	u, err := openURL(s.at["url"][1], connection{})
	require.NoError(t, err)
	for _, of := range []backend{b, u} {
		_, err = of.ActMatching(t.Context(), eventbus.DispatchQuery{Type: "crm"}, action{verb: eventbus.AuditCancel}, bulk{expect: 0})
		require.Equal(t, exitConflict, describe(err, true).code)
		require.ErrorContains(t, err, "more than 0")
	}
}

func (b *interrupting) PreviewMatching(ctx context.Context, q eventbus.DispatchQuery) (eventbus.ActionPreview, error) {
	b.at(phasePreview)
	return b.backend.PreviewMatching(ctx, q)
}

func (b *interrupting) ActMatching(ctx context.Context, q eventbus.DispatchQuery, act action, o bulk) (eventbus.ActionsReport, error) {
	b.at(phaseSet)
	o.progress = b.progress
	return b.backend.ActMatching(ctx, q, act, o)
}

// An interrupt in each phase of a bulk action says what was done, and the command that it prints goes on.
func TestV4_AnInterruptInEachPhaseOfABulkAction(t *testing.T) {
	for phase, want := range map[string]string{
		phasePreview: "^interrupted: nothing was done yet$", phaseSet: "^interrupted: nothing was done yet$", phaseMiddle: "^interrupted: 100 events left$", phaseEnd: "",
	} {
		t.Run(phase, func(t *testing.T) {
			s := newShop(t)
			require.NoError(t, s.Subscription("mail").Pause())
			require.NoError(t, s.Subscription("copy").Pause())
			for range 600 {
				_, err := s.Publish(t.Context(), "crm", nil)
				require.NoError(t, err)
			}
			require.NoError(t, s.Shutdown(t.Context()))
			b, err := openStore(t.Context(), place{file: s.at["store"][1]})
			require.NoError(t, err)
			f, out, errOut := runWith(t, b, phase, "events", "give-up", "--type", "crm", "--yes")
			if want == "" {
				require.Nil(t, f, "%v", f)
				require.Equal(t, "give-up: 600 of 600 events done\n", out)
				return
			}
			require.NotNil(t, f, out+errOut)
			require.Regexp(t, want, f.Error())
			line := regexp.MustCompile(`eventbus (events give-up .*)$`).FindStringSubmatch(f.next)
			require.NotNil(t, line, f.next)
			code, _, errOut := call(t, append(strings.Fields(line[1]), "--yes")...)
			require.Zero(t, code, errOut)
			code, out, errOut = call(t, append([]string{"stats", "--json"}, s.at["store"]...)...)
			require.Zero(t, code, errOut)
			require.Contains(t, out, `"letters":600`)
		})
	}
}

// What a server says of a bulk action is data.
func TestV4_AHostileReportOfABulkAction(t *testing.T) {
	hostile, err := json.Marshal("\x1b[2J\u202e<b>\r\nnext: forged\n" + strings.Repeat("x", 8192))
	require.NoError(t, err)
	text := string(hostile)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/preview"):
			_, _ = w.Write([]byte(`{"matched":2,"states":{` + text + `:2},"sample":[],"newest":"2026-01-01T00:00:00Z","oldest":"2026-01-01T00:00:00Z"}`))
		default:
			_, _ = w.Write([]byte(`{"id":` + text + `,"state":"done","action":` + text + `,"by":` + text + `,"dispatches":{"type":` + text + `,"key":` + text + `},"total":2,"done":2,"actions_report":{"matched":2,"done":1,"left":1,"reasons":{` + text + `:1}}}`))
		}
	}))
	defer server.Close()
	for _, args := range [][]string{{"events", "cancel", "--type", "a", "--yes"}, {"events", "cancel", "--type", "a", "--yes", "--json"}, {"operations", "show", "1"}} {
		code, out, errOut := call(t, append(args, "--url", server.URL)...)
		require.Zero(t, code, errOut)
		harmless(t, strings.Join(args, " "), out+errOut)
		require.NotContains(t, out+errOut, "\nnext: forged")
	}
}
