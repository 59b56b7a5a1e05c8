package eventbustest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var errBank = errors.New("the bank is busy")

// fakeT is a test whose failures are recorded, so that every check of the kit is
// seen to fail.
type fakeT struct {
	testing.TB

	mu       sync.Mutex // guards the following
	failures []string
	cleanups []func()
}

func (f *fakeT) Helper() {}

func (f *fakeT) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}

func (f *fakeT) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

func (f *fakeT) Failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.failures) > 0
}

func (f *fakeT) Cleanup(cleanup func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleanups = append(f.cleanups, cleanup)
}

// deadlineT is one whose binary is killed soon.
type deadlineT struct {
	*fakeT
	at time.Time
}

func (f deadlineT) Deadline() (time.Time, bool) { return f.at, true }

// pretendRealTime makes the kit behave as outside a bubble, with the bubble's exact times. The kit
// recognizes a bubble by its clock, which begins in 2000.
func pretendRealTime() {
	time.Sleep(time.Until(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)))
}

// failuresOf runs a test to the end of its cleanups and returns its failures, and
// whether it came to its own end.
func failuresOf(t *testing.T, test func(t testing.TB)) (failures []string, finished bool) {
	t.Helper()
	f := &fakeT{TB: t}
	run := func(part func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			part()
		}()
		<-done
	}
	run(func() {
		test(f)
		finished = true
	})
	for len(f.cleanups) > 0 {
		last := f.cleanups[len(f.cleanups)-1]
		f.cleanups = f.cleanups[:len(f.cleanups)-1]
		run(last)
	}
	return f.failures, finished
}

// oneFailure is the only failure of a test, which must have all the parts.
func oneFailure(t *testing.T, test func(t testing.TB), parts ...string) string {
	t.Helper()
	failures, _ := failuresOf(t, test)
	require.Len(t, failures, 1, "%q", failures)
	for _, part := range parts {
		require.Contains(t, failures[0], part)
	}
	return failures[0]
}

func passes(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	failures, finished := failuresOf(t, test)
	require.Empty(t, failures)
	require.True(t, finished)
}

func ok(context.Context, eventbus.Event) error { return nil }

func subscribe(t testing.TB, bus *eventbus.Bus, h eventbus.Handler, opts ...eventbus.SubscribeOption) {
	t.Helper()
	_, err := bus.Subscribe("**", h, opts...)
	require.NoError(t, err)
}

func publish(t testing.TB, bus *eventbus.Bus, eventType string, payload any) eventbus.EventID {
	t.Helper()
	id, err := bus.Publish(context.Background(), eventType, payload)
	require.NoError(t, err)
	return id
}

// seconds is the default retry policy without its jitter.
var seconds = eventbus.WithRetry(eventbus.NoJitter)
