package docs_test

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
		if err := json.NewDecoder(r.Body).Decode(&user); err != nil || user.ID == "" {
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

var _ = main // the page shows it; the test calls run

// docsService is beside the lines that the page shows, and has no import that they do not have.
func docsService(t *testingT) error { return testService(t) }
