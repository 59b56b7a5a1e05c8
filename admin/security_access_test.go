package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/eventbustest"
)

func TestZ1_NothingIsRegisteredOrListens(t *testing.T) {
	bus := eventbustest.New(t)
	_ = newHandler(t, bus)
	mux := http.DefaultServeMux //nolint:forbidigo // it is what must stay empty
	for _, path := range []string{"/", "/admin/", "/api/v1/overview", "/debug/pprof/", "/debug/vars"} {
		_, pattern := mux.Handler(request(t, http.MethodGet, path, ""))
		require.Empty(t, pattern, path)
	}
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(deps), "net/http\n")
	require.NotContains(t, string(deps), "net/http/pprof")
	require.NotContains(t, string(deps), "expvar")
}

func TestZ2_WithoutAnAuthorizerLocalReadsOnly(t *testing.T) {
	bus := newFailing(t)
	h, err := admin.New(bus.Bus)
	require.NoError(t, err)
	letter := bus.die(t, 1)[0].ID.String()
	for peer, local := range map[string]bool{
		"127.0.0.1:1": true, "127.8.8.8:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true,
		"10.0.0.1:1": false, "192.168.1.1:1": false, "[fe80::1]:1": false, "0.0.0.0:1": false, "[::]:1": false,
		"127.0.0.1": false, "localhost:1": false, "@": false, "": false,
	} {
		r := request(t, http.MethodGet, "/api/v1/letters", "")
		r.RemoteAddr = peer
		if local {
			require.Equal(t, http.StatusOK, serve(h, r).Code, peer)
			continue
		}
		require.Contains(t, refused(t, h, r, admin.CodeForbidden).Remedy, "WithAuthorizer", peer)
	}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host", "Via"} {
		r := request(t, http.MethodGet, "/api/v1/letters", "")
		r.Header.Set(name, "")
		_ = refused(t, h, r, admin.CodeForbidden)
	}
	for _, op := range operations(t, h) {
		if op.method == http.MethodGet {
			continue
		}
		r := request(t, op.method, strings.NewReplacer("{id}", letter, "{name}", "billing").Replace(op.path), `{}`)
		require.Contains(t, refused(t, h, r, admin.CodeReadOnly).Remedy, "WithAuthorizer", op.path)
	}
	_ = refused(t, h, request(t, http.MethodGet, "/api/v1/letters/"+letter+"/payload", ""), admin.CodeForbidden)
	require.Equal(t, 1, bus.letters(t))
}

// byRole permits the action that the request names.
func byRole(r *http.Request, action admin.Action) (admin.Principal, error) {
	who := admin.Principal{Name: "ben"}
	if r.Header.Get("X-Test-Role") != string(action) {
		return who, admin.ErrForbidden
	}
	return who, nil
}

// as gives a request a role.
func as(role admin.Action, r *http.Request) *http.Request {
	r.Header.Set("X-Test-Role", string(role))
	return r
}

// Every route with every single permission: only those that the document names open it.
func TestZ3_EachRouteNeedsItsAction(t *testing.T) {
	bus := newFailing(t)
	f := newFixture(t, bus, newHandler(t, bus.Bus))
	ops := operations(t, newHandler(t, bus.Bus))
	h := newHandler(t, bus.Bus, admin.WithAuthorizer(byRole))
	for _, granted := range admin.Actions() {
		for _, op := range ops {
			if op.path == "/api/v1/live" && granted == admin.ActionView {
				continue // TestLive
			}
			w := serve(h, as(granted, broken(f.request(t, op))))
			require.Equal(t, !slices.Contains(op.actions, granted), w.Code == http.StatusForbidden, "%s %s with %s: %s", op.method, op.path, granted, w.Body)
		}
	}
	// Operations need the permission for what they do.
	for granted, denied := range map[admin.Action]string{admin.ActionReplay: "purge_matching", admin.ActionPurge: "replay_matching"} {
		begin := request(t, http.MethodPost, "/api/v1/operations", `{"action":"`+denied+`","query":{"all":true},"expect":5}`)
		_ = refused(t, h, as(granted, begin), admin.CodeForbidden)
	}
	w := serve(h, as(admin.ActionPurge, request(t, http.MethodPost, "/api/v1/operations", `{"action":"purge_matching","query":{"reason":"crash"},"expect":0}`)))
	require.Equal(t, http.StatusAccepted, w.Code, w.Body)
	var op admin.Operation
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &op))
	_ = refused(t, h, as(admin.ActionReplay, request(t, http.MethodPost, "/api/v1/operations/"+op.ID+"/cancel", `{}`)), admin.CodeForbidden)
	require.Equal(t, 5, bus.letters(t))
}

// broken makes a change one that is refused for its body, after it was authorized.
func broken(r *http.Request) *http.Request {
	if r.Method == http.MethodPost {
		r.Header.Set("Content-Type", "application/yaml")
	}
	return r
}

func TestZ3_AFailingAuthorizerDeniesAll(t *testing.T) {
	bus := eventbustest.New(t)
	for name, authorize := range map[string]admin.Authorizer{
		"error": func(*http.Request, admin.Action) (admin.Principal, error) {
			return admin.Principal{Name: "x"}, errors.New("secret host down")
		},
		"panic":   func(*http.Request, admin.Action) (admin.Principal, error) { panic("secret state") },
		"nobody":  func(*http.Request, admin.Action) (admin.Principal, error) { return admin.Principal{}, nil },
		"hostile": func(*http.Request, admin.Action) (admin.Principal, error) { return admin.Principal{Name: "a\nb"}, nil },
		"long name": func(*http.Request, admin.Action) (admin.Principal, error) {
			return admin.Principal{Name: strings.Repeat("a", 256)}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := refused(t, newHandler(t, bus, admin.WithAuthorizer(authorize)), request(t, http.MethodGet, "/api/v1/overview", ""), admin.CodeInternal)
			require.NotContains(t, e.Message, "secret")
		})
	}
}

func TestZ4_BasicAuthAndBearerToken(t *testing.T) {
	bus := eventbustest.New(t)
	const token = "0123456789abcdef"
	basic, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: "right"}, admin.Operator{Name: "ben", Secret: "read", Actions: []admin.Action{admin.ActionView}})
	require.NoError(t, err)
	bearer, err := admin.BearerToken(admin.Operator{Name: "script", Secret: token})
	require.NoError(t, err)
	login := func(name, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(name, password) }
	}
	header := func(value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", value) }
	}
	for name, test := range map[string]struct {
		authorize admin.Authorizer
		with      func(*http.Request)
		status    int
	}{
		"right":               {basic, login("anna", "right"), 200},
		"another operator":    {basic, login("ben", "read"), 200},
		"wrong password":      {basic, login("anna", "wrong"), 401},
		"unknown name":        {basic, login("eve", "right"), 401},
		"empty password":      {basic, login("anna", ""), 401},
		"password of another": {basic, login("ben", "right"), 401},
		"colons moved":        {basic, login("anna:right", ""), 401},
		"nothing":             {basic, func(*http.Request) {}, 401},
		"token for basic":     {basic, header("Bearer " + token), 401},
		"token":               {bearer, header("Bearer " + token), 200},
		"token, other case":   {bearer, header("bearer " + token), 200},
		"wrong token":         {bearer, header("Bearer " + token + "0"), 401},
		"empty token":         {bearer, header("Bearer "), 401},
		"token without name":  {bearer, header(token), 401},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, http.MethodGet, "/api/v1/overview", "")
			test.with(r)
			r.RemoteAddr = name // failures of one do not limit the others
			w := serve(newHandler(t, bus, admin.WithAuthorizer(test.authorize)), r)
			require.Equal(t, test.status, w.Code, w.Body)
			require.Equal(t, w.Code == 401, w.Header().Get("WWW-Authenticate") != "")
		})
	}

	// Nothing in the answer tells an unknown name from a wrong password.
	answer := func(name string) string {
		h := newHandler(t, bus, admin.WithAuthorizer(basic))
		r := request(t, http.MethodGet, "/api/v1/overview", "")
		r.RemoteAddr = "127.0.0.2:1"
		r.SetBasicAuth(name, "guess")
		w := serve(h, r)
		return strings.ReplaceAll(w.Body.String(), w.Header().Get("X-Request-Id"), "")
	}
	require.Equal(t, answer("anna"), answer("eve"))

	for name, operators := range map[string][]admin.Operator{
		"unset environment": {{Name: "anna", Secret: os.Getenv("EVENTBUS_ADMIN_TEST_UNSET")}},
		"no name":           {{Secret: token}},
		"colon in the name": {{Name: "a:b", Secret: token}},
		"newline":           {{Name: "a\nb", Secret: token}},
		"twice":             {{Name: "anna", Secret: token}, {Name: "anna", Secret: "another-secret-x"}},
		"unknown action":    {{Name: "anna", Secret: token, Actions: []admin.Action{"everything"}}},
		"none":              nil,
	} {
		for _, auth := range []func(...admin.Operator) (admin.Authorizer, error){admin.BasicAuth, admin.BearerToken} {
			_, err := auth(operators...)
			require.ErrorIs(t, err, eventbus.ErrInvalidOption, name)
			require.NotContains(t, err.Error(), token)
		}
	}
	_, err = admin.BearerToken(admin.Operator{Name: "script", Secret: token[1:]})
	require.ErrorIs(t, err, eventbus.ErrInvalidOption)
}

// login returns a function that presents a password of anna from an address, with the same authorizer.
func login(t *testing.T) func(remote, password string) error {
	t.Helper()
	basic, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: "right"})
	require.NoError(t, err)
	r := request(t, http.MethodGet, "/", "")
	return func(remote, password string) error {
		r.RemoteAddr = remote
		r.SetBasicAuth("anna", password)
		_, err := basic(r, admin.ActionView)
		return err
	}
}

// isLimited requires that an address is limited, also with the right password.
func isLimited(t *testing.T, try func(remote, password string) error, remote string) {
	t.Helper()
	var limited *admin.RateLimitError
	require.ErrorAs(t, try(remote, "right"), &limited, remote)
}

func TestZ4_FailedLoginsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		try := login(t)
		var limited *admin.RateLimitError
		for range 5 {
			require.ErrorIs(t, try("10.0.0.1:1", "wrong"), admin.ErrUnauthenticated)
		}
		require.ErrorAs(t, try("10.0.0.1:2", "right"), &limited, "also the right password, or a guess would show")
		require.Equal(t, time.Second, limited.RetryAfter)
		require.NoError(t, try("10.0.0.2:1", "right"), "another peer is not concerned")
		time.Sleep(time.Second)
		require.ErrorIs(t, try("10.0.0.1:1", "wrong"), admin.ErrUnauthenticated)
		require.ErrorAs(t, try("10.0.0.1:1", "wrong"), &limited)
		time.Sleep(time.Second)
		require.NoError(t, try("10.0.0.1:1", "right"))
	})
}

// manyPeers is more than the limiter counts.
const manyPeers = 70_000

// address returns a distinct IPv4 address.
func address(i int) string { return fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255) }

// However many addresses fail, an operator from one that has not failed gets in at once.
func TestZ4_TheLoginCannotBeLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		try := login(t)
		for i := range manyPeers {
			require.ErrorIs(t, try(address(i), "wrong"), admin.ErrUnauthenticated)
		}
		for _, remote := range []string{"192.0.2.1:1", "[2001:db8::1]:1", "192.0.2.2", "@"} {
			require.NoError(t, try(remote, "right"), remote)
		}
		// It may also fail and be limited as ever.
		for range 5 {
			require.ErrorIs(t, try("192.0.2.1:1", "wrong"), admin.ErrUnauthenticated)
		}
		isLimited(t, try, "192.0.2.1:1")
		require.NoError(t, try("192.0.2.3:1", "right"))
	})
}

// An address that is limited stays so while many others fail: its count is not the one that is forgotten.
func TestZ4_ManyAddressesDoNotResetACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		try := login(t)
		const guesser = "192.0.2.1:1"
		for range 5 {
			require.ErrorIs(t, try(guesser, "wrong"), admin.ErrUnauthenticated)
		}
		for i := range manyPeers {
			require.ErrorIs(t, try(address(i), "wrong"), admin.ErrUnauthenticated)
			if i%1000 == 0 {
				isLimited(t, try, guesser)
			}
		}
		isLimited(t, try, guesser)
		require.ErrorIs(t, try(address(manyPeers), "wrong"), admin.ErrUnauthenticated)
		time.Sleep(time.Second)
		require.NoError(t, try(guesser, "right"), "it is limited no longer than without the others")
	})
}

// The memory for failed logins is bounded, also if a handler in front sets RemoteAddr from a long header.
func TestZ4_TheMemoryOfFailuresIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		try := login(t)
		long := strings.Repeat("x", 1000)
		used := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := used()
		for i := range 3 * manyPeers {
			_ = try(fmt.Sprint(i, " in a header ", long), "wrong")
		}
		require.Less(t, used(), before+24<<20)
		require.NoError(t, try("10.0.0.1:1", "right"))
	})
}

func TestZ4_ANetworkIsOnePeer(t *testing.T) {
	for name, peers := range map[string]struct {
		same   []string
		others []string
	}{
		"IPv6 by /64": {
			[]string{"[2001:db8:1:2::1]:1", "[2001:db8:1:2:ffff:ffff:ffff:ffff]:2", "[2001:DB8:1:2:0::7]:3", "2001:db8:1:2::9", "[2001:db8:1:2::9]", "[2001:db8:1:2::5%eth0]:1"},
			[]string{"[2001:db8:1:3::1]:1", "[2001:db8::1]:1", "[::1]:1"},
		},
		"IPv4 in IPv6": {
			[]string{"192.0.2.1:1", "[::ffff:192.0.2.1]:2", "[::ffff:c000:201]:3", "192.0.2.1", "::ffff:192.0.2.1", "[::ffff:192.0.2.1%eth0]:1"},
			[]string{"192.0.2.2:1", "[::ffff:192.0.2.3]:1", "[::1]:1", "[::2:192.0.2.1]:1"},
		},
		"no address": {
			[]string{"@", "@", "@", "@", "@"},
			[]string{"", "pipe", "127.0.0.1:1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				try := login(t)
				for i := range 5 {
					require.ErrorIs(t, try(peers.same[i], "wrong"), admin.ErrUnauthenticated)
				}
				for _, remote := range peers.same {
					isLimited(t, try, remote)
				}
				for _, remote := range peers.others {
					require.NoError(t, try(remote, "right"), remote)
				}
			})
		})
	}
}

func TestZ4_TheLimitIs429(t *testing.T) {
	basic, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: "right"})
	require.NoError(t, err)
	h := newHandler(t, eventbustest.New(t), admin.WithAuthorizer(basic))
	var w *httptest.ResponseRecorder
	for range 6 {
		r := request(t, http.MethodGet, "/api/v1/overview", "")
		r.SetBasicAuth("anna", "wrong")
		w = serve(h, r)
	}
	_ = errorIn(t, w, admin.CodeRateLimited)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}

func TestZ5_NoPathIsExempt(t *testing.T) {
	basic, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: "right"})
	require.NoError(t, err)
	h := newHandler(t, eventbustest.New(t), admin.WithAuthorizer(basic), admin.WithPrefix("/admin"))
	for _, path := range []string{
		"/", "/admin", "/admin/", "/health", "/admin/health", "/admin/api/health-checks/", "/admin/api/v1/overview",
		"/admin/api/v1/x/../health", "/admin/api/v1/overview/../../../health", "/admin/%2e%2e/health", "/admin/api/v1/%2e%2e/overview",
		"/admin//api/v1/overview", "//admin/api/v1/overview", "/admin/api/v1/overview/", "/admin/api/v1/overview.css", "/admin/api/v1/overview;x=/health",
		"/admin/api/v1/overview%2fhealth", "/admin/api/v1/letters/%00", "/adminx/api/v1/overview", "/admin/static/app.js", "/favicon.ico", "/robots.txt",
		"/admin/api/v1/openapi.json", "/admin/api/v1/live",
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions, "PROPFIND"} {
			r := request(t, method, "/", "")
			r.URL.Path, r.URL.RawPath = path, ""
			if u, err := r.URL.Parse("http://localhost" + path); err == nil {
				r.URL.Path, r.URL.RawPath = u.Path, u.RawPath
			}
			w := serve(h, r)
			require.Equal(t, http.StatusUnauthorized, w.Code, "%s %s", method, path)
			require.Empty(t, w.Header().Get("Location"), path)
		}
	}
}

func TestZ12_ReadOnlyWinsOverPermissions(t *testing.T) {
	bus := newFailing(t)
	all := newHandler(t, bus.Bus)
	f := newFixture(t, bus, all)
	h := newHandler(t, bus.Bus, admin.ReadOnly())
	for _, op := range operations(t, h) {
		if op.method == http.MethodPost {
			_ = refused(t, h, f.request(t, op), admin.CodeReadOnly)
		}
	}
	require.Equal(t, 5, bus.letters(t))
	require.Len(t, get[eventbus.LetterPage](t, h, "/api/v1/letters").Letters, 5)
	require.Equal(t, `{"number":1}`, serve(h, f.payload(t, 0)).Body.String())
	status := get[eventbus.EventStatus](t, h, "/api/v1/events/"+f.scheduled.String())
	require.Len(t, status.Dispatches, 1, "it is not cancelled")
}

// payload requests the payload of a letter.
func (f *fixture) payload(t *testing.T, i int) *http.Request {
	t.Helper()
	return request(t, http.MethodGet, "/api/v1/letters/"+f.letters[i].ID.String()+"/payload", "")
}
