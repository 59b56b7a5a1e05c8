package contracttest

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// joining is an error that joins whatever a test puts into it.
type joining struct{ all []error }

func (*joining) Error() string     { return "joining" }
func (j *joining) Unwrap() []error { return j.all }

// wrapping is an error that wraps whatever a test puts into it.
type wrapping struct{ inner error }

func (*wrapping) Error() string   { return "wrapping" }
func (w *wrapping) Unwrap() error { return w.inner }

// hostileTrees are errors whose trees are endless, or larger than any walk should be.
func hostileTrees() map[string]error {
	joinsItself := &joining{}
	joinsItself.all = []error{joinsItself, joinsItself}
	wrapsItself := &wrapping{}
	wrapsItself.inner = wrapsItself
	deep := errBoom
	for range 10_000 {
		deep = &wrapping{deep}
	}
	wide := &joining{all: make([]error, 1_000_000)}
	for i := range wide.all {
		wide.all[i] = errBoom
	}
	// The slice that errors.Join's error returns is its own.
	standard := errors.Join(errBoom, errBoom)
	standard.(interface{ Unwrap() []error }).Unwrap()[0] = &silentError{standard}
	return map[string]error{
		"joins itself":    joinsItself,
		"wraps itself":    wrapsItself,
		"deep":            deep,
		"wide":            wide,
		"standard's join": standard,
		"in a permanent":  eventbus.Permanent(wrapsItself),
	}
}

// silentError wraps an error and does not include its text.
type silentError struct{ inner error }

func (*silentError) Error() string   { return "silent" }
func (e *silentError) Unwrap() error { return e.inner }

func TestF7_AHostileErrorTreeEndsAsALetter(t *testing.T) {
	var target *fs.PathError
	for name, settings := range map[string][]eventbus.Option{
		"plain": nil,
		"names": {
			eventbus.WithErrorName(fs.ErrNotExist, "Missing"),
			eventbus.WithErrorTypeName[*fs.PathError]("Path"),
			eventbus.WithRetry(eventbus.IncludeErrors("Missing", "joining", "wrapping", "silentError"), eventbus.ExcludeErrors("Path")),
		},
		"RetryIf": {eventbus.WithRetry(eventbus.RetryIf(func(error) bool { return true }))},
		"rules": {eventbus.WithRetryRules(
			eventbus.RetryRule{Match: eventbus.ErrorMatch{Is: []error{fs.ErrNotExist}}, Attempts: 9},
			eventbus.RetryRule{Match: eventbus.ErrorMatch{As: []any{&target}}, Attempts: 9},
			eventbus.RetryRule{Match: eventbus.ErrorMatch{Codes: []string{"A.*"}, Types: []string{"timeout"}}, Attempts: 9},
			eventbus.RetryRule{Match: eventbus.ErrorMatch{Types: []string{"timeout", "cancellation"}}, Attempts: 9},
		)},
	} {
		for tree, err := range hostileTrees() {
			t.Run(name+"/"+tree, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bus, _ := startBus(t, append([]eventbus.Option{eventbus.WithRetry(retry(1, time.Second))}, settings...)...)
					mustSubscribe(t, bus, "x", failing(err), eventbus.Named("s"))
					mustSubscribe(t, bus, "fine", ok)
					_, got := bus.PublishAndWait(t.Context(), "x", nil)
					var died *eventbus.DeliveryError
					require.True(t, asDelivery(got, &died), "%T", got)
					l := oneLetter(t, bus)
					require.NotEmpty(t, l.Failures)
					require.NotEmpty(t, l.Failures[0].Class)
					traits := bus.ErrorTraits(err)
					require.Equal(t, "error", traits.ResultType)
					require.Empty(t, traits.Code)
					require.LessOrEqual(t, len(traits.Names), 1000)
					_, fine := bus.PublishAndWait(t.Context(), "fine", nil)
					require.NoError(t, fine)
					shutdown(t, bus)
				})
			})
		}
	}
}

// asDelivery is errors.As without a walk into the failures, which may be endless.
func asDelivery(err error, target **eventbus.DeliveryError) bool {
	for err != nil {
		if d, ok := err.(*eventbus.DeliveryError); ok { //nolint:errorlint // see above
			*target = d
			return true
		}
		err = errors.Unwrap(err)
	}
	return false
}

// A walk stops at 100 levels and 1,000 errors, as ErrorTraits documents.
func TestF7_AWalkOfAnErrorTreeHasABound(t *testing.T) {
	bus, _ := newBus(t)
	at := func(depth int) error {
		err := coded("Found")
		for range depth - 1 {
			err = &wrapping{err}
		}
		return err
	}
	require.Equal(t, "Found", bus.ErrorTraits(at(100)).Code)
	require.Empty(t, bus.ErrorTraits(at(101)).Code)
	among := func(n int) error {
		j := &joining{all: make([]error, n-1)}
		for i := range j.all {
			j.all[i] = errBoom
		}
		j.all[n-2] = coded("Found")
		return j
	}
	require.Equal(t, "Found", bus.ErrorTraits(among(1000)).Code)
	require.Empty(t, bus.ErrorTraits(among(1001)).Code)
}

// The cause of a context is an error of its maker's.
func TestF7_AContextWithAHostileCauseEndsShutdown(t *testing.T) {
	for name, cause := range hostileTrees() {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			release := make(chan struct{})
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { return hold(release) })
			mustPublish(t, bus, "x", nil)
			synctest.Wait()
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(cause)
			err := bus.Shutdown(ctx)
			close(release)
			require.Error(t, err, name)
			require.NotEmpty(t, err.Error(), name)
		})
	}
}

func TestF7_AContextWithAHostileCauseEndsABulkReplay(t *testing.T) {
	for name, cause := range hostileTrees() {
		synctest.Test(t, func(t *testing.T) {
			bus := lettersOf(t, 2, errBoom)
			ctx, cancel := context.WithCancelCause(t.Context())
			report, err := bus.DLQ().ReplayMatching(ctx, allLetters, eventbus.Rate(1),
				eventbus.OnProgress(func(eventbus.BulkProgress) { cancel(cause) }))
			require.Error(t, err, name)
			require.Equal(t, 1, report.Replayed, name)
		})
	}
}

// A reader of letters may fail with any error.
func TestF7_AReaderWithAHostileErrorEndsImport(t *testing.T) {
	bus, _ := newBus(t)
	for name, err := range hostileTrees() {
		_, got := bus.DLQ().Import(t.Context(), failingReader{err})
		require.Error(t, got, name)
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }
