package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// detailedError declares details.
type detailedError struct{ details func() json.RawMessage }

func (*detailedError) Error() string              { return "refused" }
func (e *detailedError) Details() json.RawMessage { return e.details() }

func detailed(details string) error {
	return &detailedError{func() json.RawMessage { return json.RawMessage(details) }}
}

func TestF5_DetailsAreKeptWithTheFailure(t *testing.T) {
	long := `"` + strings.Repeat("x", 8<<10) + `"`
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"an object":         {detailed(`{"code": "A", "n": 1}`), `{"code":"A","n":1}`},
		"wrapped":           {fmt.Errorf("order 7: %w", detailed(`[1]`)), `[1]`},
		"joined":            {errors.Join(errBoom, detailed(`[2]`)), `[2]`},
		"the outermost":     {errors.Join(detailed(`"outer"`), detailed(`"inner"`)), `"outer"`},
		"none":              {errBoom, ""},
		"empty":             {detailed(""), ""},
		"null":              {detailed(" null "), ""},
		"escaped for HTML":  {detailed(`"<b>"`), `"\u003cb\u003e"`},
		"the longest":       {detailed(long[:8<<10-1] + `"`), long[:8<<10-1] + `"`},
		"too long":          {detailed(long), `"details omitted: 8194 bytes exceed the limit of 8192"`},
		"white space":       {detailed(strings.Repeat(" ", 10_000) + "1"), "1"},
		"much too long":     {detailed(strings.Repeat(" ", 1<<20) + "1"), `"details omitted: 1048577 bytes exceed the limit of 8192"`},
		"no JSON":           {detailed(`{"code"`), `"details omitted: not JSON"`},
		"invalid UTF-8":     {detailed("\"\xff\""), "\"\uFFFD\""},
		"a method panics":   {&detailedError{func() json.RawMessage { panic("no") }}, ""},
		"of a nil receiver": {(*detailedError)(nil), ""},
	} {
		t.Run(name, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(0, 0)))
			mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error { return c.err })
			_, _ = bus.PublishAndWait(t.Context(), "a", 1)
			l := oneLetter(t, bus)
			require.Equal(t, c.want, string(l.Failures[0].Details))
			require.Equal(t, c.want, string(bus.ErrorTraits(c.err).Details))
			if c.want != "" {
				l.Failures[0].Details[0] = 'x'
				require.Equal(t, c.want, string(oneLetter(t, bus).Failures[0].Details), "readers get copies")
			}
			shutdown(t, bus)
		})
	}
}

func TestF5_AMethodThatEndsItsGoroutineLosesNoFailure(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithRetry(retry(0, 0)))
	mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
		return &detailedError{func() json.RawMessage { runtime.Goexit(); return nil }}
	})
	_, _ = bus.PublishAndWait(t.Context(), "a", 1)
	require.Empty(t, oneLetter(t, bus).Failures[0].Details)
	shutdown(t, bus)
}

func TestF5_DetailsSurviveACrashAndAnExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(detailed(`{"code":"A"}`)))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", always(errBroken))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Hour)
		l := oneLetter(t, again)
		require.JSONEq(t, `{"code":"A"}`, string(l.Failures[0].Details))
		require.Empty(t, l.Failures[1].Details)

		var lines bytes.Buffer
		_, err := again.DLQ().Export(t.Context(), &lines, eventbus.LetterQuery{})
		require.NoError(t, err)
		shutdown(t, again)

		other, _ := newBus(t)
		long := `"details":"` + strings.Repeat("x", 9<<10) + `"`
		_, err = other.DLQ().Import(t.Context(), strings.NewReader(strings.Replace(lines.String(), `"details":{"code":"A"}`, long, 1)))
		require.NoError(t, err)
		require.Equal(t, `"details omitted: 9218 bytes exceed the limit of 8192"`, string(oneLetter(t, other).Failures[0].Details))
		require.NoError(t, other.DLQ().Purge(t.Context(), l.ID))
		_, err = other.DLQ().Import(t.Context(), &lines)
		require.NoError(t, err)
		require.JSONEq(t, `{"code":"A"}`, string(oneLetter(t, other).Failures[0].Details))
		shutdown(t, other)
	})
}
