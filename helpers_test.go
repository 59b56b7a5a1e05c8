package eventbus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
)

// newBus makes a bus that logs to what it returns, and shuts it down at the end
// of the test, cutting short what is left.
func newBus(t *testing.T, opts ...eventbus.Option) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithLogger(zap.New(core))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = bus.Shutdown(ctx) // most tests have done so, and looked at the error
	})
	return bus, logs
}

func ok(context.Context, eventbus.Event) error { return nil }

type flagError bool

func (e flagError) Error() string   { return "flag" }
func (e flagError) Retryable() bool { return bool(e) }

var errBroken = errors.New("broken")

// ruleError is an error that tells what it is told to.
type ruleError struct {
	code, name, resultType string
	retryable              *bool
	inner                  error
}

func (e *ruleError) Error() string      { return "code " + e.code }
func (e *ruleError) Code() string       { return e.code }
func (e *ruleError) Name() string       { return e.name }
func (e *ruleError) ResultType() string { return e.resultType }
func (e *ruleError) Unwrap() error      { return e.inner }

func (e *ruleError) Retryable() (bool, bool) {
	return e.retryable != nil && *e.retryable, e.retryable != nil
}

func ptr[T any](v T) *T { return &v }
