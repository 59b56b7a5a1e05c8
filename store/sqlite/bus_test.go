package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// The tests of buses over SQLite are named after the rows of the project's list of faults, or after
// the clauses of its contract.

// patience bounds the wait for what a bus does by itself.
const patience = 30 * time.Second

// process is a bus over a file, as one process has it.
type process struct {
	*eventbus.Bus
	t     testing.TB
	store *sqlite.Store
	logs  *observer.ObservedLogs

	mu    sync.Mutex
	calls []string // of handlers: "subscription payload"
}

func newPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "events.db")
}

// begin opens a file and makes a bus. It is not started.
func begin(t testing.TB, path string, opts ...any) *process {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	retry := eventbus.DefaultRetryPolicy()
	retry.MaxRetries, retry.BaseDelay = 2, 20*time.Millisecond
	busOpts := []eventbus.Option{eventbus.WithLogger(zap.New(core)), eventbus.WithRetry(retry)}
	var storeOpts []sqlite.Option
	for _, o := range opts {
		switch o := o.(type) {
		case eventbus.Option:
			busOpts = append(busOpts, o)
		case sqlite.Option:
			storeOpts = append(storeOpts, o)
		}
	}
	store, err := sqlite.Open(t.Context(), path, storeOpts...)
	require.NoError(t, err)
	bus, err := eventbus.New(append(busOpts, eventbus.WithStore(store))...)
	require.NoError(t, err)
	p := &process{Bus: bus, t: t, store: store, logs: logs}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = bus.Shutdown(ctx) // most tests have ended it
	})
	return p
}

// tool opens a file beside the bus that runs the handlers, as a program without handlers does.
func tool(t testing.TB, path string, opts ...any) *process {
	t.Helper()
	return begin(t, path, append(opts, sqlite.MustExist(), eventbus.WithoutHandlers())...)
}

// handles subscribes a handler of texts that notes its calls and returns what result returns.
func (p *process) handles(name string, result func(payload string) error, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	p.t.Helper()
	s, err := p.Subscribe("**", eventbus.Typed(func(_ context.Context, payload string) error {
		p.note(name + " " + payload)
		if result == nil {
			return nil
		}
		return result(payload)
	}), append([]eventbus.SubscribeOption{eventbus.Named(name)}, opts...)...)
	require.NoError(p.t, err)
	return s
}

func (p *process) note(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
}

// called returns how often each call was made.
func (p *process) called() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := make(map[string]int)
	for _, c := range p.calls {
		counts[c]++
	}
	return counts
}

func (p *process) start() *process {
	p.t.Helper()
	require.NoError(p.t, p.Start(p.t.Context()))
	return p
}

func (p *process) publish(payload string, opts ...eventbus.PublishOption) eventbus.EventID {
	p.t.Helper()
	id, err := p.Publish(p.t.Context(), "order.placed", payload, opts...)
	require.NoError(p.t, err)
	return id
}

// eventually waits until a condition is true.
func (p *process) eventually(what string, condition func() bool) {
	p.t.Helper()
	require.Eventually(p.t, condition, patience, 5*time.Millisecond, what)
}

// waitCalls waits until each of the calls was made.
func (p *process) waitCalls(calls ...string) {
	p.t.Helper()
	p.eventually(fmt.Sprint(calls), func() bool {
		called := p.called()
		for _, c := range calls {
			if called[c] == 0 {
				return false
			}
		}
		return true
	})
}

// settled waits until the store has no unsettled record.
func (p *process) settled() *process {
	p.t.Helper()
	p.eventually("everything settles", func() bool {
		stats, err := p.store.Stats(context.Background())
		return err == nil && stats.Unsettled() == 0
	})
	return p
}

func (p *process) list(q eventbus.LetterQuery) []eventbus.DeadLetter {
	p.t.Helper()
	q.Limit = 10_000
	page, err := p.DLQ().List(p.t.Context(), q)
	require.NoError(p.t, err)
	return page.Letters
}

// end ends the process in order.
func (p *process) end() {
	p.t.Helper()
	require.NoError(p.t, p.Shutdown(context.Background()))
}

// crash ends the process as SIGKILL does.
func (p *process) crash() {
	p.t.Helper()
	sqlite.Crash(p.t, p.store)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Shutdown(ctx) // nothing that it does reaches the file
}

// logged waits for a log message.
func (p *process) logged(message string) {
	p.t.Helper()
	p.eventually(message, func() bool { return p.logs.FilterMessage(message).Len() > 0 })
}

// refuses waits until the bus refuses publications because its store has failed, and returns the
// payloads that it accepted before.
func (p *process) refuses(prefix string) (accepted []string) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for i := 0; time.Now().Before(deadline); i++ {
		payload := fmt.Sprint(prefix, i)
		_, err := p.Publish(p.t.Context(), "order.placed", payload)
		var unknown *eventbus.IndeterminateError
		switch {
		case err == nil:
			accepted = append(accepted, payload)
		case errors.Is(err, eventbus.ErrStoreFailed):
			return accepted
		case !errors.As(err, &unknown):
			require.NoError(p.t, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	require.FailNow(p.t, "the bus does not refuse publications")
	return nil
}

var errPermanent = eventbus.Permanent(errors.New("no such account"))

func dies(string) error { return errPermanent }
