package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// stderrFile makes os.Stderr a file during a test, and returns a function that reads its lines.
func stderrFile(t *testing.T) func() []string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "stderr")
	f, err := os.Create(name)
	require.NoError(t, err)
	before := os.Stderr
	os.Stderr = f
	t.Cleanup(func() {
		os.Stderr = before
		require.NoError(t, f.Close())
	})
	return func() []string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
}

func linesWith(lines []string, text string) (with []string) {
	for _, line := range lines {
		if strings.Contains(line, text) {
			with = append(with, line)
		}
	}
	return with
}

func TestO1_WarningsGoToStderrWithoutALogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := stderrFile(t)
		bus, err := eventbus.New(oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()))
		require.NoError(t, err)
		mustSubscribe(t, bus, "a", failing(errBoom), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		for range 150 {
			mustPublish(t, bus, "a", nil)
		}
		time.Sleep(time.Minute)
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		got := lines()
		failed := linesWith(got, " WARN eventbus handler failed {")
		require.Len(t, failed, 101)
		require.Contains(t, failed[0], `"subscription_id": "mail"`)
		require.Contains(t, failed[0], `"error": "boom"`)
		require.Len(t, linesWith(got, " ERROR eventbus event dead-lettered {"), 101)
		require.Len(t, linesWith(got, `log entries left out {"message": "handler failed", "entries": 50}`), 1)
		require.Len(t, linesWith(got, `log entries left out {"message": "event dead-lettered", "entries": 50}`), 1)
		require.Len(t, got, 204, "and nothing at info level")
	})
}

// stderrChild is the environment variable that makes this test binary a process that logs to its stderr.
const stderrChild = "EVENTBUS_TEST_STDERR"

// runStderrChild is a process whose handler fails for 2,000 events.
func runStderrChild(how string) error {
	if how == "closed" {
		if err := os.Stderr.Close(); err != nil {
			return err
		}
	}
	bus, err := eventbus.New(oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()))
	if err != nil {
		return err
	}
	text := strings.Repeat("x", 7<<10)
	_, err = bus.Subscribe("*", func(context.Context, eventbus.Event) error { return errors.New(text) })
	if err != nil {
		return err
	}
	if err = bus.Start(context.Background()); err != nil {
		return err
	}
	for range 2_000 {
		if _, err = bus.Publish(context.Background(), "a", nil); err != nil {
			return err
		}
	}
	return bus.Shutdown(context.Background())
}

// A stderr that takes nothing neither holds the bus up nor ends the process.
func TestO1_AStderrThatTakesNothing(t *testing.T) {
	if how := os.Getenv(stderrChild); how != "" {
		if err := runStderrChild(how); err != nil {
			_, _ = fmt.Fprintln(os.Stdout, "failed:", err)
			os.Exit(1)
		}
		_, _ = fmt.Fprintln(os.Stdout, "shut down")
		os.Exit(0) // at once: after a full pipe, the writer still waits for it
	}
	for _, how := range []string{"full", "gone", "closed"} {
		t.Run(how, func(t *testing.T) {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			defer r.Close()
			if how == "gone" {
				require.NoError(t, r.Close())
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it takes 0.1 s
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestO1_AStderrThatTakesNothing$")
			cmd.Env = append(os.Environ(), stderrChild+"="+how)
			cmd.Stderr = w
			out, err := cmd.Output()
			require.NoError(t, w.Close())
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "shut down")
			if how == "full" {
				text, err := io.ReadAll(r)
				require.NoError(t, err)
				require.Contains(t, string(text), "WARN eventbus handler failed")
			}
		})
	}
}

func TestO1_WithSlogReceivesTheEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		bus, err := eventbus.New(oneAttempt, eventbus.WithSlog(slog.NewJSONHandler(&out, nil)))
		require.NoError(t, err)
		mustSubscribe(t, bus, "a", failing(errBoom), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		bus.Logger().Info("from outside")
		require.NoError(t, bus.Logger().Sync())
		var got []map[string]any
		for d := json.NewDecoder(&out); d.More(); {
			var entry map[string]any
			require.NoError(t, d.Decode(&entry))
			got = append(got, entry)
		}
		require.Len(t, got, 3)
		require.Equal(t, "WARN", got[0]["level"])
		require.Equal(t, "handler failed", got[0]["msg"])
		require.Equal(t, "eventbus", got[0]["logger"])
		require.Equal(t, "mail", got[0]["subscription_id"])
		require.Equal(t, id.String(), got[0]["event_id"])
		require.InDelta(t, 1, got[0]["attempt"], 0)
		require.Equal(t, "ERROR", got[1]["level"])
		require.Equal(t, "exhausted", got[1]["reason"])
		require.Equal(t, "INFO", got[2]["level"])
	})
}

// badHandler is a slog.Handler that does something wrong with each entry.
type badHandler struct {
	slog.Handler
	wrong func()
}

func (badHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h badHandler) Handle(ctx context.Context, r slog.Record) error {
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	h.wrong()
	return errBoom
}

// A handler of WithSlog that blocks, panics, returns errors or ends its goroutine delays and loses nothing of the bus.
func TestO1_ABadSlogHandler(t *testing.T) {
	for how, wrong := range map[string]func(release chan struct{}){
		"blocks":  func(release chan struct{}) { <-release },
		"panics":  func(chan struct{}) { panic("out of ink") },
		"fails":   func(chan struct{}) {},
		"goexits": func(chan struct{}) { runtime.Goexit() },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				release := make(chan struct{})
				h := badHandler{slog.NewJSONHandler(&out, nil), func() { wrong(release) }}
				bus, err := eventbus.New(oneAttempt, eventbus.WithSlog(h), eventbus.WithConcurrency(1))
				require.NoError(t, err)
				mustSubscribe(t, bus, "a", failing(errBoom), eventbus.Named("mail"))
				require.NoError(t, bus.Start(t.Context()))
				began := time.Now()
				for range 3 {
					_, err := bus.PublishAndWait(t.Context(), "a", nil)
					require.Error(t, err)
				}
				require.Zero(t, time.Since(began))
				require.Equal(t, 3, bus.Metrics().DeadLetters)
				shutdown(t, bus)
				close(release)
				synctest.Wait()
				require.Equal(t, 6, strings.Count(out.String(), `"subscription_id":"mail"`))
			})
		})
	}
}

// Attributes and groups of the handler enclose the entries, and its level decides.
func TestO1_TheGroupsAndTheLevelOfSlog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}).WithAttrs([]slog.Attr{slog.String("app", "shop")}).WithGroup("bus")
		bus, err := eventbus.New(oneAttempt, eventbus.WithSlog(h))
		require.NoError(t, err)
		mustSubscribe(t, bus, "a", failing(errBoom), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		var got struct {
			App string
			Msg string
			Bus map[string]any
		}
		d := json.NewDecoder(&out)
		require.NoError(t, d.Decode(&got))
		require.False(t, d.More(), "only the letter is an error")
		require.Equal(t, "shop", got.App)
		require.Equal(t, "mail", got.Bus["subscription_id"])
		require.Equal(t, "exhausted", got.Bus["reason"])
	})
}

func TestO1_OneLogger(t *testing.T) {
	a, b := eventbus.WithLogger(zap.NewNop()), eventbus.WithSlog(slog.DiscardHandler)
	for _, opts := range [][]eventbus.Option{{a, b}, {b, a}} {
		_, err := eventbus.New(opts...)
		requireOptionError(t, err, "WithSlog")
		require.ErrorContains(t, err, "WithLogger")
	}
	_, err := eventbus.New(eventbus.WithSlog(nil))
	requireOptionError(t, err, "WithSlog")
	_, err = eventbus.New(b, b)
	require.NoError(t, err)
}
