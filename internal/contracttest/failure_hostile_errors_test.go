package contracttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// selfUnwrapping unwraps to itself.
type selfUnwrapping struct{}

func (selfUnwrapping) Error() string   { return "unwraps to itself" }
func (e selfUnwrapping) Unwrap() error { return e }

// selfJoining joins itself several times.
type selfJoining struct{ times int }

func (*selfJoining) Error() string { return "joins itself" }

func (e *selfJoining) Unwrap() []error {
	all := make([]error, e.times)
	for i := range all {
		all[i] = e
	}
	return all
}

// Whatever the error tree of a handler looks like, the event ends in a dead letter, and
// no goroutine stays behind.
func TestF7_ErrorsThatContainThemselvesAreBounded(t *testing.T) {
	deep := io.EOF
	for range 10_000 {
		deep = fmt.Errorf("%w", deep)
	}
	wide := make([]error, 100_000)
	for i := range wide {
		wide[i] = errBoom
	}
	for name, err := range map[string]error{
		"unwraps to itself":       selfUnwrapping{},
		"joins itself":            &selfJoining{1},
		"joins itself many times": &selfJoining{10},
		"wrapped":                 fmt.Errorf("wrapped: %w", selfUnwrapping{}),
		"permanent":               eventbus.Permanent(selfUnwrapping{}),
		"retry after":             eventbus.RetryAfter(&selfJoining{3}, time.Second),
		"deep":                    deep,
		"wide":                    errors.Join(wide...),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, eventbus.WithErrorName(io.ErrNoProgress, "NoProgress"), eventbus.WithRetryRules(eventbus.RetryRule{
					Match: eventbus.ErrorMatch{
						Codes: []string{"X.*"}, Types: []string{"other"}, Is: []error{io.ErrClosedPipe},
						As: []any{new(*eventbus.TimeoutError)},
					}, Attempts: 5,
				}))
				mustSubscribe(t, bus, "x", failing(err), eventbus.Retry(retry(1, time.Second), eventbus.ExcludeErrors("None"),
					eventbus.RetryIf(func(error) bool { return true })))
				mustPublish(t, bus, "x", nil)
				time.Sleep(time.Minute)
				l := oneLetter(t, bus)
				require.NotEmpty(t, l.Failures)
				require.LessOrEqual(t, len(l.Failures[0].Error), 9<<10)
				traits := bus.ErrorTraits(err)
				require.LessOrEqual(t, len(traits.Names), 1000)
				shutdown(t, bus)
			})
		})
	}
}

// A panic's value is formatted only if that is safe.
func TestF3_PanicValuesThatCannotBeFormatted(t *testing.T) {
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	list := []any{nil}
	list[0] = list
	racing, stop := map[int]int{}, make(chan struct{})
	defer close(stop)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				racing[i%100] = i
			}
		}
	}()
	for name, c := range map[string]struct {
		value any
		text  string
	}{
		"a map that contains itself":  {cyclic, "a value of type map[string]interface {}"},
		"a list that contains itself": {list, "a value of type []interface {}"},
		"a map that is written":       {racing, "a value of type map[int]int"},
		"a Stringer that blocks":      {blockingStringer{}, "a value of type contracttest.blockingStringer"},
		"an error whose Error panics": {panickingError{}, "contracttest.panickingError, whose Error method panicked"},
		"an error":                    {errBoom, errBoom.Error()},
		"a named string":              {panickingText("text"), "text"},
		"a number":                    {panickingNumber(17), "17"},
		"a float":                     {1.5, "1.5"},
		"true":                        {true, "true"},
		"a text of 64 MiB":            {strings.Repeat("x", 64<<20), "x… (67100800 bytes more)"},
		"an error of 64 MiB":          {errors.New(strings.Repeat("y", 64<<20)), "y… (67100800 bytes more)"},
		"a struct":                    {struct{ A int }{1}, "a value of type struct { A int }"},
		"a nil function, as a value":  {(func())(nil), "a value of type func()"},
		"a text that is no UTF-8":     {"\xff", "\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { panic(c.value) })
			_, err := bus.PublishAndWait(t.Context(), "x", nil)
			require.Error(t, err)
			f := oneLetter(t, bus).Failures[0]
			require.Contains(t, f.Error, c.text)
			require.LessOrEqual(t, len(f.Error), 8<<10)
			var panicked *eventbus.PanicError
			require.ErrorAs(t, f.Err, &panicked)
			require.Contains(t, string(panicked.Stack), "contracttest")
			require.NotEmpty(t, logs.FilterMessage("handler failed").All())
			shutdown(t, bus)
		})
	}
}

type blockingStringer struct{}

func (blockingStringer) String() string { select {} }

type panickingError struct{}

func (panickingError) Error() string { panic("Error") }

type panickingText string

func (panickingText) String() string { panic("String") }

type panickingNumber int

func (panickingNumber) String() string { panic("String") }

// The same holds for what other user code panics with: RetryIf, observers, WithRandom.
func TestF3_PanicValuesOfOtherCode(t *testing.T) {
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	bus, logs := startBus(t, eventbus.WithObserver(eventbus.Observer{Accepted: func(eventbus.Event) { panic(cyclic) }}),
		eventbus.WithRandom(func() float64 { panic(cyclic) }))
	mustSubscribe(t, bus, "x", failing(errBoom), eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(0), eventbus.RetryIf(func(error) bool { panic(cyclic) })))
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.Error(t, err)
	for _, message := range []string{"observer panicked", "RetryIf panicked"} {
		require.NotEmpty(t, logs.FilterMessage(message).All(), message)
	}
	shutdown(t, bus)
}

// sliceError is an error that cannot be compared.
type sliceError []string

func (sliceError) Error() string { return "slice" }

// sliceContext ends with a sliceError.
type sliceContext struct {
	context.Context
	done chan struct{}
}

func (c sliceContext) Done() <-chan struct{} { return c.done }

func (c sliceContext) Err() error {
	select {
	case <-c.done:
		return sliceError{"x"}
	default:
		return nil
	}
}

// brokenContext panics when it is asked for its error after its end.
type brokenContext struct{ sliceContext }

func (c brokenContext) Err() error {
	if c.sliceContext.Err() != nil {
		panic("broken context")
	}
	return nil
}

func TestF7_AContextWhoseErrorCannotBeComparedEndsShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		end := make(chan struct{})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { <-end; return nil })
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		ctx := sliceContext{context.Background(), make(chan struct{})}
		close(ctx.done)
		err := bus.Shutdown(ctx)
		require.ErrorContains(t, err, "slice")
		_, err = bus.Publish(ctx, "x", nil)
		require.ErrorContains(t, err, "slice")
		close(end)
	})
}

func TestF7_AContextThatPanicsAtItsEndEndsShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		end := make(chan struct{})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { <-end; return nil })
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		ctx := brokenContext{sliceContext{context.Background(), make(chan struct{})}}
		close(ctx.done)
		require.PanicsWithValue(t, "broken context", func() { _ = bus.Shutdown(ctx) })
		var left *eventbus.ShutdownError
		require.ErrorAs(t, bus.Shutdown(t.Context()), &left)
		require.Len(t, left.Unfinished, 1)
		close(end)
	})
}
