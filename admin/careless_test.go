package admin_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/storetest"
)

// An operator whose purge was denied is not named as the one who purged the letter.
func TestZ13_ADeniedChangeIsNotTheCause(t *testing.T) {
	bus := newFailing(t)
	l := bus.die(t, 1)[0]
	h := newHandler(t, bus.Bus, admin.WithAuthorizer(func(r *http.Request, action admin.Action) (admin.Principal, error) {
		who, _ := everyone(r, action)
		if who.Name == "mallory" && action != admin.ActionView {
			return who, admin.ErrForbidden
		}
		return who, nil
	}))
	purge := func(user string) *http.Request {
		r := request(t, http.MethodPost, "/api/v1/letters/"+l.ID.String()+"/purge", "{}")
		r.Header.Set("X-Test-User", user)
		return r
	}
	_ = refused(t, h, purge("mallory"), admin.CodeForbidden)
	_, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true}) // its entry has no letter
	require.NoError(t, err)
	_ = refused(t, h, purge("anna"), admin.CodeNotFound)
}

// A filter by a time that cannot be one, such as the zero time of a program, is refused: it would be no filter.
func TestL4_TheZeroTimeIsNoFilter(t *testing.T) {
	h := newHandler(t, newFailing(t).Bus)
	for _, name := range []string{"since", "until", "published_since", "published_until"} {
		for _, path := range []string{"/api/v1/letters", "/api/v1/letters/export", "/api/v1/preview", "/bulk"} {
			w := serve(h, request(t, http.MethodGet, path+"?type=order.*&"+name+"=0001-01-01T00:00:00Z", ""))
			require.Equal(t, http.StatusBadRequest, w.Code, "%s %s", path, name)
		}
	}
}

// A rate that is no number is refused: it would be no limit.
func TestL4_ARateIsANumber(t *testing.T) {
	bus := newFailing(t)
	v := newVisitor(t, bus.Bus)
	_ = bus.die(t, 2)
	for _, rate := range []string{"NaN", "Inf", "-Inf", "-1", "x"} {
		f := v.visit(prefix+"/bulk?action=replay_matching&type=order.*").formWith(t, "Replay 2 letters")
		require.Equal(t, http.StatusBadRequest, v.submit(f, "Replay 2 letters", map[string]string{"rate": rate}).Code, rate)
	}
	require.Equal(t, 2, bus.letters(t))
}

// The audit has who cancelled a bulk operation, and why.
func TestZ13_TheAuditHasWhoCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		h := newHandler(t, bus.Bus)
		_ = bus.die(t, 3)
		op := begin(t, h, `{"action":"purge_matching","query":{"all":true},"expect":3,"rate":1}`)
		synctest.Wait()
		_ = refused(t, h, request(t, http.MethodPost, "/api/v1/operations/"+op.ID+"/cancel", `{"why":"a\nb"}`), admin.CodeBadRequest)
		_ = post[admin.Operation](t, h, "/api/v1/operations/"+op.ID+"/cancel", `{"why":"wrong filter"}`)
		require.Equal(t, admin.OperationCancelled, state(t, h, op).State)
		page, err := bus.Audit(t.Context(), eventbus.AuditQuery{Limit: 1})
		require.NoError(t, err)
		require.NotNil(t, page.Entries[0].Outcome)
		require.Contains(t, page.Entries[0].Outcome.Error, `cancelled by "anna": wrong filter`)
	})
}

// Beside a bus, an order to a name that its catalog does not have is refused: it would have no effect.
func TestC6_OrdersAreToKnownSubscriptions(t *testing.T) {
	model := storetest.NewModel()
	store := model.Open()
	bus := newBus(t, eventbus.WithStore(store))
	_, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("billing"), eventbus.Formerly("invoices"))
	require.NoError(t, err)
	pause := func(name string) *http.Request {
		return request(t, http.MethodPost, "/api/v1/subscriptions/"+name+"/pause", "{}")
	}
	tool := newTool(t, model)
	h := newHandler(t, tool)
	_ = refused(t, h, pause("a%1b%5b2J"), admin.CodeNotFound) // without a catalog, too
	require.NoError(t, bus.Start(t.Context()))
	require.Eventually(t, func() bool {
		_, err := tool.Catalog(t.Context())
		return err == nil
	}, time.Minute, time.Millisecond)
	for _, name := range []string{"biling", "a%1b%5b2J", strings.Repeat("a", 300)} {
		_ = refused(t, h, pause(name), admin.CodeNotFound)
	}
	for _, name := range []string{"billing", "invoices"} {
		require.Equal(t, http.StatusOK, serve(h, pause(name)).Code, name)
	}
}

// A peer that goes away does not change what others see.
func TestZ18_AGonePeerChangesNothingForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus(t)
		_, err := bus.Subscribe("order.*", func(ctx context.Context, _ eventbus.Event) error {
			<-ctx.Done()
			return nil
		}, eventbus.Named("slow"), eventbus.Timeout(time.Hour))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		_, err = bus.Publish(t.Context(), "order.placed", nil)
		require.NoError(t, err)
		synctest.Wait()
		h := newHandler(t, bus)
		require.NotNil(t, get[admin.Overview](t, h, "/api/v1/overview").OldestWaiting)
		time.Sleep(10 * time.Second)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_ = serve(h, request(t, http.MethodGet, "/api/v1/overview", "").WithContext(gone))
		require.NotNil(t, get[admin.Overview](t, h, "/api/v1/overview").OldestWaiting)
		time.Sleep(time.Hour)
	})
}

// pipes is a listener whose connections have the clock of a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A peer that never ends its body, or never reads its answer, holds a connection for the time of a request, also if it
// is refused.
func TestZ17_BodiesAndAnswersAreBounded(t *testing.T) {
	for name, c := range map[string]struct{ sent, user, answer string }{
		"a body":           {"POST /api/v1/letters/%s/purge HTTP/1.1\r\nContent-Length: 99", "anna", "HTTP/1.1 400 "},
		"a chunked body":   {"POST /api/v1/letters/%s/purge HTTP/1.1\r\nTransfer-Encoding: chunked", "anna", "HTTP/1.1 400 "},
		"of a stranger":    {"POST /api/v1/letters/%s/purge HTTP/1.1\r\nContent-Length: 99", "", "HTTP/1.1 401 "},
		"an import":        {"POST /api/v1/letters/import HTTP/1.1\r\nContent-Length: 99", "anna", "HTTP/1.1 "},
		"an answer":        {"GET /api/v1/letters HTTP/1.1", "anna", ""},
		"a page":           {"GET /letters HTTP/1.1", "anna", ""},
		"a payload":        {"GET /api/v1/letters/%s/payload HTTP/1.1", "anna", ""},
		"a file of a page": {"GET /static/app.css HTTP/1.1", "anna", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus := newFailing(t)
				l := bus.die(t, 1)[0]
				h := newHandler(t, bus.Bus, admin.WithAuthorizer(func(*http.Request, admin.Action) (admin.Principal, error) {
					if c.user == "" {
						return admin.Principal{}, admin.ErrUnauthenticated
					}
					return admin.Principal{Name: c.user}, nil
				}))
				listener := &pipes{make(chan net.Conn), make(chan struct{})}
				server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second, IdleTimeout: time.Second}
				ended := make(chan error)
				go func() { ended <- server.Serve(listener) }()
				client, conn := net.Pipe()
				listener.conns <- conn

				head := strings.ReplaceAll(c.sent, "%s", l.ID.String())
				media := "application/json"
				if strings.Contains(head, "import") {
					media = "application/jsonl"
				}
				_, err := io.WriteString(client, head+"\r\nHost: localhost\r\nContent-Type: "+media+"\r\n\r\n")
				require.NoError(t, err)
				var answer []byte
				read := make(chan struct{})
				go func() {
					defer close(read)
					if c.answer == "" {
						time.Sleep(time.Minute)
					}
					answer, _ = io.ReadAll(client)
				}()
				time.Sleep(65 * time.Second)
				select {
				case <-read:
				default:
					t.Error("the server holds the connection")
				}
				_ = client.Close()
				<-read
				assert.True(t, strings.HasPrefix(string(answer), c.answer), "%s", answer)
				if c.answer == "" {
					assert.Empty(t, answer)
				}
				require.Equal(t, 1, bus.letters(t))
				require.NoError(t, server.Close())
				require.ErrorIs(t, <-ended, http.ErrServerClosed)
			})
		})
	}
}
