package contracttest

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// loop is a value that contains itself: formatting it never ends.
type loop struct{ next any }

func selfContaining() any {
	l := &loop{}
	l.next = map[string]any{"self": l}
	m := map[string]any{"loop": l}
	m["self"] = m
	return m
}

type code int

func (code) String() string { panic("a String method is not called") }

type word string

func (word) String() string { panic("a String method is not called") }

type emptyError struct{}

func (emptyError) Error() string { return "" }

func selfPanic() any {
	p := &eventbus.PanicError{}
	p.Value = p
	return p
}

// requirePanicText has a handler panic, and returns the text of its letter.
func requirePanicText(t *testing.T, value any) string {
	t.Helper()
	var text string
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { panic(value) })
		mustSubscribe(t, bus, "fine", ok)
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.Error(t, err)
		f := oneLetter(t, bus).Failures[0]
		text = f.Error
		var panicked *eventbus.PanicError
		require.ErrorAs(t, err, &panicked)
		require.LessOrEqual(t, len(text), 8<<10)
		require.True(t, utf8.ValidString(text))
		require.LessOrEqual(t, len(panicked.Error()), 8<<10)
		_, err = bus.PublishAndWait(t.Context(), "fine", nil)
		require.NoError(t, err)
		shutdown(t, bus)
	})
	return strings.TrimPrefix(text, "eventbus: handler panicked: ")
}

func TestF3_AValueOfAnyTypeMayPanic(t *testing.T) {
	for name, c := range map[string]struct {
		value any
		text  string
	}{
		"string":            {"oh", "oh"},
		"empty string":      {"", `""`},
		"invalid string":    {"a\xffb", "a\uFFFDb"},
		"error":             {errBoom, "boom"},
		"error, empty":      {emptyError{}, "contracttest.emptyError with an empty text"},
		"bool":              {true, "true"},
		"int":               {-3, "-3"},
		"uint8":             {uint8(200), "200"},
		"float32":           {float32(0.1), "0.1"},
		"complex":           {complex(1, 2), "(1+2i)"},
		"number, methods":   {code(7), "7"},
		"string, methods":   {word("seven"), "seven"},
		"contains itself":   {selfContaining(), "a value of type map[string]interface {}"},
		"pointer to itself": {selfPanic(), "*eventbus.PanicError"},
		"raised again":      {&eventbus.PanicError{Value: &eventbus.PanicError{Value: "oh"}}, "oh"},
		"nil PanicError":    {(*eventbus.PanicError)(nil), "*eventbus.PanicError"},
		"struct":            {loop{}, "a value of type contracttest.loop"},
		"nil pointer":       {(*loop)(nil), "a value of type *contracttest.loop"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.text, requirePanicText(t, c.value)) })
	}
}

// A map that is written while it is formatted ends the process.
func TestF3_AValueThatIsWrittenMayPanic(t *testing.T) {
	written := make(map[int]int)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				written[i%1000] = i
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range searching(200, 20) {
		require.Equal(t, "a value of type map[int]int", requirePanicText(t, written))
	}
}

func TestF3_AHugeTextIsCutBeforeItIsCopied(t *testing.T) {
	ofManyEvents(t)
	const size = 200 << 20
	huge := strings.Repeat("é", size/2)
	var text string
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text = (&eventbus.PanicError{Value: huge}).Error()
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	require.Contains(t, text, "bytes more)")
	text = requirePanicText(t, huge)
	require.Contains(t, text, "bytes more)")
	require.Equal(t, 1, strings.Count(text, "more)"), "it is cut once")
}

// Other code of the user's that panics: RetryIf, an observer, a payload's MarshalJSON.
func TestF7_CodeBesideTheHandlerMayPanicWithAnyValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		value := selfContaining()
		bus, logs := startBus(t,
			eventbus.WithRetry(retry(1, time.Second), eventbus.RetryIf(func(error) bool { panic(value) })),
			eventbus.WithObserver(eventbus.Observer{AttemptEnded: func(eventbus.EndedAttempt) { panic(value) }}))
		mustSubscribe(t, bus, "x", failing(errBoom))
		_, err := bus.PublishAndWait(t.Context(), "x", panickingPayload{value})
		require.Error(t, err)
		for _, message := range []string{"RetryIf panicked", "observer panicked"} {
			all := logs.FilterMessage(message).All()
			require.NotEmpty(t, all, message)
			require.Equal(t, "a value of type map[string]interface {}", all[0].ContextMap()["panic"])
		}
		report, err := bus.DLQ().Export(t.Context(), new(bytes.Buffer), allLetters)
		require.NoError(t, err)
		require.Len(t, report.Unexported, 1)
		require.ErrorContains(t, report.Unexported[0].Err, "a value of type map[string]interface {}")
		shutdown(t, bus)
	})
}

type panickingPayload struct{ value any }

func (p panickingPayload) MarshalJSON() ([]byte, error) { panic(p.value) }
