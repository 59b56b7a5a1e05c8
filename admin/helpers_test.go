package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/eventbustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// everyone authorizes every request, as the user of its X-Test-User header, or anna.
func everyone(r *http.Request, _ admin.Action) (admin.Principal, error) {
	if name := r.Header.Get("X-Test-User"); name != "" {
		return admin.Principal{Name: name}, nil
	}
	return admin.Principal{Name: "anna"}, nil
}

// newHandler returns a handler for whose requests everything is permitted, unless opts say otherwise.
func newHandler(t *testing.T, bus *eventbus.Bus, opts ...admin.Option) http.Handler {
	t.Helper()
	h, err := admin.New(bus, append([]admin.Option{admin.WithAuthorizer(everyone)}, opts...)...)
	require.NoError(t, err)
	return h
}

// request is a request as the handler's own clients send it, from a loopback address.
func request(t *testing.T, method, target, body string) *http.Request {
	t.Helper()
	var from io.Reader
	if body != "" {
		from = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(t.Context(), method, target, from)
	r.Host, r.RemoteAddr = "localhost:8080", "127.0.0.1:50000"
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// get returns the decoded answer to a GET, which must succeed.
func get[T any](t *testing.T, h http.Handler, target string) (answer T) {
	t.Helper()
	w := serve(h, request(t, http.MethodGet, target, ""))
	require.Equal(t, http.StatusOK, w.Code, "GET %s: %s", target, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	return answer
}

// post returns the decoded answer to a POST, which must succeed.
func post[T any](t *testing.T, h http.Handler, target, body string) (answer T) {
	t.Helper()
	w := serve(h, request(t, http.MethodPost, target, body))
	require.Less(t, w.Code, 300, "POST %s: %s", target, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	return answer
}

// refused returns the error of a request, which must fail with a code.
func refused(t *testing.T, h http.Handler, r *http.Request, code admin.Code) *admin.Error {
	t.Helper()
	w := serve(h, r)
	return errorIn(t, w, code)
}

func errorIn(t *testing.T, w *httptest.ResponseRecorder, code admin.Code) *admin.Error {
	t.Helper()
	var answer admin.ErrorAnswer
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), w.Body)
	require.NotNil(t, answer.Error, w.Body)
	require.Equal(t, code, answer.Error.Code, answer.Error.Message)
	require.Equal(t, answer.Error.Status(), w.Code)
	require.NotEmpty(t, answer.Error.Message)
	require.NotEmpty(t, answer.Error.Remedy)
	require.Equal(t, w.Header().Get("X-Request-Id"), answer.Error.RequestID)
	return answer.Error
}

// order is the payload of the tests.
type order struct {
	Number int    `json:"number"`
	Card   string `json:"card,omitempty"`
}

var errDeclined = errors.New("card declined")

// failing is a bus whose subscription billing fails each event permanently, until it is healed.
type failing struct {
	*eventbus.Bus
	healed chan struct{} // closed to heal it
}

func newFailing(t *testing.T, opts ...eventbus.Option) *failing {
	t.Helper()
	f := &failing{eventbustest.NewUnstarted(t, opts...), make(chan struct{})}
	_, err := f.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		select {
		case <-f.healed:
			return nil
		default:
			return eventbus.Permanent(errDeclined)
		}
	}, eventbus.Named("billing"), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	eventbustest.AllowDeadLetters(t, f.Bus, eventbus.LetterQuery{})
	require.NoError(t, f.Start(t.Context()))
	return f
}

// die publishes events and returns their dead letters, oldest first.
func (f *failing) die(t *testing.T, n int, opts ...eventbus.PublishOption) (letters []eventbus.DeadLetter) {
	t.Helper()
	for i := range n {
		_, err := f.PublishAndWait(t.Context(), "order.placed", order{Number: i + 1}, opts...)
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		letters = append(letters, failed.Letters...)
	}
	return letters
}

// letters returns the number of dead letters.
func (f *failing) letters(t *testing.T) int {
	t.Helper()
	page, err := f.DLQ().List(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	return page.Total
}
