package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func importLetters(t *testing.T, bus *eventbus.Bus, lines []byte) eventbus.ImportReport {
	t.Helper()
	report, err := bus.DLQ().Import(t.Context(), bytes.NewReader(lines))
	require.NoError(t, err)
	return report
}

const letterLine = `{"id":"0190f5fe-7c00-7a00-8aaa-aaaaaaaaaaaa",` +
	`"event":{"id":"0190f5fe-7c00-7a00-8bbb-bbbbbbbbbbbb","type":"a","payload":{"number":1},"time":"2024-07-28T12:00:00Z"},` +
	`"reason":"exhausted","subscription":"s","attempts":1,` +
	`"failures":[{"attempt":1,"subscription":"s","time":"2024-07-28T12:00:01+02:00","duration":5,"error":"dead"}],` +
	`"died_at":"2024-07-28T14:00:02+02:00"}`

// Letters of a process whose clock is ahead are newer than those that come now.
func TestL2_ImportedLettersOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		future := strings.Replace(letterLine, "0190f5fe-7c00-7a00-8aaa", "f190f5fe-7c00-7a00-8aaa", 1)
		require.Equal(t, 2, importLetters(t, bus, []byte(future+"\n"+letterLine)).Imported)
		newest := letters(t, bus)[0].ID
		for i := range 3 {
			mustPublish(t, bus, "a", i)
			synctest.Wait()
		}
		all := letters(t, bus)
		require.Equal(t, newest, all[0].ID)
		require.Equal(t, []any{2, 1, 0}, payloads(all[2:]), "both are, by the clock here")
		for _, q := range []eventbus.LetterQuery{{Subscription: "s"}, {Reason: eventbus.ReasonPermanent}, {Fingerprint: all[2].Fingerprint}} {
			page := list(t, bus, q)
			var mine []any
			for _, p := range payloads(page.Letters) {
				if _, raw := p.(json.RawMessage); !raw {
					mine = append(mine, p)
				}
			}
			require.Equal(t, []any{2, 1, 0}, mine)
		}
		for _, l := range all {
			require.NoError(t, bus.DLQ().Purge(t.Context(), l.ID))
		}
		shutdown(t, bus)
	})
}

// A group has one fingerprint in any process, also if its text is no UTF-8.
func TestL2_FingerprintsSurviveAnExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		bus := lettersOf(t, 1, errors.New("bad byte \xff in \xc3"))
		var out bytes.Buffer
		_, err := bus.DLQ().Export(ctx, &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		other, _ := newBus(t)
		_, err = other.DLQ().Import(ctx, &out)
		require.NoError(t, err)
		require.Equal(t, oneLetter(t, bus).Fingerprint, oneLetter(t, other).Fingerprint)
		shutdown(t, bus)
	})
}

type exportedOrder struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
}

// exportLetters is what Export writes of all letters.
func exportLetters(t *testing.T, bus *eventbus.Bus) []byte {
	t.Helper()
	var out bytes.Buffer
	report, err := bus.DLQ().Export(t.Context(), &out, eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Equal(t, eventbus.ExportReport{Matched: report.Matched, Exported: report.Matched}, report)
	require.Equal(t, report.Exported, bytes.Count(out.Bytes(), []byte("\n")))
	return out.Bytes()
}

func metadataPairs(m eventbus.EventMetadata) []string {
	var all []string
	for n, v := range m.All() {
		all = append(all, n+"="+v)
	}
	return all
}

// requireSameLetter compares what is exported of two letters.
func requireSameLetter(t *testing.T, want, got eventbus.DeadLetter) {
	t.Helper()
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		if f := w.Type().Field(i); f.IsExported() {
			require.Equal(t, w.Field(i).Interface(), g.Field(i).Interface(), f.Name)
		}
	}
}

func TestL4_LettersOutliveTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)), withoutCircuit)
		mustSubscribe(t, old, "order.*", ok, eventbus.Named("first"))
		mustSubscribe(t, old, "order.*", failing(fmt.Errorf("wrapped: %w", errDead)), eventbus.Named("second"))
		mustSubscribe(t, old, "order.*", ok, eventbus.Named("third"))
		for i := range 3 {
			mustPublish(t, old, "order.placed", &exportedOrder{i, "<ä>"}, eventbus.Metadata("k", "v"), eventbus.Metadata("a", ""))
		}
		mustPublish(t, old, "order.nil", nil)
		time.Sleep(time.Minute)
		require.NoError(t, old.DLQ().Replay(t.Context(), letters(t, old)[3].ID))
		time.Sleep(time.Minute)
		require.NoError(t, old.DLQ().ReplayEdited(t.Context(), letters(t, old)[0].ID, exportedOrder{Number: 17}))
		time.Sleep(time.Minute)
		before := letters(t, old)
		lines := exportLetters(t, old)
		shutdown(t, old)

		bus, _ := newBus(t)
		require.Equal(t, eventbus.ImportReport{Imported: 4}, importLetters(t, bus, lines))
		require.Equal(t, eventbus.ImportReport{Skipped: 4}, importLetters(t, bus, lines), "it can be repeated")
		require.Equal(t, lines, exportLetters(t, bus))
		after := letters(t, bus)
		require.Len(t, after, 4)
		for i, l := range after {
			require.Len(t, l.Failures, len(before[i].Failures))
			for j := range l.Failures {
				require.EqualError(t, l.Failures[j].Err, "wrapped: dead")
				l.Failures[j].Err = before[i].Failures[j].Err
			}
			require.ElementsMatch(t, metadataPairs(before[i].Event.Metadata), metadataPairs(l.Event.Metadata))
			l.Event.Metadata = before[i].Event.Metadata
			for _, payload := range []struct{ was, is *any }{
				{&before[i].Event.Payload, &l.Event.Payload}, {&before[i].Original, &l.Original},
			} {
				if *payload.was != nil {
					want, err := json.Marshal(*payload.was)
					require.NoError(t, err)
					require.IsType(t, json.RawMessage{}, *payload.is)
					require.JSONEq(t, string(want), string((*payload.is).(json.RawMessage)))
					*payload.is = *payload.was
				}
			}
			requireSameLetter(t, before[i], l)
		}
		require.Equal(t, 2, after[0].Replays)
		require.True(t, after[0].Edited)

		// And they can be handled here.
		require.NoError(t, bus.Start(t.Context()))
		var handled journal[string]
		for _, name := range []string{"first", "second", "third"} {
			mustSubscribe(t, bus, "order.*", eventbus.Typed(func(ctx context.Context, o *exportedOrder) error {
				d, _ := eventbus.FromContext(ctx)
				handled.add(fmt.Sprintf("%s %v %s %d", d.Subscription, o, d.Event.Metadata.Get("k"), d.Replays))
				return nil
			}), eventbus.Named(name))
		}
		report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters)
		require.NoError(t, err)
		require.Equal(t, eventbus.ReplayReport{Matched: 4, Replayed: 4}, report)
		synctest.Wait()
		require.ElementsMatch(t, []string{
			"second &{1 <ä>} v 1", "third &{1 <ä>} v 1",
			"second &{2 <ä>} v 1", "third &{2 <ä>} v 1",
			"second <nil>  1", "third <nil>  1",
			"second &{17 } v 3", "third &{17 } v 3",
		}, handled.all(), "second and third, not first")
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}

type jsonPayload func() ([]byte, error)

func (p jsonPayload) MarshalJSON() ([]byte, error) { return p() }

type cyclicPayload struct{ Next *cyclicPayload }

// What cannot be encoded is named, and does not stop the others.
func TestL4_ExportNamesWhatDoesNotEncode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)))
		ring := &cyclicPayload{}
		ring.Next = ring
		boom := errors.New("boom")
		var want []string
		for _, payload := range []any{
			1,
			make(chan int),
			ring,
			jsonPayload(func() ([]byte, error) { panic(boom) }),
			jsonPayload(func() ([]byte, error) { runtime.Goexit(); return nil, nil }),
			jsonPayload(func() ([]byte, error) { return nil, boom }),
			jsonPayload(func() ([]byte, error) { return []byte("not JSON"), nil }),
			strings.Repeat("x", 16<<20),
			// The bus is not locked meanwhile.
			jsonPayload(func() ([]byte, error) { return fmt.Append(nil, bus.Metrics().DeadLetters), nil }),
		} {
			mustPublish(t, bus, "a", payload)
			synctest.Wait()
		}
		for _, l := range letters(t, bus)[1:8] {
			want = append(want, l.ID.String())
		}
		var out bytes.Buffer
		report, err := bus.DLQ().Export(t.Context(), &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Equal(t, 9, report.Matched)
		require.Equal(t, 2, report.Exported)
		require.Len(t, report.Unexported, 7)
		for i, u := range report.Unexported {
			require.Equal(t, want[6-i], u.ID.String())
			require.Error(t, u.Err)
		}
		require.ErrorContains(t, report.Unexported[2].Err, "panicked: boom")
		require.ErrorContains(t, report.Unexported[3].Err, "exited its goroutine")
		require.ErrorIs(t, report.Unexported[4].Err, boom)
		require.ErrorContains(t, report.Unexported[6].Err, "16777216")
		require.Equal(t, 2, strings.Count(out.String(), "\n"))
		require.Contains(t, out.String(), `"payload":9`)
		require.Len(t, letters(t, bus), 9, "they stay")

		into, _ := newBus(t)
		require.Equal(t, eventbus.ImportReport{Imported: 2}, importLetters(t, into, out.Bytes()))
		shutdown(t, bus)
	})
}

func TestL4_ExportEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)))
		release := make(chan struct{})
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		mustPublish(t, bus, "a", jsonPayload(func() ([]byte, error) { <-release; return []byte("1"), nil }))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var out bytes.Buffer
		report, err := bus.DLQ().Export(ctx, &out, eventbus.LetterQuery{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, letters(t, bus)[0].ID.String(), "the one that blocks is named")
		require.Equal(t, eventbus.ExportReport{Matched: 2, Exported: 1}, report)
		close(release)
		shutdown(t, bus)
	})
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

func TestL4_ExportAndItsWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		fill(t, bus, 5)
		full := errors.New("disk is full")
		for _, c := range []struct {
			n    int
			err  error
			want error
		}{{0, full, full}, {7, nil, io.ErrShortWrite}} {
			n := 0
			report, err := bus.DLQ().Export(t.Context(), writerFunc(func(p []byte) (int, error) {
				if n++; n == 3 {
					return c.n, c.err
				}
				require.Equal(t, 1, bytes.Count(p, []byte("\n")))
				return len(p), nil
			}), eventbus.LetterQuery{Subscription: "s"})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, eventbus.ExportReport{Matched: 5, Exported: 2}, report)
		}
		// A writer may use the queue, and what it removes is not written any more.
		all := letters(t, bus)
		report, err := bus.DLQ().Export(t.Context(), writerFunc(func(p []byte) (int, error) {
			_ = bus.DLQ().Purge(t.Context(), all[0].ID)
			return len(p), nil
		}), eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Equal(t, eventbus.ExportReport{Matched: 5, Exported: 4, Gone: 1}, report)
		_, err = bus.DLQ().Export(t.Context(), nil, eventbus.LetterQuery{})
		requireOptionError(t, err, "Export")
		_, err = bus.DLQ().Export(t.Context(), (*bytes.Buffer)(nil), eventbus.LetterQuery{})
		requireOptionError(t, err, "Export")
		_, err = bus.DLQ().Export(t.Context(), io.Discard, eventbus.LetterQuery{Limit: 1})
		requireOptionError(t, err, "LetterQuery.Limit")
		shutdown(t, bus)
	})
}

// readerFunc calls a function when it is read, and has nothing.
type readerFunc func()

func (r readerFunc) Read([]byte) (int, error) {
	r()
	return 0, io.EOF
}

func TestL4_ImportTakesAllOrNothing(t *testing.T) {
	bus, _ := newBus(t)
	good := strings.Replace(letterLine, "aaaaaaaaaaaa", "aaaaaaaaaaab", 1)
	with := func(old, replacement string) string {
		require.Contains(t, letterLine, old)
		return strings.Replace(letterLine, old, replacement, 1)
	}
	for name, c := range map[string]struct{ line, reason string }{
		"no JSON":               {"{", "unexpected end of JSON input; Import reads the output of Export"},
		"null":                  {"null", "has no id"},
		"an array":              {"[]", "cannot unmarshal array"},
		"two":                   {letterLine + letterLine, "invalid character '{' after top-level value"},
		"no id":                 {with(`"id":"0190f5fe-7c00-7a00-8aaa-aaaaaaaaaaaa",`, ""), "has no id"},
		"a zero id":             {with("0190f5fe-7c00-7a00-8aaa-aaaaaaaaaaaa", "00000000-0000-0000-0000-000000000000"), "has no id"},
		"a bad id":              {with("aaaaaaaaaaaa", "aa"), "not a UUID"},
		"no event id":           {with(`"id":"0190f5fe-7c00-7a00-8bbb-bbbbbbbbbbbb",`, ""), "has no event.id"},
		"a bad type":            {with(`"type":"a"`, `"type":"a..b"`), `event.type "a..b"`},
		"no type":               {with(`"type":"a",`, ``), `event.type ""`},
		"an unknown reason":     {with("exhausted", "bored"), `reason "bored" must be one of`},
		"no subscription":       {with(`"subscription":"s","attempts"`, `"attempts"`), "a subscription name is empty"},
		"an empty one":          {with(`"attempts":1,"f`, `"not_reached":[""],"attempts":1,"f`), "a subscription name is empty"},
		"negative attempts":     {with(`"attempts":1,"f`, `"attempts":-1,"f`), "attempts, replays"},
		"too many replays":      {with(`"attempts":1,"f`, `"replays":2147483648,"f`), "attempts, replays"},
		"no time of death":      {with(`"died_at":"2024-07-28T14:00:02+02:00"`, `"replays":1`), "has no died_at"},
		"no time":               {with(`,"time":"2024-07-28T12:00:00Z"`, ""), "has no event.time"},
		"no time in UTC":        {with("2024-07-28T14:00:02+02:00", "9999-12-31T23:00:00-02:00"), "years 0 to 9999"},
		"due in no year of UTC": {with(`"attempts":1,"f`, `"due":"9999-12-31T23:00:00-02:00","f`), "years 0 to 9999"},
		"due at no time":        {with(`"attempts":1,"f`, `"due":"soon","f`), "soon"},
		"bad metadata":          {with(`"type":"a"`, `"type":"a","metadata":{"eventbus.x":"1"}`), "reserved"},
		"an original only":      {with(`"attempts":1,"f`, `"original":1,"f`), "original payload without edited"},
		"a payload too many":    {with(`"payload":{"number":1}`, `"payload":null,"payload":{"number":1}`), "names a payload twice"},
		"a wrong kind":          {with(`"attempts":1,"f`, `"attempts":"`+strings.Repeat("1", 1000)+`","f`), "attempts"},
		"too long":              {with(`{"number":1}`, `"`+strings.Repeat("x", 16<<20)+`"`), "is longer than 16777216 bytes"},
	} {
		report, err := bus.DLQ().Import(t.Context(), strings.NewReader(good+"\r\n\n"+c.line+"\n"+good))
		var bad *eventbus.ImportError
		require.ErrorAs(t, err, &bad, name)
		require.ErrorIs(t, err, eventbus.ErrInvalidLetter)
		require.NotErrorIs(t, err, eventbus.ErrNotFound)
		require.Equal(t, 3, bad.Line, name)
		require.Contains(t, bad.Reason, c.reason, name)
		require.Less(t, len(bad.Reason), 600)
		require.Zero(t, report)
		require.Zero(t, bus.Metrics().DeadLetters, name)
	}
	broken := errors.New("connection lost")
	_, err := bus.DLQ().Import(t.Context(), io.MultiReader(strings.NewReader(good+"\n"), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "line 2")
	ctx, cancel := context.WithCancel(t.Context())
	_, err = bus.DLQ().Import(ctx, io.MultiReader(strings.NewReader(good+"\n"), readerFunc(func() { cancel() }), strings.NewReader(good+"\n")))
	require.ErrorIs(t, err, context.Canceled)
	_, err = bus.DLQ().Import(t.Context(), nil)
	requireOptionError(t, err, "Import")
	require.Zero(t, bus.Metrics().DeadLetters)

	tolerated := with(`"attempts":1,"f`, `"from_the_future":{"a":[1]},"f`)
	require.Equal(t, eventbus.ImportReport{Imported: 2, Skipped: 1}, importLetters(t, bus, []byte(good+"\n"+tolerated+"\n"+good)))
	require.Zero(t, importLetters(t, bus, nil))
	l := letters(t, bus)[1]
	require.Equal(t, time.Date(2024, 7, 28, 12, 0, 2, 0, time.UTC), l.DiedAt)
	require.NotEmpty(t, l.Fingerprint)
	require.Equal(t, 2, list(t, bus, eventbus.LetterQuery{Fingerprint: l.Fingerprint}).Total)
}

// A letter whose event Publish would have refused is none.
func TestL4_AnImportedKeyIsAsGoodAsAPublishedOne(t *testing.T) {
	from, _ := startBus(t)
	mustSubscribe(t, from, "a", failing(eventbus.Permanent(errors.New("bad"))))
	_, err := from.PublishAndWait(t.Context(), "a", nil, eventbus.Key("its key"))
	require.Error(t, err)
	var exported strings.Builder
	_, err = from.DLQ().Export(t.Context(), &exported, eventbus.LetterQuery{})
	require.NoError(t, err)
	for _, key := range []string{strings.Repeat("k", 256), `\u0000`} {
		to, _ := newBus(t)
		_, err = to.DLQ().Import(t.Context(), strings.NewReader(strings.Replace(exported.String(), "its key", key, 1)))
		var wrong *eventbus.ImportError
		require.ErrorAs(t, err, &wrong)
		require.Contains(t, wrong.Reason, "event.key")
		require.Empty(t, letters(t, to))
	}
}

// A payload that the new code cannot decode dies again, permanently, and stays.
func TestE5_WhatCannotBeDecodedStaysReplayable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		var got journal[any]
		s := mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, v []string) error { got.add(v); return nil }), eventbus.Named("s"))
		importLetters(t, bus, []byte(letterLine))
		for replays := 1; replays <= 2; replays++ {
			require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
			synctest.Wait()
			l := oneLetter(t, bus)
			require.Equal(t, eventbus.ReasonPermanent, l.Reason)
			require.Equal(t, replays, l.Replays)
			require.JSONEq(t, `{"number":1}`, string(l.Event.Payload.(json.RawMessage)))
			last := l.Failures[len(l.Failures)-1]
			require.Equal(t, "*eventbus.PayloadTypeError", last.Class)
			var cause *json.UnmarshalTypeError
			require.ErrorAs(t, last.Err, &cause)
			var typed *eventbus.PayloadTypeError
			require.ErrorAs(t, last.Err, &typed)
			require.Equal(t, "json.RawMessage", typed.Got)
			require.Equal(t, "[]string", typed.Want)
			require.ErrorContains(t, last.Err, "cannot unmarshal object")
		}
		s.Unsubscribe()
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, v exportedOrder) error { got.add(v); return nil }), eventbus.Named("s"))
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		synctest.Wait()
		require.Equal(t, []any{exportedOrder{Number: 1}}, got.all())
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}

func TestE5_RawPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		var got journal[any]
		take := func(v any) error { got.add(v); return nil }
		mustSubscribe(t, bus, "struct", eventbus.Typed(func(_ context.Context, v exportedOrder) error { return take(v) }))
		mustSubscribe(t, bus, "pointer", eventbus.Typed(func(_ context.Context, v *exportedOrder) error { return take(v) }))
		mustSubscribe(t, bus, "bytes", eventbus.Typed(func(_ context.Context, v []byte) error { return take(v) }))
		mustSubscribe(t, bus, "raw", eventbus.Typed(func(_ context.Context, v json.RawMessage) error { return take(v) }))
		mustSubscribe(t, bus, "any", eventbus.Typed(func(_ context.Context, v any) error { return take(v) }))
		mustSubscribe(t, bus, "int", eventbus.Typed(func(_ context.Context, v int) error { return take(v) }))
		for _, c := range []struct {
			eventType, payload string
			want               any
		}{
			{"struct", `{"number":2,"new":1}`, exportedOrder{Number: 2}},
			{"pointer", `{"number":2}`, &exportedOrder{Number: 2}},
			{"pointer", ` null `, (*exportedOrder)(nil)},
			{"bytes", `"aGk="`, []byte("hi")},
			{"raw", `{}`, json.RawMessage(`{}`)},
			{"any", `{}`, json.RawMessage(`{}`)},
			{"int", `7`, 7},
			{"int", `null`, nil},
			{"int", `"7"`, nil},
			{"int", ``, nil},
			{"int", `7.5`, nil},
		} {
			_, err := bus.PublishAndWait(t.Context(), c.eventType, json.RawMessage(c.payload))
			if c.want == nil {
				var typed *eventbus.PayloadTypeError
				require.ErrorAs(t, err, &typed)
				require.Equal(t, "int", typed.Want)
				require.Equal(t, 1, letters(t, bus)[0].Attempts)
				continue
			}
			require.NoError(t, err)
			all := got.all()
			require.Equal(t, c.want, all[len(all)-1])
		}
		shutdown(t, bus)
	})
}

// The bound holds, and what falls out is seen.
func TestL7_ImportKeepsTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, _ := startBus(t, withoutCircuit)
		fill(t, old, 10)
		lines := exportLetters(t, old)
		all := letters(t, old)
		shutdown(t, old)
		time.Sleep(time.Second)
		var evicted journal[eventbus.DeadLetter]
		bus, logs := startBus(t, withoutCircuit, eventbus.WithDeadLetterCapacity(5),
			eventbus.WithObserver(eventbus.Observer{LetterEvicted: func(l eventbus.DeadLetter) { evicted.add(l) }}))
		fill(t, bus, 3)
		require.Equal(t, eventbus.ImportReport{Imported: 10, Evicted: 8}, importLetters(t, bus, lines))
		require.Len(t, letters(t, bus), 5)
		for i, l := range evicted.all() {
			require.Equal(t, all[9-i].ID, l.ID, "the oldest first")
		}
		require.Equal(t, 8, evicted.len())
		require.Equal(t, 8, logs.FilterMessageSnippet("evicted").Len())
		require.EqualValues(t, 8, bus.Metrics().LettersEvicted)
		shutdown(t, bus)
		require.Equal(t, eventbus.ImportReport{Imported: 8, Skipped: 2, Evicted: 8}, importLetters(t, bus, lines), "after Shutdown too")
	})
}

// A matcher that goes by segments agrees, for patterns that are taken and codes that
// are made of them.
// What is given can be changed afterwards, and so can what is returned.
// A letter's rule is in its JSON, and comes back.
func TestP7_LettersWithRulesAreExportedAndImported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		_, handler := ruleCalls(errBroken, coded("X"))
		mustSubscribe(t, bus, "a", handler, eventbus.Named("s"), eventbus.Retry(retry(1, 0)),
			eventbus.RetryRules(onCodes(1, "Y"), eventbus.RetryRule{Name: "bank", Match: codes("X"), Attempts: 2}))
		mustPublish(t, bus, "a", "payload")
		shutdown(t, bus)
		lines := exportLetters(t, bus)
		require.Equal(t, 3, strings.Count(string(lines), `"rule":{"position":1,"name":"bank","subscription":"s"}`), "%s", lines)
		other, _ := newBus(t)
		require.Equal(t, 1, importLetters(t, other, lines).Imported)
		want, got := oneLetter(t, bus), oneLetter(t, other)
		require.Equal(t, want.Rule, got.Rule)
		require.Nil(t, got.Failures[0].Rule)
		require.Equal(t, want.Failures[1].Rule, got.Failures[1].Rule)
		for _, bad := range []string{`"position":-1`, `"position":2147483648`} {
			_, err := other.DLQ().Import(t.Context(), strings.NewReader(strings.Replace(string(lines), `"position":1`, bad, 1)))
			require.ErrorContains(t, err, "position of a rule")
		}

		// Nor does a change of one copy reach another.
		got.Rule.Position, got.Failures[1].Rule.Name = 77, "spoiled"
		require.Equal(t, want.Rule, oneLetter(t, other).Rule)
		require.Equal(t, want.Failures[1].Rule, oneLetter(t, other).Failures[1].Rule)
	})
}

// Whatever is imported can be exported and imported again; what is refused changes
// nothing.
func FuzzImport(f *testing.F) {
	f.Add([]byte(letterLine))
	f.Add([]byte(letterLine + "\n" + strings.Replace(letterLine, "aaaaaaaaaaaa", "aaaaaaaaaaab", 1) + "\n"))
	f.Add([]byte(strings.Replace(letterLine, `"attempts":1,"f`, `"edited":true,"original":[1,"<"],"fingerprint":"x","f`, 1)))
	f.Add([]byte(strings.Replace(letterLine, `"payload"`, `"metadata":{"k":"v"},"payload":null,"Payload"`, 1)))
	f.Add([]byte("{}\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		bus, err := eventbus.New()
		require.NoError(t, err)
		report, err := bus.DLQ().Import(t.Context(), bytes.NewReader(in))
		n := bus.Metrics().DeadLetters
		if err != nil {
			require.ErrorIs(t, err, eventbus.ErrInvalidLetter)
			require.Zero(t, n)
			return
		}
		require.Equal(t, report.Imported, n)
		lines := exportLetters(t, bus)
		again, err := eventbus.New()
		require.NoError(t, err)
		require.Equal(t, eventbus.ImportReport{Imported: n}, importLetters(t, again, lines))
		require.Equal(t, string(lines), string(exportLetters(t, again)))
	})
}

// The name of an unnamed subscription is a number that another bus gives to another
// handler.
func TestL3_AnImportedLetterIsReplayedToNamedSubscriptionsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		old, _ := startBus(t, withoutCircuit)
		mustSubscribe(t, old, "order.*", failing(eventbus.Permanent(errDead)))
		mustSubscribe(t, old, "order.*", ok, eventbus.Named("mail"))
		mustSubscribe(t, old, "order.*", ok)
		mustPublish(t, old, "order.placed", 1)
		synctest.Wait()
		lines := exportLetters(t, old)
		letter := oneLetter(t, old)
		require.Equal(t, "order.*#1", letter.Subscription)
		require.Equal(t, []string{"mail", "order.*#3"}, letter.NotReached)

		refused := func(bus *eventbus.Bus, name string) {
			t.Helper()
			err := bus.DLQ().Replay(ctx, letter.ID)
			require.ErrorIs(t, err, eventbus.ErrNoSubscription)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "Named")
			require.ErrorContains(t, err, "Formerly")
			report, err := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{All: true})
			require.NoError(t, err)
			require.Len(t, report.Stayed, 1)
			require.ErrorIs(t, report.Stayed[0].Err, eventbus.ErrNoSubscription)
			require.Equal(t, letter.ID, oneLetter(t, bus).ID, "the letter stays")
		}
		other, _ := startBus(t)
		var ran journal[string]
		as := func(name string) eventbus.Handler {
			return func(context.Context, eventbus.Event) error { ran.add(name); return nil }
		}
		first := mustSubscribe(t, other, "order.*", as("another"))
		require.Equal(t, "order.*#1", first.ID())
		mustSubscribe(t, other, "order.*", as("mail"), eventbus.Named("mail"))
		third := mustSubscribe(t, other, "order.*", as("yet another"))
		require.Equal(t, "order.*#3", third.ID())
		importLetters(t, other, lines)
		refused(other, "order.*#1")
		first.Unsubscribe()
		mustSubscribe(t, other, "order.*", as("first"), eventbus.Named("first"), eventbus.Formerly("order.*#1"))
		refused(other, "order.*#3")
		third.Unsubscribe()
		mustSubscribe(t, other, "order.*", as("third"), eventbus.Named("order.*#3"))
		require.Empty(t, ran.all())
		require.NoError(t, other.DLQ().Replay(ctx, letter.ID))
		synctest.Wait()
		require.Equal(t, []string{"mail", "first", "third"}, ran.all(), "in the order of Subscribe")

		require.NoError(t, old.DLQ().Purge(ctx, letter.ID))
		importLetters(t, old, lines)
		refused(old, "order.*#1")
		shutdown(t, other)
		shutdown(t, old)
	})
}

// The bus that made a letter knows which subscription is meant.
func TestL3_TheBusThatMadeALetterReplaysItToUnnamedSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		s := mustSubscribe(t, bus, "order.*", failing(eventbus.Permanent(errDead)))
		mustPublish(t, bus, "order.placed", 1)
		synctest.Wait()
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		synctest.Wait()
		again := oneLetter(t, bus)
		require.Equal(t, 1, again.Replays)
		s.Unsubscribe()
		require.ErrorIs(t, bus.DLQ().Replay(t.Context(), again.ID), eventbus.ErrNoSubscription)
		require.Equal(t, again.ID, oneLetter(t, bus).ID)
		shutdown(t, bus)
	})
}

// A letter keeps when its event is due, over any number of buses, and a replay schedules
// the event again.
func TestL3_AScheduledEventIsScheduledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		began := time.Now()
		due := began.Add(time.Hour).UTC()
		subscribe := func(bus *eventbus.Bus, calls *callLog) {
			for _, name := range []string{"first", "second"} {
				mustSubscribe(t, bus, "order.*", func(_ context.Context, e eventbus.Event) error {
					calls.note("%s:%s", name, e.Payload)
					return eventbus.Permanent(errDead)
				}, eventbus.Named(name))
			}
		}
		calls := newCallLog()
		old, _ := startBus(t, withoutCircuit)
		subscribe(old, calls)
		mustPublish(t, old, "order.placed", "now")
		mustPublish(t, old, "order.placed", "later", eventbus.After(time.Hour), eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdownLeft(t, old)
		all := letters(t, old)
		require.Len(t, all, 2)
		require.Equal(t, due, all[0].Due)
		require.Zero(t, all[1].Due)
		lines := exportLetters(t, old)
		require.Equal(t, 1, bytes.Count(lines, []byte(`"due":"`)))
		require.NotContains(t, string(lines), "madeBy")

		second, _ := startBus(t, withoutCircuit, eventbus.WithIsolation())
		subscribe(second, calls)
		importLetters(t, second, lines)
		id := letters(t, second)[0].ID
		require.Equal(t, due, letters(t, second)[0].Due)
		require.NoError(t, second.DLQ().Purge(ctx, letters(t, second)[1].ID))
		require.NoError(t, second.DLQ().Replay(ctx, id))
		require.EqualValues(t, 1, second.Metrics().Ledger.Scheduled)
		time.Sleep(time.Minute)
		shutdownLeft(t, second)
		all = letters(t, second)
		require.Len(t, all, 2, "isolated: one for each subscription")
		for _, l := range all {
			require.Equal(t, due, l.Due)
			require.Equal(t, 1, l.Replays)
		}
		lines = exportLetters(t, second)

		third, _ := startBus(t, withoutCircuit)
		subscribe(third, calls)
		importLetters(t, third, lines)
		report, err := third.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, 2, report.Replayed)
		require.Equal(t, []string{"+0s first:now"}, calls.all())
		time.Sleep(time.Until(due) - 1)
		synctest.Wait()
		require.Len(t, calls.all(), 1, "not before it is due")
		time.Sleep(time.Minute)
		require.Equal(t, []string{`+0s first:now`, `+1h0m0s first:"later"`, `+1h0m0s second:"later"`}, calls.all())
		for _, l := range letters(t, third) {
			require.Equal(t, due, l.Due, "it remains known when it was due")
			require.NoError(t, third.DLQ().Replay(ctx, l.ID))
		}
		synctest.Wait()
		require.Len(t, calls.all(), 5, "after it was due a replay is at once")
		for _, l := range letters(t, third) {
			require.Equal(t, due, l.Due)
			require.Equal(t, 3, l.Replays)
		}
		shutdown(t, third)
	})
}

// A replay that is scheduled is an event that is scheduled: Cancel finds it.
func TestL3_CancelTakesBackAScheduledReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, _ := startBus(t)
		mustSubscribe(t, old, "order.*", ok, eventbus.Named("first"))
		id := mustPublish(t, old, "order.placed", nil, eventbus.At(time.Now().Add(time.Hour)))
		shutdownLeft(t, old)
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "order.*", ok, eventbus.Named("first"))
		importLetters(t, bus, exportLetters(t, old))
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		require.NoError(t, cancelEvent(t.Context(), bus, id))
		requireNothingLeft(t, cancelEvent(t.Context(), bus, id))
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// A line is decoded in a small multiple of its own size, whatever it says.
func TestL4_ImportNeedsMemoryInProportionToALine(t *testing.T) {
	ofManyEvents(t)
	size := searching(8<<20, 1<<20) // a line may have 16 MiB
	fill := func(open, item, end string) string {
		return open + strings.Repeat(item, (size-len(letterLine))/len(item)) + end
	}
	with := func(old, replacement string) string {
		require.Contains(t, letterLine, old)
		return strings.Replace(letterLine, old, replacement, 1)
	}
	const failures = `"failures":[{"attempt":1,"subscription":"s","time":"2024-07-28T12:00:01+02:00","duration":5,"error":"dead"}]`
	for name, c := range map[string]struct{ line, reason string }{
		"failures":              {with(failures, fill(`"failures":[`, `{},`, `{}]`)), ""},
		"failures with rules":   {with(failures, fill(`"failures":[`, `{"rule":{}},`, `{}]`)), ""},
		"failures that are not": {with(failures, fill(`"failures":[`, `[],`, `{}]`)), "cannot unmarshal array"},
		"failures again":        {with(failures, fill(``, `"failures":[],`, failures)), "failures twice"},
		"names":                 {with(failures, fill(`"succeeded":[`, `"a",`, `"a"]`)), ""},
		"names not reached":     {with(failures, fill(`"not_reached":[`, `"",`, `""]`)), "a subscription name is empty"},
		"no names":              {with(failures, fill(`"not_reached":[`, `0,`, `0]`)), "that is not a string"},
		"metadata":              {with(`"type":"a"`, fill(`"type":"a","metadata":{`, `"a":"",`, `"b":""}`)), "more than 64 names"},
		"metadata again":        {with(`"type":"a"`, fill(``, `"metadata":{},`, `"type":"a"`)), "metadata twice"},
		"much metadata":         {with(`"type":"a"`, manyNames(size)), "more than 64 names"},
		"a payload":             {with(`{"number":1}`, fill(`[`, `[],`, `[]]`)), ""},
		"two payloads":          {with(`{"number":1}`, fill(`null,"payload":[`, `[],`, `[]]`)), "payload twice"},
		"an original":           {with(failures, fill(`"edited":true,"original":[`, `[],`, `[]]`)), ""},
		"two originals":         {with(failures, fill(`"edited":true,"original":null,"original":[`, `[],`, `[]]`)), "payload twice"},
		"unknown fields":        {with(failures, fill(`"unknown":[`, `[],`, `[]],`)+failures), ""},
		"a text":                {with(`"error":"dead"`, fill(`"error":"`, `\u0001`, `"`)), ""},
		"rules":                 {with(failures, fill(``, `"rule":{},`, failures)), ""},
		"escapes in a key":      {with(`"type":"a"`, fill(`"type":"a","key":"`, `\u0061`, `"`)), "event.key"},
		"a class":               {with(`"error":"dead"`, fill(`"error":"dead","class":"`, "\xff", `"`)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.InEpsilon(t, size, len(c.line), 0.1)
			bus, _ := newBus(t)
			in := strings.NewReader(letterLine + "\n" + strings.Replace(c.line, "8aaa-a", "8aaa-b", 1))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			report, err := bus.DLQ().Import(t.Context(), in)
			runtime.ReadMemStats(&after)
			t.Logf("%.1f times the line", float64(after.TotalAlloc-before.TotalAlloc)/float64(len(c.line)))
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(20*len(c.line)))
			if c.reason == "" {
				require.NoError(t, err)
				require.Equal(t, 2, report.Imported)
				return
			}
			var bad *eventbus.ImportError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, 2, bad.Line)
			require.Contains(t, bad.Reason, c.reason)
		})
	}
}

// manyNames is metadata with as many names as size has room for.
func manyNames(size int) string {
	var b strings.Builder
	b.WriteString(`"type":"a","metadata":{`)
	for i := 0; b.Len() < size-1000; i++ {
		fmt.Fprintf(&b, `"%x":"",`, i)
	}
	b.WriteString(`"last":""}`)
	return b.String()
}

func TestL1_ALetterOfACrash(t *testing.T) {
	bus, _ := newBus(t)
	importLetters(t, bus, []byte(strings.Replace(letterLine, "exhausted", "crash", 1)))
	require.Equal(t, eventbus.ReasonCrash, oneLetter(t, bus).Reason)
	require.Equal(t, 1, list(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonCrash}).Total)
}

// encoding/json encodes values that it does not decode. Import would refuse the whole file.
func TestL4_ALetterTooDeepForImportIsNotExported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { return eventbus.Permanent(errBoom) })
		mustPublish(t, bus, "fine", 1)
		mustPublish(t, bus, "deep", json.RawMessage(strings.Repeat("[", 9_999)+strings.Repeat("]", 9_999)))
		synctest.Wait()
		var out bytes.Buffer
		exported, err := bus.DLQ().Export(t.Context(), &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Equal(t, 1, exported.Exported)
		require.Len(t, exported.Unexported, 1)
		require.ErrorContains(t, exported.Unexported[0].Err, "too deeply")
		other, _ := startBus(t)
		imported, err := other.DLQ().Import(t.Context(), &out)
		require.NoError(t, err)
		require.Equal(t, 1, imported.Imported)
		shutdown(t, bus)
		shutdown(t, other)
	})
}

// A letter that died before the year 1, by a clock or in an import, matches like any other.
func TestL2_ALetterOfTheYearZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { return eventbus.Permanent(errBoom) })
		mustPublish(t, bus, "x", 1)
		synctest.Wait()
		var out bytes.Buffer
		_, err := bus.DLQ().Export(t.Context(), &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		var line map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &line))
		line["died_at"] = "0000-06-01T00:00:00Z"
		text, err := json.Marshal(line)
		require.NoError(t, err)
		other, _ := startBus(t)
		_, err = other.DLQ().Import(t.Context(), bytes.NewReader(text))
		require.NoError(t, err)
		page, err := other.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Len(t, page.Letters, 1)
		shutdown(t, bus)
		shutdown(t, other)
	})
}
