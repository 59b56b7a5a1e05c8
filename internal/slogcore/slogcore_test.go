package slogcore_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/slogcore"
)

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
	l := zap.New(slogcore.New(h)).Named("eventbus")
	l.Debug("not enabled")
	l.Info("fields", zap.String("s", "x"), zap.Bool("b", true), zap.Int("i", -1), zap.Uint32("u", 7), zap.Float64("f", 0.5),
		zap.Duration("d", time.Second), zap.Error(errors.New("boom")), zap.Strings("list", []string{"a", "b"}),
		zap.Time("t", time.Unix(0, 0).UTC()), zap.Skip(), zap.Stringer("ill", ill{}))
	require.JSONEq(t, `{"level": "INFO", "msg": "fields", "logger": "eventbus", "s": "x", "b": true, "i": -1, "u": 7, "f": 0.5,
		"d": 1000000000, "error": "boom", "list": ["a", "b"], "t": "1970-01-01T00:00:00Z", "illError": "PANIC=ill"}`, out.String())

	out.Reset()
	l.With(zap.Int("a", 1), zap.Namespace("n"), zap.Int("b", 2)).Warn("grouped", zap.Int("c", 3), zap.Namespace("m"), zap.Int("d", 4))
	require.JSONEq(t, `{"level": "WARN", "msg": "grouped", "a": 1, "n": {"logger": "eventbus", "b": 2, "c": 3, "m": {"d": 4}}}`, out.String())

	out.Reset()
	l.Error("failed")
	require.JSONEq(t, `{"level": "ERROR", "msg": "failed", "logger": "eventbus"}`, out.String())
}
