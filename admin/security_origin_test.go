package admin_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/eventbustest"
)

func TestZ6_ChangesFromOtherSitesAreRefused(t *testing.T) {
	basic, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: "right"})
	require.NoError(t, err)
	const json, form = "application/json", "application/x-www-form-urlencoded"
	for name, test := range map[string]struct {
		site, origin, media string
		allowed             bool
	}{
		"same origin":                   {"same-origin", "http://localhost:8080", json, true},
		"same origin without Origin":    {"same-origin", "", json, true},
		"typed by the user":             {"none", "", json, true},
		"old browser":                   {"", "http://localhost:8080", json, true},
		"program":                       {"", "", json, true},
		"cross site":                    {"cross-site", "https://evil.test", json, false},
		"cross site without Origin":     {"cross-site", "", json, false},
		"same site":                     {"same-site", "https://shop.localhost", json, false},
		"null":                          {"", "null", json, false},
		"another port":                  {"", "http://localhost:9090", json, false},
		"another host":                  {"", "http://evil.test", json, false},
		"user in the origin":            {"", "http://evil@localhost:8080", json, false},
		"path in the origin":            {"", "http://localhost:8080/evil", json, false},
		"form of an old browser":        {"", "", form, false},
		"text of an old browser":        {"", "", "text/plain", false},
		"nothing of an old browser":     {"", "", "", false},
		"form, cross site":              {"cross-site", "http://evil.test", form, false},
		"unknown Sec-Fetch-Site":        {"galaxy", "", json, false},
		"method override":               {"cross-site", "http://localhost:8080", json, false},
		"same origin, malformed origin": {"same-origin", "http://evil@localhost:8080", json, false},
	} {
		t.Run(name, func(t *testing.T) {
			bus := newFailing(t)
			h := newHandler(t, bus.Bus, admin.WithAuthorizer(basic))
			letter := bus.die(t, 1)[0].ID.String()
			r := request(t, http.MethodPost, "/api/v1/letters/"+letter+"/purge", `{}`)
			r.SetBasicAuth("anna", "right")
			r.AddCookie(&http.Cookie{Name: "session", Value: "right"})
			r.Header.Set("Content-Type", test.media)
			for name, value := range map[string]string{"Sec-Fetch-Site": test.site, "Origin": test.origin} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			w := serve(h, r)
			require.Equal(t, test.allowed, w.Code == http.StatusOK, w.Body)
			require.Equal(t, test.allowed, bus.letters(t) == 0)
			require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
		})
	}
}

// A change is a POST, whatever the client says besides.
func TestZ6_OtherMethodsChangeNothing(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	f := newFixture(t, bus, h)
	for _, op := range operations(t, h) {
		if op.method != http.MethodPost || op.path == "/api/v1/operations" {
			continue
		}
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete, http.MethodPatch} {
			r := f.request(t, op)
			r.Method = method
			r.Header.Set("X-HTTP-Method-Override", http.MethodPost)
			w := serve(h, r)
			// The parent of a path may be a resource: an order is no {id}.
			require.Contains(t, []int{http.StatusMethodNotAllowed, http.StatusNotFound, http.StatusBadRequest}, w.Code, "%s %s", method, op.path)
		}
	}
	require.Equal(t, 5, bus.letters(t))
}

func TestZ7_NoBypassOfTheOriginCheckAndAFixedGo(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	checks := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name) //nolint:gosec // the package's own files
		require.NoError(t, err)
		require.NotContains(t, string(text), "InsecureBypass", name)
		checks += strings.Count(string(text), "NewCrossOriginProtection()")
	}
	require.Equal(t, 1, checks, "the protection has no other origin")

	// net/http's check had a hole before 1.25.1 (CVE-2025-47910).
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	for line := range strings.Lines(string(mod)) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "go "); ok {
			var major, minor, patch int
			_, err := fmt.Sscanf(version+".0", "%d.%d.%d", &major, &minor, &patch)
			require.NoError(t, err, version)
			require.True(t, major > 1 || minor > 25 || minor == 25 && patch >= 1, "go %s in go.mod", version)
			return
		}
	}
	t.Fatal("go.mod has no go line")
}

func TestZ8_OnlyOwnHostNamesAreServed(t *testing.T) {
	bus := eventbustest.New(t)
	plain := newHandler(t, bus)
	named := newHandler(t, bus, admin.WithHosts("admin.example.com", "shop.example.com:8443", "10.0.0.7"))
	for host, expected := range map[string]struct{ plain, named bool }{
		"localhost": {true, true}, "localhost:8080": {true, true}, "LOCALHOST:1": {true, true}, "127.0.0.1:1": {true, true}, "[::1]": {true, true}, "[::1]:80": {true, true},
		"admin.example.com": {false, true}, "Admin.Example.Com:99": {false, true}, "shop.example.com:8443": {false, true}, "10.0.0.7:80": {false, true},
		"shop.example.com": {}, "shop.example.com:80": {}, "x.admin.example.com": {}, "admin.example.com.evil.test": {},
		"": {}, "evil.test": {}, "localhost.evil.com": {}, "127.0.0.1.evil.com": {}, "localhost.": {}, "localhost:80:80": {}, "localhost@evil.test": {},
		"127.0.0.2": {}, "0.0.0.0": {}, "evil.test:localhost": {}, "localhost, evil.test": {}, "[::2]": {},
	} {
		r := request(t, http.MethodGet, "/api/v1/overview", "")
		r.Host = host
		require.Equal(t, expected.plain, serve(plain, r).Code == http.StatusOK, "plain %q", host)
		require.Equal(t, expected.named, serve(named, r).Code == http.StatusOK, "named %q", host)
	}
	r := request(t, http.MethodGet, "/api/v1/overview", "")
	r.Host = "evil.test"
	r.Header.Set("X-Forwarded-Host", "localhost")
	r.Header.Set("Forwarded", "host=localhost")
	_ = refused(t, plain, r, admin.CodeForbidden)

	// The host of an absolute target counts, as net/http reads it.
	server := httptest.NewServer(plain)
	defer server.Close()
	for target, status := range map[string]int{"/api/v1/overview": 200, "http://evil.test/api/v1/overview": 403, "http://localhost/api/v1/overview": 200} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", target)
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, status, answer.StatusCode, target)
		require.NoError(t, answer.Body.Close())
		require.NoError(t, conn.Close())
	}
}

// xss are texts that a browser must not run.
var xss = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'onmouseover='alert(1)`, `javascript:alert(1)`,
	`</script><svg onload=alert(1)>`, `{{.}}`, "\u2028alert(1)", `<!--`, `]]>`, "\x00<script>",
}

func TestZ9_HeadersAndEscapes(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	f := newFixture(t, bus, h)
	requests := []*http.Request{
		request(t, http.MethodGet, "/", ""), request(t, http.MethodGet, "/nowhere/<script>", ""), request(t, http.MethodDelete, "/api/v1/overview", ""),
		request(t, http.MethodGet, "/api/v1/letters?limit=9999", ""), request(t, http.MethodOptions, "/api/v1/letters", ""),
	}
	evil := request(t, http.MethodGet, "/api/v1/overview", "")
	evil.Host = "evil.test"
	requests = append(requests, evil)
	for _, op := range operations(t, h) {
		if op.path != "/api/v1/live" {
			requests = append(requests, f.request(t, op))
		}
	}
	for _, r := range requests {
		w := serve(h, r)
		name := r.Method + " " + r.URL.Path + " " + strconv.Itoa(w.Code)
		csp := w.Header().Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "style-src 'self'", "img-src 'self'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
			require.Contains(t, csp, part, name)
		}
		require.NotContains(t, csp, "unsafe", name)
		for header, value := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Cross-Origin-Opener-Policy": "same-origin",
		} {
			require.Equal(t, value, w.Header().Get(header), "%s: %s", name, header)
		}
		require.NotEmpty(t, w.Header().Get("X-Request-Id"), name)
		require.NotEmpty(t, w.Header().Get("Content-Type"), name)
	}

	// JSON answers have no markup in any text, and never a type that a browser renders.
	for _, text := range xss {
		text = strings.ReplaceAll(text, "\x00", "")
		_, err := bus.PublishAndWait(t.Context(), "order.placed", text, eventbus.Metadata("trace", text))
		require.Error(t, err)
	}
	for _, target := range []string{"/api/v1/letters", "/api/v1/preview", "/api/v1/letters?colour=<script>", "/api/v1/groups", "/api/v1/subscriptions/<script>"} {
		w := serve(h, request(t, http.MethodGet, target, ""))
		require.Contains(t, w.Header().Get("Content-Type"), "application/json")
		require.NotContains(t, w.Body.String(), "<", target)
		require.NotContains(t, w.Body.String(), "\u2028", target)
	}
}

func TestZ10_PayloadsAreDownloads(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	for _, payload := range []any{"<script>alert(1)</script>", order{Number: 7}, nil, []byte{0, 1, 255}} {
		_, err := bus.PublishAndWait(t.Context(), "order.placed", payload)
		require.Error(t, err)
	}
	page := get[eventbus.LetterPage](t, h, "/api/v1/letters")
	for i, want := range []string{`"AAH/"`, `null`, `{"number":7}`, `"\u003cscript\u003ealert(1)\u003c/script\u003e"`} {
		id := page.Letters[i].ID.String()
		w := serve(h, request(t, http.MethodGet, "/api/v1/letters/"+id+"/payload", ""))
		require.Equal(t, "application/octet-stream", w.Header().Get("Content-Type"))
		require.Equal(t, `attachment; filename="`+id+`.payload"`, w.Header().Get("Content-Disposition"))
		require.Equal(t, want, w.Body.String())
	}
}

func TestZ23_ThePrefixIsTheOnlyBase(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus, admin.WithPrefix("/ops/admin/"))
	f := bus.die(t, 1)
	require.Len(t, get[eventbus.LetterPage](t, h, "/ops/admin/api/v1/letters").Letters, 1)
	for _, path := range []string{"/api/v1/letters", "/ops/api/v1/letters", "/ops/adminapi/v1/letters", "/ops/admin/ops/admin/api/v1/letters"} {
		_ = refused(t, h, request(t, http.MethodGet, path, ""), admin.CodeNotFound)
	}
	for _, target := range []string{"/ops/admin", "/ops/admin/", "/ops/admin//evil.test/", "/ops/admin/api/v1/letters", "/ops/admin/api/v1/letters/" + f[0].ID.String(), "/ops/admin/https://evil.test"} {
		r := request(t, http.MethodGet, "/", "")
		r.URL.Path = target
		r.Host = "localhost:7777"
		w := serve(h, r)
		location := w.Header().Get("Location")
		require.True(t, location == "" || strings.HasPrefix(location, "/ops/admin/") && !strings.HasPrefix(location, "//"), location)
		require.NotContains(t, w.Body.String(), "localhost:7777")
	}
}
