package slogcore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus/internal/slogcore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type ill struct{}

func (ill) String() string { panic("ill") }

func TestFields(t *testing.T) {
	var out bytes.Buffer
	h := slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	_, core := slogcore.New(h, zapcore.NewNopCore())
	l := zap.New(core).Named("eventbus")
	wrote := func() string {
		require.NoError(t, l.Sync())
		defer out.Reset()
		return out.String()
	}
	l.Debug("not enabled")
	l.Info("fields", zap.String("s", "x"), zap.Bool("b", true), zap.Int("i", -1), zap.Uint32("u", 7), zap.Float64("f", 0.5),
		zap.Duration("d", time.Second), zap.Error(errors.New("boom")), zap.Strings("list", []string{"a", "b"}),
		zap.Time("t", time.Unix(0, 0).UTC()), zap.Skip(), zap.Stringer("ill", ill{}))
	require.JSONEq(t, `{"level": "INFO", "msg": "fields", "logger": "eventbus", "s": "x", "b": true, "i": -1, "u": 7, "f": 0.5,
		"d": 1000000000, "error": "boom", "list": ["a", "b"], "t": "1970-01-01T00:00:00Z", "illError": "PANIC=ill"}`, wrote())

	grouped := l.With(zap.Int("a", 1), zap.Namespace("n"), zap.Int("b", 2))
	for range 2 {
		grouped.Warn("grouped", zap.Int("c", 3), zap.Namespace("m"), zap.Int("d", 4))
		require.JSONEq(t, `{"level": "WARN", "msg": "grouped", "a": 1, "n": {"logger": "eventbus", "b": 2, "c": 3, "m": {"d": 4}}}`, wrote())
	}

	l.Error("failed")
	require.JSONEq(t, `{"level": "ERROR", "msg": "failed", "logger": "eventbus"}`, wrote())
	require.Panics(t, func() { l.Panic("the entry is there before the panic") })
	require.Contains(t, out.String(), "the entry is there")
}

// handler is a slog.Handler that does something with each message.
type handler struct {
	handle func(message string) error

	mu   sync.Mutex
	seen []string
}

func (*handler) Enabled(context.Context, slog.Level) bool { return true }
func (h *handler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h *handler) WithGroup(string) slog.Handler          { return h }
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	h.mu.Lock()
	h.seen = append(h.seen, text)
	h.mu.Unlock()
	return h.handle(r.Message)
}

// A handler that blocks does not delay the bus. Entries for which the buffer has no room are counted.
func TestO1_AFullBufferLosesEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := &handler{handle: func(string) error { <-release; return nil }}
		log, core := slogcore.New(h, zapcore.NewNopCore())
		l := zap.New(core)
		l.Info("first")
		synctest.Wait()
		for range slogcore.MaxEntries + 7 {
			l.Info("then")
		}
		began := time.Now()
		log.Flush(slogcore.FlushTime)
		require.Equal(t, slogcore.FlushTime, time.Since(began))
		close(release)
		log.Flush(slogcore.FlushTime)
		require.Len(t, h.seen, 1+slogcore.MaxEntries+1)
		require.Equal(t, "log entries lost: the slog handler does not keep up entries=7", h.seen[1])
		l.Info("last")
		log.Flush(slogcore.FlushTime)
		require.Equal(t, "last", h.seen[len(h.seen)-1])
	})
}

// What a handler fails at is in the spare core. The next entry reaches it.
func TestO1_AHandlerThatFails(t *testing.T) {
	cycle := make(map[string]any)
	cycle["cycle"] = cycle
	for how, failure := range map[string]func() error{
		"panic: out of ink":      func() error { panic("out of ink") },
		"the disk is full":       func() error { return errors.New("the disk is full") },
		"":                       func() error { return errors.New("") },
		"it ended its goroutine": func() error { runtime.Goexit(); return nil },
		"panic: a value of type": func() error { panic(cycle) },
		"panic: runtime error":   func() error { return (*handler)(nil).Handle(context.Background(), slog.Record{}) },
	} {
		t.Run(how, func(t *testing.T) {
			spare, seen := observer.New(zapcore.DebugLevel)
			h := &handler{handle: func(message string) error {
				if message == "bad" {
					return failure()
				}
				return nil
			}}
			log, core := slogcore.New(h, spare)
			l := zap.New(core).Named("eventbus")
			l.Warn("bad", zap.Int("attempt", 3))
			l.Warn("good")
			log.Flush(time.Minute)
			require.Equal(t, []string{"bad logger=eventbus attempt=3", "good logger=eventbus"}, h.seen)
			require.Equal(t, 1, seen.Len())
			got := seen.All()[0]
			require.Equal(t, "bad", got.Message)
			require.Equal(t, "3", got.ContextMap()["attempt"])
			require.True(t, strings.HasPrefix(got.ContextMap()["slog_handler_error"].(string), how), "%v", got.ContextMap())
		})
	}
}

// An entry in the spare core has the fields of With, too.
func TestO1_WhatIsRescuedHasAllFields(t *testing.T) {
	spare, seen := observer.New(zapcore.DebugLevel)
	log, core := slogcore.New(&handler{handle: func(string) error { return errors.New("full") }}, spare)
	zap.New(core).With(zap.Int("a", 1), zap.Namespace("n"), zap.Int("b", 2)).With(zap.Int("c", 3)).Warn("bad", zap.Int("d", 4))
	log.Flush(time.Minute)
	require.Equal(t, 1, seen.Len())
	require.Equal(t, map[string]any{"a": "1", "n": "[b=2 c=3 d=4]", "slog_handler_error": "full"}, seen.All()[0].ContextMap())
}
