package docs_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/store/sqlite/sqlitetest"
	"github.com/surebus/eventbus/storetest"
)

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/surebus/eventbus"
	busprometheus "github.com/surebus/eventbus/observe/prometheus"
	"github.com/surebus/eventbus/store/sqlite"
)

type User struct {
	ID    string `json:"id"`
	Email string `json:"email"`
}

var SignedUp = eventbus.NewTopic[User]("user.signed_up")

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, "localhost:8080", "events.db")
	stop()
	if err != nil {
		slog.Error("service failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, file string) error {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithSlog(slog.Default().Handler()))
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	err = serve(ctx, bus, addr)
	ending, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(err, bus.Shutdown(ending)) // closes the store, too
}

func serve(ctx context.Context, bus *eventbus.Bus, addr string) error {
	if _, err := SignedUp.Subscribe(bus, sendWelcome, eventbus.Named("welcome")); err != nil {
		return err
	}
	collector, err := busprometheus.New(bus, "accounts")
	if err != nil {
		return err
	}
	if err := prometheus.Register(collector); err != nil {
		return err
	}
	if err := bus.Start(ctx); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.Handler())
	mux.HandleFunc("POST /users", func(w http.ResponseWriter, r *http.Request) {
		var user User
		if err := json.NewDecoder(r.Body).Decode(&user); err != nil {
			http.Error(w, "invalid user", http.StatusBadRequest)
			return
		}
		if _, err := SignedUp.Publish(r.Context(), bus, user, eventbus.IdempotencyKey(user.ID)); err != nil {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted) // the event is on the disk
	})
	server := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return server.Shutdown(ending) // publishers first, then the bus
	}
}

func sendWelcome(ctx context.Context, user User) error {
	slog.InfoContext(ctx, "send welcome mail", "user", user.ID) // an error that you return is retried
	return nil
}

func TestDocs_GettingStarted(t *testing.T) {
	docpagetest.Page(t, "getting-started.md", docpagetest.Code(docsService))
}

var _ = main // the page shows it; the test calls run

// docsService runs the service twice on one file, and stops it as SIGTERM would.
func docsService(t *testing.T) error {
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

// captureSlog sets the default logger of log/slog, as main does.
func captureSlog(t *testing.T) *bytes.Buffer {
	var log bytes.Buffer
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
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, addr, file) }()
	call := func(method, path, body string) (status int, text string) {
		request, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, strings.NewReader(body))
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
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
	status, _ = call("POST", "/users", "{")
	require.Equal(t, http.StatusBadRequest, status)
	require.Eventually(t, func() bool {
		_, text := call("GET", "/metrics", "")
		return strings.Contains(text, `eventbus_subscription_successes_total{bus="accounts",subscription="welcome"} 1`)
	}, 10*time.Second, 10*time.Millisecond)
	http.DefaultClient.CloseIdleConnections()
	cancel()
	return <-ended
}

// The tables of the page about Shutdown and its absence.
func TestDocs_GettingStartedWithoutShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, log := storetest.NewModel(), new(bytes.Buffer)
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
		var handled []string
		_, err = SignedUp.Subscribe(second, func(_ context.Context, user User) error {
			handled = append(handled, user.ID)
			return nil
		}, eventbus.Named("welcome"))
		require.NoError(t, err)
		eventbustest.WaitSettled(t, second)
		require.Equal(t, []string{"u-1", "u-2"}, handled) // u-1 for the second time
		require.NoError(t, second.Shutdown(t.Context()))
		require.Contains(t, log.String(), `msg="last process ended without shutdown"`)
		require.Contains(t, log.String(), "crashed_events=2")
	})
}

func TestDocs_GettingStartedShutdown(t *testing.T) {
	eventbustest.Both(t, func(t *testing.T, newBus func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus) {
		synctest.Test(t, func(t *testing.T) {
			bus := newBus(t)
			_, err := SignedUp.Subscribe(bus, func(context.Context, User) error { return errors.New("no mail server") }, eventbus.Named("welcome"))
			require.NoError(t, err)
			_, err = SignedUp.Publish(t.Context(), bus, User{}, eventbus.After(time.Hour))
			require.NoError(t, err)
			_, err = SignedUp.Publish(t.Context(), bus, User{})
			require.NoError(t, err)
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
			require.Len(t, left.Unfinished, 1) // the scheduled event
			require.Greater(t, time.Since(begun), 6*time.Second, "it waits for the retries after 1, 2 and 4 s")
			assert.Equal(t, 1, bus.Metrics().DeadLetters-len(left.Unfinished))
		})
	})
}
