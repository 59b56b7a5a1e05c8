package admin_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/driver"
)

// damaged is a store whose reads fail, once it is broken, with what a client must not see.
type damaged struct {
	driver.Store
	broken atomic.Bool
}

var errDamaged = errors.New("sqlite: /var/lib/shop/events.db: SELECT * FROM eventbus_letter WHERE id = ?: row 7 is corrupt\n\x1b[31mgoroutine 1 [running]:\nmain.go:17")

func (d *damaged) err() error {
	if d.broken.Load() {
		return errDamaged
	}
	return nil
}

func (d *damaged) Letter(ctx context.Context, id driver.ID) (driver.Letter, error) {
	if err := d.err(); err != nil {
		return driver.Letter{}, err
	}
	return d.Store.Letter(ctx, id)
}

func (d *damaged) Letters(ctx context.Context, q driver.LetterQuery) (driver.LetterPage, error) {
	if err := d.err(); err != nil {
		return driver.LetterPage{}, err
	}
	return d.Store.Letters(ctx, q)
}

func (d *damaged) Groups(ctx context.Context, q driver.LetterQuery, each func(*driver.Group) error) error {
	if err := d.err(); err != nil {
		return err
	}
	return d.Store.Groups(ctx, q, each)
}

func (d *damaged) Audit(ctx context.Context, q driver.AuditQuery) (driver.AuditPage, error) {
	if err := d.err(); err != nil {
		return driver.AuditPage{}, err
	}
	return d.Store.Audit(ctx, q)
}

func (d *damaged) Records(ctx context.Context, q driver.RecordQuery) (driver.RecordPage, error) {
	if err := d.err(); err != nil {
		return driver.RecordPage{}, err
	}
	return d.Store.Records(ctx, q)
}

func (d *damaged) Lookup(ctx context.Context, id driver.ID) ([]*driver.Record, error) {
	if err := d.err(); err != nil {
		return nil, err
	}
	return d.Store.Lookup(ctx, id)
}

func (d *damaged) Stats(ctx context.Context) (driver.Stats, error) {
	if err := d.err(); err != nil {
		return driver.Stats{}, err
	}
	return d.Store.Stats(ctx)
}

func TestZ19_ErrorsShowCodesNotCauses(t *testing.T) {
	store := &damaged{Store: newStore(t)}
	bus := newFailing(t, eventbus.WithStore(store))
	var log bytes.Buffer
	h := newHandler(t, bus.Bus, admin.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	f := newFixture(t, bus, h)
	store.broken.Store(true)
	defer store.broken.Store(false)
	failed := 0
	for _, op := range operations(t, h) {
		switch {
		case op.path == "/api/v1/live":
			continue
		case op.path == "/api/v1/operations" && op.method == http.MethodPost:
		case op.method == http.MethodPost && !strings.Contains(op.path, "/letters/{id}/"):
			continue // they write, and the store can
		}
		log.Reset()
		w := serve(h, f.request(t, op))
		for _, secret := range []string{"SELECT", "/var/lib", "goroutine", "main.go", "corrupt\\n", "\x1b"} {
			require.NotContains(t, w.Body.String(), secret, op.path)
		}
		if w.Code >= 400 && op.path != "/api/v1/letters/{id}/purge" {
			e := errorIn(t, w, admin.CodeStoreFailed)
			require.Contains(t, log.String(), e.RequestID, "the log has the cause")
			require.Contains(t, log.String(), "/var/lib/shop/events.db", op.path)
			failed++
		}
	}
	require.GreaterOrEqual(t, failed, 9)
}

// A panic of a redactor, of an authorizer and of a payload is in other tests: this is the bound of all answers.
func TestZ19_EveryErrorHasACodeAndARemedy(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	for _, op := range operations(t, h) {
		for _, target := range []string{strings.NewReplacer("{id}", "x", "{name}", "x").Replace(op.path) + "?x=1", "/" + op.path} {
			r := request(t, op.method, target, "")
			if op.path == "/api/v1/openapi.json" || op.path == "/api/v1/live" && strings.HasPrefix(target, "//") {
				continue
			}
			w := serve(h, r)
			require.GreaterOrEqual(t, w.Code, 400, target)
			_ = errorIn(t, w, admin.Code(codeIn(w)))
		}
	}
}

func TestZ20_LogsHaveOneLineForEachEntry(t *testing.T) {
	hostileTexts := []string{"a\nlevel=ERROR msg=forged", "\r\n", "\x1b[2J\x1b[31m", "\x00", "\u202e", "\u2028", "\x9b31m", "\xff", strings.Repeat("a", 10_000)}
	store := &damaged{Store: newStore(t)}
	bus := newFailing(t, eventbus.WithStore(store))
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"JSON": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var log bytes.Buffer
		h := newHandler(t, bus.Bus, admin.ReadOnly(), admin.WithLogger(slog.New(handler(&log))))
		requests := 0
		for _, text := range hostileTexts {
			r := request(t, http.MethodPost, "/api/v1/operations", `{}`)
			r.URL.Path = "/api/v1/subscriptions/" + text + "/pause"
			r.RemoteAddr = "127.0.0.1:1" + text
			_ = refused(t, h, r, admin.CodeReadOnly)
			r = request(t, http.MethodGet, "/", "")
			r.Method = "X" + text
			r.Host = text
			_ = serve(h, r)
			requests += 2
		}
		store.broken.Store(true)
		_ = refused(t, h, request(t, http.MethodGet, "/api/v1/letters", ""), admin.CodeStoreFailed)
		store.broken.Store(false)
		requests++
		lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
		require.Len(t, lines, requests, name)
		for _, line := range lines {
			require.Less(t, len(line), 3000, name)
			require.Negative(t, strings.IndexFunc(line, func(r rune) bool { return unicode.IsControl(r) }), "%s: %q", name, line)
		}
	}
	// What the audit has of such requests is printable as well.
	for _, e := range entries(t, bus.Bus) {
		require.Negative(t, strings.IndexFunc(e.Subscription+e.Remote+e.Denied+e.By, unicode.IsControl))
	}
}
