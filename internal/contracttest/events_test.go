package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestE1_IDTypeAndTimeAreFilledIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var got eventbus.Event
		mustSubscribe(t, bus, "order.*", func(_ context.Context, e eventbus.Event) error {
			got = e
			return nil
		})
		time.Sleep(time.Hour)
		now := time.Now()
		id := mustPublish(t, bus, "order.placed", 17)
		shutdown(t, bus)

		require.Equal(t, id, got.ID)
		require.Equal(t, "order.placed", got.Type)
		require.Equal(t, 17, got.Payload)
		require.Equal(t, byte(7), id[6]>>4, "version")
		require.Equal(t, byte(2), id[8]>>6, "variant")
		var millis int64
		for _, b := range id[:6] {
			millis = millis<<8 | int64(b)
		}
		require.Equal(t, now.UnixMilli(), millis)
		require.True(t, got.Time.Equal(now), "%s, want %s", got.Time, now)
		require.Equal(t, time.UTC, got.Time.Location())
		require.Equal(t, got.Time.Round(0), got.Time, "a monotonic reading is compared by ==")
	})
}

func TestE1_IDsAreUniqueAndOrderedAcrossGoroutines(t *testing.T) {
	bus, _ := newBus(t)
	const goroutines, each = 8, 2000
	batches := make([][]eventbus.EventID, goroutines)
	var wg sync.WaitGroup
	for i := range batches {
		wg.Go(func() {
			for range each {
				id, err := bus.Publish(context.Background(), "nobody.listens", nil)
				if err != nil {
					return // the lengths tell
				}
				batches[i] = append(batches[i], id)
			}
		})
	}
	wg.Wait()
	seen := make(map[eventbus.EventID]bool)
	for _, ids := range batches {
		require.Len(t, ids, each)
		require.True(t, slices.IsSortedFunc(ids, compareIDs), "in one goroutine")
		for _, id := range ids {
			require.False(t, seen[id], "twice: %s", id)
			seen[id] = true
		}
	}
	// What is published when all the others are known is later than they.
	last := mustPublish(t, bus, "nobody.listens", nil)
	for id := range seen {
		require.Negative(t, compareIDs(id, last))
	}
}

// One goroutine's ids happen before the next one's, by way of a channel.
func TestE1_IDsFollowHappensBefore(t *testing.T) {
	bus, _ := newBus(t)
	baton := make(chan eventbus.EventID, 1)
	baton <- eventbus.EventID{}
	misplaced := make(chan string, 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				before := <-baton
				id, err := bus.Publish(context.Background(), "nobody.listens", nil)
				if err != nil || compareIDs(before, id) >= 0 {
					select {
					case misplaced <- fmt.Sprintf("%s, then %s (%v)", before, id, err):
					default:
					}
				}
				baton <- id
			}
		})
	}
	wg.Wait()
	require.Empty(t, misplaced)
}

func TestE1_IDsStayOrderedWhenTheClockIsSetBack(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	bus, _ := newBus(t, eventbus.WithClock(mock))
	var ids []eventbus.EventID
	for _, at := range []time.Time{
		time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(1901, 1, 1, 0, 0, 0, 0, time.UTC), // negative as Unix time
		time.Date(2031, 1, 1, 0, 0, 1, 0, time.UTC),
	} {
		mock.Set(at)
		for range 100 {
			ids = append(ids, mustPublish(t, bus, "x", nil))
		}
	}
	for i := 1; i < len(ids); i++ {
		require.Negative(t, compareIDs(ids[i-1], ids[i]), "number %d", i)
		require.Equal(t, byte(7), ids[i][6]>>4)
	}
}

func TestE1_TheClockGivesTheTime(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2030, 5, 6, 7, 8, 9, 10, time.FixedZone("", 3600)))
	bus, _ := startBus(t, eventbus.WithClock(mock))
	got := make(chan eventbus.Event, 1)
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
		got <- e
		return nil
	})
	mustPublish(t, bus, "x", nil)
	require.Equal(t, time.Date(2030, 5, 6, 6, 8, 9, 10, time.UTC), (<-got).Time)
	shutdown(t, bus)
}

func TestE1_IDsAsText(t *testing.T) {
	bus, _ := newBus(t)
	id := mustPublish(t, bus, "x", nil)
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id.String())
	back, err := eventbus.ParseEventID(id.String())
	require.NoError(t, err)
	require.Equal(t, id, back)

	text, err := json.Marshal(map[eventbus.EventID]eventbus.EventID{id: id})
	require.NoError(t, err)
	var read map[eventbus.EventID]eventbus.EventID
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, id, read[id])

	for _, bad := range []string{
		"", "x", strings.Repeat("0", 36), id.String() + "0", id.String()[1:], "{" + id.String() + "}",
		strings.Replace(id.String(), "-", "_", 1), strings.ToUpper("g") + id.String()[1:], strings.Repeat("é", 18),
		strings.Repeat("x", 1<<20),
	} {
		_, err := eventbus.ParseEventID(bad)
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent, "%.40q", bad)
		var offence *eventbus.EventError
		require.ErrorAs(t, err, &offence)
		require.Equal(t, "id", offence.Field)
		require.Less(t, len(err.Error()), 500)
		kept := id
		require.Error(t, kept.UnmarshalText([]byte(bad)))
		require.Equal(t, id, kept, "an error leaves the value alone")
	}
	require.True(t, eventbus.EventID{}.IsZero())
	require.False(t, id.IsZero())
}

func TestE2_BadTypesAreRefused(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "**", ok)
	for _, c := range []struct {
		name, eventType string
		offset          int
	}{
		{"empty", "", 0},
		{"too long", strings.Repeat("a", 256), 255},
		{"a megabyte", strings.Repeat("a.", 1<<19), 255},
		{"leading dot", ".a", 0},
		{"trailing dot", "a.", 1},
		{"empty segment", "a..b", 2},
		{"only a dot", ".", 0},
		{"star", "a.*", 2},
		{"the catch-all", "*", 0},
		{"two stars", "a.**.b", 2},
		{"question mark", "a?", 1},
		{"opening bracket", "a[b", 1},
		{"closing bracket", "a]b", 1},
		{"opening brace", "a{b", 1},
		{"closing brace", "ab}", 2},
		{"backslash", `a\b`, 1},
		{"space", "a b", 1},
		{"tab", "a\tb", 1},
		{"newline", "a\n", 1},
		{"no-break space", "a\u00a0b", 1},
		{"line separator", "ab\u2028", 2},
		{"NUL", "ab\x00", 2},
		{"escape", "\x1b[31m", 0},
		{"C1 control", "a\u0085", 1},
		{"DEL", "a\x7f", 1},
		{"invalid UTF-8", "ab\xff", 2},
		{"half a character", "a.\xc3", 2},
	} {
		for _, publish := range []func() error{
			func() error { _, err := bus.Publish(t.Context(), c.eventType, nil); return err },
			func() error { _, err := bus.PublishAndWait(t.Context(), c.eventType, nil); return err },
		} {
			err := publish()
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent, c.name)
			var offence *eventbus.EventError
			require.ErrorAs(t, err, &offence, c.name)
			require.Equal(t, "type", offence.Field, c.name)
			require.Equal(t, c.offset, offence.Offset, "%s: %s", c.name, err)
			require.NotEmpty(t, offence.Reason, c.name)
			require.Less(t, len(err.Error()), 600, c.name)
		}
		require.ErrorIs(t, bus.Explain(c.eventType).Err, eventbus.ErrInvalidEvent, c.name)
	}
	m := bus.Metrics()
	require.Equal(t, eventbus.Ledger{}, m.Ledger)
	require.Empty(t, m.Types)
}

func TestE2_GoodTypesAreAccepted(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "**", ok)
	types := []string{
		"a", "a.b", "order.placed", strings.Repeat("a", 255), strings.Repeat("a.", 127) + "a",
		"größe.日本語.🙂", "a-b_c:d/e@f", "1.2.3", "A.b", "a!b^c,d", "-",
	}
	for _, eventType := range types {
		_, err := bus.PublishAndWait(t.Context(), eventType, nil)
		require.NoError(t, err, eventType)
	}
	require.EqualValues(t, len(types), bus.Metrics().Ledger.Handled)
	shutdown(t, bus)
}

func TestE3_PayloadIsHandedOverAsItIs(t *testing.T) {
	type cyclic struct{ self any }
	loop := &cyclic{}
	loop.self = loop
	channel := make(chan int)
	called := false
	function := func() { called = true }
	large := make([]byte, 1<<20)
	for name, c := range map[string]struct {
		payload any
		same    func(got any) bool
	}{
		"nil":     {nil, func(got any) bool { return got == nil }},
		"pointer": {&large, func(got any) bool { return got.(*[]byte) == &large }},
		"slice":   {large, func(got any) bool { return &got.([]byte)[0] == &large[0] }},
		"channel": {channel, func(got any) bool { return got.(chan int) == channel }},
		"func":    {function, func(got any) bool { got.(func())(); return called }},
		"NaN":     {math.NaN(), func(got any) bool { return math.IsNaN(got.(float64)) }},
		"cyclic":  {loop, func(got any) bool { return got.(*cyclic).self.(*cyclic) == loop }},
		"event":   {eventbus.Event{Type: "x"}, func(got any) bool { return got.(eventbus.Event).Type == "x" }},
	} {
		bus, _ := startBus(t)
		var got []any
		for range 2 { // one after the other in a dispatch
			mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
				got = append(got, e.Payload)
				return nil
			})
		}
		_, err := bus.PublishAndWait(t.Context(), "x", c.payload)
		require.NoError(t, err)
		require.Len(t, got, 2, name)
		require.True(t, c.same(got[0]) && c.same(got[1]), name)
		shutdown(t, bus)
	}
}

func TestE3_HandlersGetACopyOfTheEvent(t *testing.T) {
	bus, _ := startBus(t)
	var second eventbus.Event
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
		changed := &e
		*changed = eventbus.Event{Type: "changed", Payload: "changed"}
		return nil
	})
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
		second = e
		return nil
	})
	r, err := bus.PublishAndWait(t.Context(), "x", 1, eventbus.Metadata("k", "v"))
	require.NoError(t, err)
	require.Equal(t, r.ID, second.ID)
	require.Equal(t, "x", second.Type)
	require.Equal(t, 1, second.Payload)
	require.Equal(t, "v", second.Metadata.Get("k"))
	shutdown(t, bus)
}

type order struct{ n int }

func (o order) String() string { return fmt.Sprint("order ", o.n) }

type pair[T any] struct{ a, b T }

func typed[T any](note func(any)) eventbus.Handler {
	return eventbus.Typed(func(_ context.Context, v T) error {
		note(v)
		return nil
	})
}

func TestE5_TypedHandlersTakeValuesAndPointers(t *testing.T) {
	var got any
	note := func(v any) { got = v }
	for name, c := range map[string]struct {
		handler eventbus.Handler
		payload any
		want    any
	}{
		"T for T":                   {typed[order](note), order{1}, order{1}},
		"*T for T":                  {typed[order](note), &order{2}, order{2}},
		"*T for *T":                 {typed[*order](note), &order{3}, &order{3}},
		"T for *T":                  {typed[*order](note), order{4}, &order{4}},
		"nil *T for *T":             {typed[*order](note), (*order)(nil), (*order)(nil)},
		"nil for *T":                {typed[*order](note), nil, (*order)(nil)},
		"nil for a slice":           {typed[[]int](note), nil, []int(nil)},
		"nil for a map":             {typed[map[string]int](note), nil, map[string]int(nil)},
		"nil for any":               {typed[any](note), nil, nil},
		"anything for any":          {typed[any](note), 7, 7},
		"a value for an interface":  {typed[fmt.Stringer](note), order{5}, order{5}},
		"pointer for an interface":  {typed[fmt.Stringer](note), &order{6}, &order{6}},
		"nil for an interface":      {typed[fmt.Stringer](note), nil, nil},
		"a generic type":            {typed[pair[int]](note), pair[int]{1, 2}, pair[int]{1, 2}},
		"pointer to a generic type": {typed[pair[string]](note), &pair[string]{"a", "b"}, pair[string]{"a", "b"}},
	} {
		got = "not called"
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", c.handler)
		_, err := bus.PublishAndWait(t.Context(), "x", c.payload)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
		shutdown(t, bus)
	}
}

func TestE5_AnotherTypeIsAPermanentFailure(t *testing.T) {
	never := func(any) { panic("called") }
	for name, c := range map[string]struct {
		handler   eventbus.Handler
		payload   any
		want, got string
	}{
		"another type":              {typed[order](never), "text", "contracttest.order", "string"},
		"nil for a struct":          {typed[order](never), nil, "contracttest.order", "<nil>"},
		"nil pointer for a struct":  {typed[order](never), (*order)(nil), "contracttest.order", "*contracttest.order"},
		"nil for an int":            {typed[int](never), nil, "int", "<nil>"},
		"an int of another size":    {typed[int64](never), int(1), "int64", "int"},
		"not that interface":        {typed[io.Reader](never), order{}, "io.Reader", "contracttest.order"},
		"pointer to a pointer":      {typed[**order](never), order{}, "**contracttest.order", "contracttest.order"},
		"another type argument":     {typed[pair[int]](never), pair[string]{}, "contracttest.pair[int]", "contracttest.pair[string]"},
		"pointer to something else": {typed[*order](never), &pair[int]{}, "*contracttest.order", "*contracttest.pair[int]"},
	} {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", c.handler)
		r, err := bus.PublishAndWait(t.Context(), "x", c.payload)
		var wrong *eventbus.PayloadTypeError
		require.ErrorAs(t, err, &wrong, name)
		require.Equal(t, &eventbus.PayloadTypeError{EventType: "x", Want: c.want, Got: c.got}, wrong, name)
		require.Equal(t, 1, r.Attempts, name)
		require.Equal(t, eventbus.ReasonPermanent, oneLetter(t, bus).Reason, name)
		shutdown(t, bus)
	}
}

func TestE5_TypedPassesContextAndErrorOn(t *testing.T) {
	bus, _ := startBus(t)
	boom := errors.New("boom")
	mustSubscribe(t, bus, "x", eventbus.Typed(func(ctx context.Context, n int) error {
		d, ok := eventbus.FromContext(ctx)
		if !ok || d.Event.Payload != n {
			return errors.New("not its context")
		}
		return boom
	}), eventbus.Retry(eventbus.MaxRetries(0)))
	_, err := bus.PublishAndWait(t.Context(), "x", 1)
	require.ErrorIs(t, err, boom)
	_, err = bus.Subscribe("x", eventbus.Typed[int](nil))
	require.ErrorIs(t, err, eventbus.ErrNilHandler)
	shutdown(t, bus)
}

// What prints is printed in logs, where a panic is unwelcome.
func TestStringsOfUnknownValues(t *testing.T) {
	for _, v := range []fmt.Stringer{
		eventbus.Outcome(99), eventbus.Outcome(-1), eventbus.CircuitState(99), eventbus.CircuitState(-1), eventbus.Jitter(99),
	} {
		require.NotPanics(t, func() { require.NotEmpty(t, v.String()) }, "%T", v)
	}
}

func TestFault9_MetadataHasLimits(t *testing.T) {
	many := func(n int) (opts []eventbus.PublishOption) {
		for i := range n {
			opts = append(opts, eventbus.Metadata(fmt.Sprint("name-", i), "v"))
		}
		return opts
	}
	one := func(name, value string) []eventbus.PublishOption {
		return []eventbus.PublishOption{eventbus.Metadata(name, value)}
	}
	for name, c := range map[string]struct {
		opts []eventbus.PublishOption
		bad  bool
	}{
		"64 names":                    {many(64), false},
		"64 and one of them again":    {append(many(64), eventbus.Metadata("name-0", "w")), false},
		"65 names":                    {many(65), true},
		"10,000 names":                {many(10_000), true},
		"255 bytes":                   {one(strings.Repeat("n", 255), ""), false},
		"256 bytes":                   {one(strings.Repeat("n", 256), ""), true},
		"8 KiB":                       {one("n", strings.Repeat("v", 8<<10)), false},
		"a byte more":                 {one("n", strings.Repeat("v", 8<<10+1)), true},
		"no name":                     {one("", "v"), true},
		"reserved":                    {one("eventbus.id", "v"), true},
		"almost reserved":             {one("eventbus", "v"), false},
		"invalid name":                {one("n\xff", "v"), true},
		"invalid value":               {one("n", "\xff"), true},
		"control character in a name": {one("a\nb", "v"), true},
		"line break in a value":       {one("n", "a\nb"), false},
		"a bad one among good":        {append(append(many(3), eventbus.Metadata("", "")), many(3)...), true},
		"a nil option":                {[]eventbus.PublishOption{nil}, true},
	} {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", ok)
		_, err := bus.PublishAndWait(t.Context(), "x", nil, c.opts...)
		if !c.bad {
			require.NoError(t, err, name)
			continue
		}
		require.Error(t, err, name)
		if name == "a nil option" {
			require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		} else {
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent, name)
			var offence *eventbus.EventError
			require.ErrorAs(t, err, &offence, name)
			require.Equal(t, "metadata", offence.Field, name)
			require.NotEmpty(t, offence.Reason)
		}
		require.Equal(t, eventbus.Ledger{}, bus.Metrics().Ledger, name)
	}
}
