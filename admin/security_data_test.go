package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/storetest"
)

const canary = "4111-1111-1111-1111"

// withoutCanary is a redactor.
func withoutCanary(text admin.Text) string { return strings.ReplaceAll(text.Value, canary, "(card)") }

// detailed is an error with details.
type detailed string

func (detailed) Error() string              { return "refused" }
func (d detailed) Details() json.RawMessage { return json.RawMessage(d) }

// newLeaking returns a bus whose payloads, metadata, keys, errors, their details and panics have the canary, with dead
// letters.
func newLeaking(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus := eventbustest.New(t, opts...)
	eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
	for name, fail := range map[string]func(context.Context, eventbus.Event) error{
		"pay.error": func(context.Context, eventbus.Event) error {
			return eventbus.Permanent(errors.New("declined " + canary))
		},
		"pay.details": func(context.Context, eventbus.Event) error { return detailed(`{"card":"` + canary + `"}`) },
		"pay.panic":   func(context.Context, eventbus.Event) error { panic("cannot charge " + canary) },
	} {
		_, err := bus.Subscribe(name, fail, eventbus.Named(name), eventbus.Circuit(eventbus.NoCircuit()), eventbus.Retry(eventbus.MaxRetries(0)))
		require.NoError(t, err)
		_, err = bus.PublishAndWait(t.Context(), name, order{Card: canary}, eventbus.Metadata("card", canary), eventbus.Key(canary), eventbus.IdempotencyKey(canary))
		require.Error(t, err)
	}
	return bus
}

// reads returns the answers to all GETs but those of complete payloads, and the log.
func reads(t *testing.T, bus *eventbus.Bus, opts ...admin.Option) string {
	t.Helper()
	var all bytes.Buffer
	h := newHandler(t, bus, append(opts, admin.WithLogger(slog.New(slog.NewTextHandler(&all, nil))))...)
	page := get[eventbus.LetterPage](t, h, "/api/v1/letters")
	require.NotEmpty(t, page.Letters)
	_ = serve(h, request(t, http.MethodPost, "/api/v1/letters/"+page.Letters[0].ID.String()+"/replay", `{"why":"again"}`))
	eventbustest.WaitSettled(t, bus)
	page = get[eventbus.LetterPage](t, h, "/api/v1/letters")
	for _, op := range operations(t, h) {
		if op.method != http.MethodGet || op.path == "/api/v1/live" || op.path == "/api/v1/letters/export" {
			continue
		}
		for _, l := range page.Letters {
			target := op.path
			if strings.Contains(target, "/events/") {
				target = strings.ReplaceAll(target, "{id}", l.Event.ID.String())
			}
			target = strings.NewReplacer("{id}", l.ID.String(), "{name}", l.Subscription).Replace(target)
			if op.path == "/api/v1/letters/{id}/payload" && len(opts) == 0 {
				continue
			}
			if op.path == "/api/v1/events" {
				target += "?type=" + l.Event.Type + "&idempotency_key=" + canary
			}
			if op.path == "/api/v1/explain" {
				target += "?type=" + l.Event.Type
			}
			w := serve(h, request(t, http.MethodGet, target, ""))
			require.Contains(t, []int{200, 404}, w.Code, w.Body)
			all.WriteString(w.Body.String())
		}
	}
	return all.String()
}

func TestZ11_PayloadsAreHiddenByDefault(t *testing.T) {
	for _, stored := range []bool{false, true} {
		var opts []eventbus.Option
		if stored {
			opts = append(opts, eventbus.WithStore(newStore(t)))
		}
		bus := newLeaking(t, opts...)
		text := reads(t, bus)
		require.NotContains(t, text, `"card":"`+canary+`"},"key"`)
		require.NotContains(t, text, `\"card\":\"`)
		require.Contains(t, text, `"payload":{"hidden":true,"size":`)

		// Whoever may see payloads, may; and size and hash are those of what is downloaded.
		h := newHandler(t, bus)
		l := get[eventbus.LetterPage](t, h, "/api/v1/letters?type=pay.error").Letters[0]
		var hidden admin.HiddenPayload
		data, err := json.Marshal(l.Event.Payload)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &hidden))
		payload := serve(h, request(t, http.MethodGet, "/api/v1/letters/"+l.ID.String()+"/payload", "")).Body.String()
		require.Contains(t, payload, canary)
		require.Equal(t, len(payload), hidden.Size)
		require.Len(t, hidden.SHA256, 16)
	}
}

func TestZ11_TheRedactorSeesEveryText(t *testing.T) {
	for _, stored := range []bool{false, true} {
		var opts []eventbus.Option
		if stored {
			opts = append(opts, eventbus.WithStore(newStore(t)))
		}
		bus := newLeaking(t, opts...)
		// An operator filters by the secret: then the audit has it.
		h := newHandler(t, bus)
		_ = begin(t, h, `{"action":"replay_matching","query":{"error":"`+canary+`","key":"`+canary+`","metadata_name":"card","metadata_value":"`+canary+`","reason":"crash"},"expect":0}`)
		_ = serve(newHandler(t, bus, admin.ReadOnly()), request(t, http.MethodPost, "/api/v1/operations",
			`{"action":"purge_matching","query":{"error":"`+canary+`","key":"`+canary+`"},"expect":0}`))
		require.Contains(t, reads(t, bus), canary)
		text := reads(t, bus, admin.WithRedactor(withoutCanary))
		require.NotContains(t, text, canary)
		require.Contains(t, text, "declined (card)")
		require.Contains(t, text, "cannot charge (card)")
		require.Contains(t, text, `"details":{"card":"(card)"}`)

		h = newHandler(t, bus, admin.WithRedactor(withoutCanary))
		_ = refused(t, h, request(t, http.MethodGet, "/api/v1/letters/export", ""), admin.CodeForbidden)
	}
}

func TestZ11_ABrokenRedactorShowsNothing(t *testing.T) {
	bus := newLeaking(t)
	require.NotContains(t, reads(t, bus, admin.WithRedactor(func(admin.Text) string { panic(canary) })), canary)
	long := reads(t, bus, admin.WithRedactor(func(text admin.Text) string { return strings.Repeat("x", 9<<10) }))
	require.NotContains(t, long, canary)
	require.Contains(t, long, `"metadata":{"card":"(redacted)"}`)
}

// hostile is a payload whose methods are those of an enemy.
type hostile struct{ marshal func() ([]byte, error) }

func (h hostile) MarshalJSON() ([]byte, error) { return h.marshal() }

func TestZ11_HostilePayloadsAreHiddenAsWell(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	block := make(chan struct{})
	defer close(block)
	for _, marshal := range []func() ([]byte, error){
		func() ([]byte, error) { panic("secret") },
		func() ([]byte, error) { return nil, errors.New("secret") },
		func() ([]byte, error) { return []byte("{"), nil },
	} {
		_, err := bus.PublishAndWait(t.Context(), "order.placed", hostile{marshal})
		require.Error(t, err)
	}
	for _, l := range get[eventbus.LetterPage](t, h, "/api/v1/letters").Letters {
		require.Equal(t, map[string]any{"hidden": true, "size": 0.0}, l.Event.Payload)
		e := refused(t, h, request(t, http.MethodGet, "/api/v1/letters/"+l.ID.String()+"/payload", ""), admin.CodeUnprocessable)
		require.NotContains(t, e.Message, "secret")
	}
	// One that blocks holds a request until its client leaves, and nothing else.
	_, err := bus.PublishAndWait(t.Context(), "order.placed", hostile{func() ([]byte, error) { <-block; return nil, nil }})
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := serve(h, request(t, http.MethodGet, "/api/v1/letters", "").WithContext(ctx))
	require.NotEmpty(t, w.Body.String())
}

// entries returns the audit, newest first.
func entries(t *testing.T, bus *eventbus.Bus) (all []eventbus.AuditEntry) {
	t.Helper()
	page := eventbus.AuditPage{}
	for {
		var err error
		page, err = bus.Audit(t.Context(), eventbus.AuditQuery{Before: page.Next})
		require.NoError(t, err)
		all = append(all, page.Entries...)
		if page.Next == 0 {
			return all
		}
	}
}

func TestZ13_EveryChangeIsInTheAudit(t *testing.T) {
	const n = 1000
	for _, stored := range []bool{false, true} {
		var opts []eventbus.Option
		if stored {
			opts = append(opts, eventbus.WithStore(newStore(t)))
		}
		bus := newFailing(t, opts...)
		h := newHandler(t, bus.Bus)
		ids := make(map[string]eventbus.LetterID)
		for _, l := range bus.die(t, n) {
			w := serve(h, request(t, http.MethodPost, "/api/v1/letters/"+l.ID.String()+"/purge", `{"why":"a test"}`))
			require.Equal(t, http.StatusOK, w.Code, w.Body)
			ids[w.Header().Get("X-Request-Id")] = l.ID
		}
		all := entries(t, bus.Bus)
		require.Len(t, all, n)
		for _, e := range all {
			require.Equal(t, ids[e.RequestID], e.Letter)
			require.Equal(t, []any{eventbus.AuditPurge, "anna", "a test", "127.0.0.1:50000", ""}, []any{e.Action, e.By, e.Why, e.Remote, e.Denied})
			delete(ids, e.RequestID)
		}
		require.Empty(t, ids)
	}
}

func TestZ13_DeniedChangesAreInTheAudit(t *testing.T) {
	bus := newFailing(t)
	f := newFixture(t, bus, newHandler(t, bus.Bus))
	h := newHandler(t, bus.Bus, admin.WithAuthorizer(byRole))
	denials := 0
	known := len(entries(t, bus.Bus))
	for _, op := range operations(t, newHandler(t, bus.Bus)) {
		if op.method != http.MethodPost {
			continue
		}
		w := serve(h, f.request(t, op))
		require.Equal(t, http.StatusForbidden, w.Code)
		denials++
		e := entries(t, bus.Bus)[0]
		require.Equal(t, []any{"ben", "127.0.0.1:50000", "forbidden", w.Header().Get("X-Request-Id")}, []any{e.By, e.Remote, e.Denied, e.RequestID}, op.path)
		require.NotEmpty(t, e.Action, op.path)
		switch {
		case strings.Contains(op.path, "/letters/{id}/"):
			require.False(t, e.Letter.IsZero(), op.path)
		case strings.Contains(op.path, "/events/{id}/"):
			require.Contains(t, []eventbus.EventID{f.scheduled, f.later, f.waiting}, e.Event)
		case strings.Contains(op.path, "/subscriptions/"):
			require.Equal(t, map[bool]string{false: "billing", true: "gone"}[strings.HasSuffix(op.path, "/retire")], e.Subscription)
		}
	}
	require.Len(t, entries(t, bus.Bus), known+denials)

	// Of an operation whose own action is denied, the filter is known.
	r := as(admin.ActionReplay, request(t, http.MethodPost, "/api/v1/operations", `{"action":"purge_matching","query":{"type":"order.*"},"expect":5,"why":"too many"}`))
	_ = refused(t, h, r, admin.CodeForbidden)
	e := entries(t, bus.Bus)[0]
	require.Equal(t, []any{eventbus.AuditPurgeMatching, "order.*", "too many", "forbidden"}, []any{e.Action, e.Query.Type, e.Why, e.Denied})

	// Unauthenticated peers cannot fill the audit.
	known = len(entries(t, bus.Bus))
	basic, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: "right"})
	require.NoError(t, err)
	_ = refused(t, newHandler(t, bus.Bus, admin.WithAuthorizer(basic)), request(t, http.MethodPost, "/api/v1/operations", `{}`), admin.CodeUnauthenticated)
	require.Len(t, entries(t, bus.Bus), known)
}

// A process that is killed around the commit of a change has the change and its entry, or neither.
func TestZ13_ACrashSeparatesNoChangeFromItsEntry(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.CrashBefore, storetest.CrashAfter, storetest.FailBefore, storetest.FailAfter} {
		armed := false
		model := storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if !armed || len(b.Audit) == 0 {
				return storetest.Fault{}
			}
			armed = false
			return storetest.Fault{Kind: kind}
		}))
		store := model.Open()
		bus, err := eventbus.New(eventbus.WithStore(store))
		require.NoError(t, err)
		h := newHandler(t, bus)
		letter := imported(t, h)
		armed = true
		w := serve(h, request(t, http.MethodPost, "/api/v1/letters/"+letter+"/purge", `{}`))
		_ = errorIn(t, w, admin.CodeStoreFailed)
		_ = bus.Shutdown(t.Context())
		model.Crash()

		store = model.Open()
		again, err := eventbus.New(eventbus.WithStore(store))
		require.NoError(t, err)
		page, err := again.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		purges := 0
		for _, e := range entries(t, again) {
			if e.Action == eventbus.AuditPurge {
				purges++
			}
		}
		require.Equal(t, 1-page.Total, purges, "fault %d", kind)
		require.Equal(t, kind == storetest.CrashAfter || kind == storetest.FailAfter, purges == 1)
		_ = again.Shutdown(t.Context())
	}
}

// imported imports a letter and returns its id.
func imported(t *testing.T, h http.Handler) string {
	t.Helper()
	id := eventbus.NewEventID().String()
	line := fmt.Sprintf(`{"id":%q,"event":{"id":%q,"type":"order.placed","payload":{"number":1},"time":"2026-01-01T00:00:00Z"},"reason":"permanent","subscription":"billing","attempts":1,"died_at":"2026-01-01T00:00:00Z"}`, id, id)
	r := request(t, http.MethodPost, "/api/v1/letters/import", line+"\n")
	r.Header.Set("Content-Type", "application/jsonl")
	w := serve(h, r)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return id
}

func TestZ14_BulkOperationsNeedTheFilterAndTheCount(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	_ = bus.die(t, 3)
	preview := get[eventbus.ReplayPreview](t, h, "/api/v1/preview?type=order.*")
	require.Equal(t, 3, preview.Matched)
	until := time.Now().Format(time.RFC3339Nano)
	_ = bus.die(t, 2) // while the operator reads

	for _, action := range []string{"replay_matching", "purge_matching"} {
		for name, body := range map[string]string{
			"stale":    `{"action":"` + action + `","query":{"type":"order.*"},"expect":3}`,
			"inflated": `{"action":"` + action + `","query":{"type":"order.*"},"expect":1000}`,
			"zero":     `{"action":"` + action + `","query":{"type":"order.*"},"expect":0}`,
		} {
			e := refused(t, h, request(t, http.MethodPost, "/api/v1/operations", body), admin.CodeStaleCount)
			require.Contains(t, e.Message, "5 letters match now", name)
		}
		_ = refused(t, h, request(t, http.MethodPost, "/api/v1/operations", `{"action":"`+action+`","query":{"type":"order.*"}}`), admin.CodeBadRequest)
		_ = refused(t, h, request(t, http.MethodPost, "/api/v1/operations", `{"action":"`+action+`","expect":5}`), admin.CodeBadRequest)
	}
	require.Equal(t, 5, bus.letters(t))

	// The set that the preview has shown is fixed by its time.
	op := begin(t, h, `{"action":"purge_matching","query":{"type":"order.*","until":"`+until+`"},"expect":3}`)
	require.Equal(t, admin.OperationDone, finished(t, h, op).State)
	require.Equal(t, 2, bus.letters(t))
}

func TestZ21_ExportsAreLinesOfUTF8ThatImportReads(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	for _, text := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\tx", "a\nb", "\"q\"", "\xff\xfe", "\u202eevil", "🙂"} {
		_, err := bus.PublishAndWait(t.Context(), "order.placed", text, eventbus.Metadata("text", strings.ToValidUTF8(text, "")))
		require.Error(t, err)
	}
	w := serve(h, request(t, http.MethodGet, "/api/v1/letters/export?type=order.*", ""))
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, `attachment; filename="dead-letters.jsonl"`, w.Header().Get("Content-Disposition"))
	export := w.Body.String()
	require.True(t, utf8.ValidString(export))
	require.Equal(t, 10, strings.Count(export, "\n"))
	for line := range strings.Lines(export) {
		require.True(t, strings.HasPrefix(line, `{"id":"`), "no cell of a spreadsheet begins a formula: %s", line)
		var l eventbus.DeadLetter
		require.NoError(t, json.Unmarshal([]byte(line), &l))
	}
	other := newFailing(t)
	into := newHandler(t, other.Bus)
	r := request(t, http.MethodPost, "/api/v1/letters/import", export)
	r.Header.Set("Content-Type", "application/jsonl")
	require.Equal(t, http.StatusOK, serve(into, r).Code)
	require.Equal(t, export, serve(into, request(t, http.MethodGet, "/api/v1/letters/export", "")).Body.String())
	empty := serve(into, request(t, http.MethodGet, "/api/v1/letters/export?reason=crash", ""))
	require.Equal(t, http.StatusOK, empty.Code)
	require.Empty(t, empty.Body.String())
	require.Equal(t, "application/jsonl", empty.Header().Get("Content-Type"))
}
