package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/eventbustest"
)

// endless is a body of 10 GB that counts what is read of it.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.read >= 10<<30 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = ' '
	}
	p[len(p)-1] = '\n' // for an import, an empty line
	e.read += int64(len(p))
	return len(p), nil
}

func TestZ15_InputIsBounded(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	f := newFixture(t, bus, h)
	for _, op := range operations(t, h) {
		if op.method != http.MethodPost {
			continue
		}
		r := f.request(t, op)
		body := new(endless)
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(body), -1, []string{"chunked"}
		limit := int64(64 << 10)
		switch {
		case strings.HasSuffix(op.path, "/edit"):
			limit = 2 << 20
		case strings.HasSuffix(op.path, "/import"):
			limit = 64 << 20
		}
		_ = refused(t, h, r, admin.CodeTooLarge)
		require.LessOrEqual(t, body.read, limit+limit/2+64<<10, op.path)
	}
	require.Equal(t, 5, bus.letters(t))

	_ = refused(t, h, request(t, http.MethodGet, "/api/v1/letters?error="+strings.Repeat("a", 4<<10), ""), admin.CodeTooLarge)
	require.Equal(t, http.StatusOK, serve(h, request(t, http.MethodGet, "/api/v1/letters?error="+strings.Repeat("a", 4000), "")).Code)

	// Pages and cursors are typed.
	for _, target := range []string{"letters", "groups", "operations", "subscriptions", "dispatches", "audit"} {
		for _, limit := range []string{"501", "-1", "0", "1e2", "0x10", "99999999999999999999"} {
			_ = refused(t, h, request(t, http.MethodGet, "/api/v1/"+target+"?limit="+limit, ""), admin.CodeBadRequest)
		}
	}
	for _, target := range []string{"letters?before=1", "dispatches?after=x", "audit?before=0", "groups?offset=x"} {
		w := serve(h, request(t, http.MethodGet, "/api/v1/"+target, ""))
		require.Equal(t, http.StatusBadRequest, w.Code, "%s: %s", target, w.Body)
	}

	// A pattern is a glob, and an error a substring: neither is a regular expression.
	for _, target := range []string{"type=" + url.QueryEscape(`order.(a+)+$`), "type=" + url.QueryEscape(`^order.*`), "error=" + url.QueryEscape(`.*`)} {
		require.Zero(t, get[eventbus.LetterPage](t, h, "/api/v1/letters?"+target).Total, target)
	}
}

func TestZ16_HostileFiltersAreTexts(t *testing.T) {
	bus := newFailing(t, eventbus.WithStore(newStore(t)))
	h := newHandler(t, bus.Bus)
	_ = bus.die(t, 2, eventbus.Metadata("n", "v"))
	for _, text := range []string{`' OR 1=1 --`, `"; DROP TABLE eventbus_letter; --`, `%`, `_`, `\`, `billing' UNION SELECT * FROM eventbus_meta`, `*`, "billing%00"} {
		for _, name := range []string{"subscription", "key", "error"} {
			page := get[eventbus.LetterPage](t, h, "/api/v1/letters?"+name+"="+url.QueryEscape(text))
			require.Zero(t, page.Total, "%s=%s", name, text)
		}
		page := get[eventbus.LetterPage](t, h, "/api/v1/letters?metadata_name=n&metadata_value="+url.QueryEscape(text))
		require.Zero(t, page.Total, text)
	}
	for _, target := range []string{"letters?order=id", "letters?sort=id;DROP", "audit?order_by=1", "dispatches?sort=1"} {
		_ = refused(t, h, request(t, http.MethodGet, "/api/v1/"+url.PathEscape(strings.Split(target, "?")[0])+"?"+strings.Split(target, "?")[1], ""), admin.CodeBadRequest)
	}
	require.Equal(t, 2, bus.letters(t))
}

// newServer returns a server as the package documentation says it: with bounded headers.
func newServer(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ReadHeaderTimeout = 200 * time.Millisecond
	server.Config.IdleTimeout = 200 * time.Millisecond
	server.Config.MaxHeaderBytes = 16 << 10
	server.Start()
	t.Cleanup(server.Close)
	return server
}

func TestZ17_SlowClientsHoldNothing(t *testing.T) {
	bus := newFailing(t)
	letters := bus.die(t, 200)
	server := newServer(t, newHandler(t, bus.Bus))
	dial := func(send string) net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(conn, send)
		require.NoError(t, err)
		return conn
	}
	// Clients that never end their headers, and one that is idle: the server closes them.
	var slow []net.Conn
	for range 50 {
		slow = append(slow, dial("GET /api/v1/letters HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))
	}
	// Clients that ask for an export, a page or the live stream, and read nothing.
	for _, path := range []string{"letters/export", "letters?limit=200", "live"} {
		_ = dial("GET /api/v1/" + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	// Meanwhile others are served, and change what the slow ones read.
	for _, l := range letters[:20] {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/api/v1/letters/"+l.ID.String()+"/purge", strings.NewReader("{}"))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		answer, err := server.Client().Do(r)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.NoError(t, answer.Body.Close())
	}
	require.Equal(t, 180, bus.letters(t))
	for _, conn := range slow {
		answer, err := io.ReadAll(conn)
		require.NoError(t, err, "the server closes it: a deadline of the client would be an error")
		require.NotContains(t, string(answer), "200 OK")
	}
}

func TestZ17_HeadersAreBounded(t *testing.T) {
	server := newServer(t, newHandler(t, eventbustest.New(t)))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/v1/overview", nil)
	require.NoError(t, err)
	r.Header.Set("X-Large", strings.Repeat("a", 64<<10))
	answer, err := server.Client().Do(r)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode)
	require.NoError(t, answer.Body.Close())
}

func TestZ25_IDsAreRandomAndNoCredentials(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	seen := make(map[string]bool)
	add := func(id string) {
		require.Equal(t, byte('7'), id[14], "a UUID of version 7")
		require.False(t, seen[id])
		seen[id] = true
	}
	letters := bus.die(t, 100)
	// Two buses that make ids in the same millisecond share none: the last 62 bits are random.
	other := newFailing(t)
	for _, l := range append(letters, other.die(t, 100)...) {
		add(l.ID.String())
		add(l.Event.ID.String())
	}
	for range 100 {
		add(serve(h, request(t, http.MethodGet, "/nowhere", "")).Header().Get("X-Request-Id"))
	}
	random := make(map[string]bool)
	for id := range seen {
		random[id[19:28]] = true
	}
	require.Greater(t, len(random), 2)

	// An id opens nothing.
	basic, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: "right"})
	require.NoError(t, err)
	closed := newHandler(t, bus.Bus, admin.WithAuthorizer(basic))
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, path := range []string{"", "/payload", "/replay", "/purge"} {
			_ = refused(t, closed, request(t, method, "/api/v1/letters/"+letters[0].ID.String()+path, ""), admin.CodeUnauthenticated)
		}
	}
	require.Equal(t, 100, bus.letters(t))
}

func TestZ26_AMillionTypesAreOneThousandAndOthers(t *testing.T) {
	types := 1_000_000
	if testing.Short() {
		types = 20_000
	}
	bus := eventbustest.New(t)
	h := newHandler(t, bus)
	for i := range types {
		_, err := bus.Publish(t.Context(), fmt.Sprintf("attack.%d", i), nil)
		require.NoError(t, err)
	}
	w := serve(h, request(t, http.MethodGet, "/api/v1/overview", ""))
	var o admin.Overview
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &o))
	require.Len(t, o.Metrics.Types, 1001)
	require.EqualValues(t, types-1000, o.Metrics.Types[eventbus.OtherTypes].Events)
	require.Less(t, w.Body.Len(), 200_000)
}

func TestZ28_BodiesAreDecodedIntoFixedTypes(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	f := bus.die(t, 3)
	purge := "/api/v1/letters/" + f[0].ID.String() + "/purge"
	for name, body := range map[string]string{
		"array": `[]`, "number": `1`, "string": `"why"`, "deep": strings.Repeat(`{"why":`, 9000), "deep array": strings.Repeat("[", 60_000),
		"why as object": `{"why":{"a":1}}`, "why as number": `{"why":1}`, "repeated with another type": `{"why":"a","why":1}`,
		"unknown": `{"__proto__":{}}`, "comment": `{/**/}`, "truncated": `{"why":"a`, "NaN": `{"why":NaN}`, "byte order mark": "\ufeff{}",
	} {
		e := refused(t, h, request(t, http.MethodPost, purge, body), admin.CodeBadRequest)
		require.Less(t, len(e.Message), 500, name)
	}
	require.Equal(t, 3, bus.letters(t))

	// A payload is kept as it is: no number loses digits, and nothing is decoded into a type of its choice.
	received := make(chan json.RawMessage, 1)
	_, err := bus.Subscribe("raw.*", func(_ context.Context, e eventbus.Event) error {
		if raw, ok := e.Payload.(json.RawMessage); ok {
			received <- raw
			return nil
		}
		return eventbus.Permanent(errDeclined)
	}, eventbus.Named("raw"))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "raw.event", 1)
	require.Error(t, err)
	l := get[eventbus.LetterPage](t, h, "/api/v1/letters?type=raw.*").Letters[0]
	const payload = `{"n":123456789012345678901234567890.10,"e":1e400,"gob":"AAAA"}`
	_ = post[admin.Done](t, h, "/api/v1/letters/"+l.ID.String()+"/edit", `{"payload":`+payload+`}`)
	require.True(t, bytes.Equal([]byte(payload), <-received))
}

// FuzzRequest sends arbitrary requests. Each gets an answer of the API, and never a panic.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/api/v1/letters?type=order.*&limit=1", "", "localhost", "")
	f.Add("POST", "/api/v1/operations", `{"action":"purge_matching","query":{"all":true},"expect":0}`, "localhost", "application/json")
	f.Add("POST", "/api/v1/subscriptions/billing/pause", `{"why":"\u0000"}`, "localhost:80", "application/json")
	f.Add("POST", "/api/v1/letters/import", "{}\n", "[::1]", "application/jsonl")
	f.Add("GET", "//%2e%2e/;", "", "a@b:c", "")
	bus, err := eventbus.New()
	require.NoError(f, err)
	h, err := admin.New(bus, admin.WithAuthorizer(everyone))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, method, target, body, host, media string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || strings.Contains(u.Path, "live") {
			t.Skip()
		}
		r := &http.Request{
			Method: method, URL: u, Host: host, RemoteAddr: "127.0.0.1:1", Header: http.Header{"Content-Type": {media}},
			Body: io.NopCloser(bytes.NewReader([]byte(body))),
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(t.Context()))
		require.NotEqual(t, http.StatusInternalServerError, w.Code, w.Body)
		if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json;") {
			require.True(t, json.Valid(w.Body.Bytes()), w.Body)
		}
		if w.Code >= 400 {
			_ = errorIn(t, w, admin.Code(codeIn(w)))
		}
	})
}

// codeIn returns the code of an error.
func codeIn(w *httptest.ResponseRecorder) string {
	var answer struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal(w.Body.Bytes(), &answer)
	return answer.Error.Code
}
