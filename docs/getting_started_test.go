package docs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/store/sqlite/sqlitetest"
	"github.com/surebus/eventbus/storetest"
)

type testingT = testing.T

// shared is a value that handlers and a test share.
type shared[T any] struct {
	mu sync.Mutex
	v  T
}

func (s *shared[T]) do(f func(v *T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.v)
}

func (s *shared[T]) set(v T) { s.do(func(is *T) { *is = v }) }

func (s *shared[T]) get() (v T) {
	s.do(func(is *T) { v = *is })
	return v
}

func TestDocs_GettingStarted(t *testing.T) {
	docpagetest.Page(t, "getting-started.md", docpagetest.Code(docsService))
}

// testService runs the service twice on one file, and stops it as SIGTERM would.
func testService(t *testing.T) error {
	log := captureSlog(t)
	file := sqlitetest.Path(t)
	for _, id := range []string{"u-1", "u-2"} {
		if err := runOnce(t, file, id); err != nil {
			return err
		}
	}
	require.Contains(t, log.String(), `"user":"u-1"`)
	require.Contains(t, log.String(), `"user":"u-2"`)
	require.Contains(t, log.String(), "bus shut down")
	require.NotContains(t, log.String(), "without shutdown")
	return nil
}

// logText is what a log has written.
type logText struct{ text shared[bytes.Buffer] }

func (l *logText) Write(p []byte) (n int, err error) {
	l.text.do(func(b *bytes.Buffer) { n, err = b.Write(p) })
	return n, err
}

func (l *logText) String() (text string) {
	l.text.do(func(b *bytes.Buffer) { text = b.String() })
	return text
}

// captureSlog sets the default logger of log/slog, as main does.
func captureSlog(t *testing.T) *logText {
	var log logText
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return &log
}

func runOnce(t *testing.T, file, id string) error {
	registry := prometheus.NewRegistry()
	prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registry, registry
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it only finds a free port
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client, ended := &http.Client{Transport: new(http.Transport)}, make(chan error, 1)
	go func() { ended <- run(ctx, addr, file) }()
	call := func(method, path, body string) (status int, text string) {
		request, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, strings.NewReader(body))
		require.NoError(t, err)
		response, err := client.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		read, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(read)
	}
	require.Eventually(t, func() bool { status, _ := call("GET", "/metrics", ""); return status == http.StatusOK }, 10*time.Second, 10*time.Millisecond)
	status, _ := call("POST", "/users", fmt.Sprintf(`{"id": %q, "email": "%s@example.com"}`, id, id))
	require.Equal(t, http.StatusAccepted, status)
	status, _ = call("POST", "/users", fmt.Sprintf(`{"id": %q}`, id)) // a client that repeats itself
	require.Equal(t, http.StatusAccepted, status)
	for _, invalid := range []string{"{", `{"email": "ann@example.com"}`} { // a repetition would not help
		status, _ = call("POST", "/users", invalid)
		require.Equal(t, http.StatusBadRequest, status)
	}
	require.Eventually(t, func() bool {
		_, text := call("GET", "/metrics", "")
		return strings.Contains(text, `eventbus_subscription_successes_total{bus="accounts",subscription="welcome"} 1`)
	}, 10*time.Second, 10*time.Millisecond)
	client.CloseIdleConnections()
	cancel()
	return <-ended
}

// The tables of the page about Shutdown and its absence.
func TestPages_GettingStartedWithoutShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, log := storetest.NewModel(), new(logText)
		begun := make(chan struct{})
		first := eventbustest.New(t, eventbus.WithStore(model.Open()))
		_, err := SignedUp.Subscribe(first, func(ctx context.Context, _ User) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}, eventbus.Named("welcome"))
		require.NoError(t, err)
		for _, id := range []string{"u-1", "u-2"} {
			_, err = SignedUp.Publish(t.Context(), first, User{ID: id}, eventbus.Key("all"))
			require.NoError(t, err)
		}
		<-begun
		eventbustest.Crash(t, first, model.Crash)

		second := eventbustest.New(t, eventbus.WithStore(model.Open()), eventbus.WithSlog(slog.NewTextHandler(log, nil)))
		var handled shared[[]string]
		_, err = SignedUp.Subscribe(second, func(_ context.Context, user User) error {
			handled.do(func(ids *[]string) { *ids = append(*ids, user.ID) })
			return nil
		}, eventbus.Named("welcome"))
		require.NoError(t, err)
		eventbustest.WaitSettled(t, second)
		require.Equal(t, []string{"u-1", "u-2"}, handled.get()) // u-1 for the second time
		require.NoError(t, second.Shutdown(t.Context()))
		require.Contains(t, log.String(), `msg="last process ended without shutdown"`)
		require.Regexp(t, "crashed_events=[12]", log.String()) // u-2, if memory had it
	})
}

func TestPages_GettingStartedShutdown(t *testing.T) {
	eventbustest.Both(t, func(t *testing.T, newBus func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus) {
		synctest.Test(t, func(t *testing.T) {
			bus := newBus(t)
			_, err := SignedUp.Subscribe(bus, func(context.Context, User) error { return errors.New("no mail server") }, eventbus.Named("welcome"))
			require.NoError(t, err)
			_, err = SignedUp.Publish(t.Context(), bus, User{}, eventbus.After(time.Hour))
			require.NoError(t, err)
			_, err = SignedUp.Publish(t.Context(), bus, User{})
			require.NoError(t, err)
			paused, err := bus.Subscribe("held", eventbustest.Fail(nil), eventbus.Named("held"))
			require.NoError(t, err)
			require.NoError(t, paused.Pause())
			_, err = bus.Subscribe("snoozed", eventbustest.Fail(eventbus.Snooze(time.Hour)), eventbus.Named("snoozed"))
			require.NoError(t, err)
			for _, eventType := range []string{"held", "snoozed"} {
				_, err = bus.Publish(t.Context(), eventType, nil)
				require.NoError(t, err)
			}
			synctest.Wait()
			inMemory := bus.Metrics().Store == nil
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonShutdown})
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonExhausted})
			begun := time.Now()
			err = bus.Shutdown(t.Context())
			_, late := bus.Publish(t.Context(), "user.signed_up", User{})
			require.ErrorIs(t, late, eventbus.ErrShutdown)
			if !inMemory {
				require.NoError(t, err)
				require.Less(t, time.Since(begun), time.Second)
				return
			}
			var left *eventbus.ShutdownError
			require.ErrorAs(t, err, &left)
			require.Len(t, left.Unfinished, 3) // the scheduled, the held and the snoozed event
			require.Greater(t, time.Since(begun), 6*time.Second, "it waits for the retries after 1, 2 and 4 s")
			require.Equal(t, 1, bus.Metrics().DeadLetters-len(left.Unfinished))
		})
	})
}
