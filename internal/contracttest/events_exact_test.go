package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// literals are JSON numbers of which a float64 loses digits, the form or everything.
var literals = []string{
	"9007199254740993", "-9007199254740993", "18446744073709551615", "123456789012345678901234567890",
	"12345678901234567.89", "0.1", "1.0", "1", "-0", "1e400", "-1E+400", "1e-400", "1e1000000000", "0.10000000000000001",
	"1" + strings.Repeat("0", 1000) + "1",
}

type embedded struct{ Embedded any }

// loose has interfaces in each place where encoding/json can reach one.
type loose struct {
	embedded
	Plain    any
	Pointer  *any
	Slice    []any
	Array    [1]any
	Map      map[string]any
	Deep     map[string][]*struct{ In any }
	Next     *loose
	Exact    int64
	Number   json.Number
	Instants []time.Time
}

// looseText is the JSON of a loose whose numbers are the literal.
func looseText(literal string) string {
	return strings.ReplaceAll(`{"Embedded":#,"Plain":#,"Pointer":#,"Slice":[#,[#]],"Array":[#],"Map":{"a":#,"b":{"c":[#]}},`+
		`"Deep":{"d":[{"In":#},null]},"Next":{"Embedded":null,"Plain":{"e":#},"Pointer":null,"Slice":null,"Array":[null],`+
		`"Map":null,"Deep":null,"Next":null,"Exact":0,"Number":0,"Instants":null},"Exact":9007199254740993,"Number":#,"Instants":[]}`, "#", literal)
}

// encodes returns a handler that notes the JSON of each payload that it receives as a T.
func encodes[T any](note func(string)) eventbus.Handler {
	return eventbus.Typed(func(_ context.Context, payload T) error {
		text, err := json.Marshal(payload)
		note(string(text))
		return err
	})
}

func TestE5_ExactNumbersFromAStore(t *testing.T) {
	type handlerOf struct {
		handler func(note func(string)) eventbus.Handler
		text    string
		opts    []eventbus.Option
	}
	codec := []eventbus.Option{eventbus.WithCodec(wrapped{})}
	for name, test := range map[string]handlerOf{
		"map":                {encodes[map[string]any], `{"a":#,"b":[#,{"c":#}]}`, nil},
		"pointer to a map":   {encodes[*map[string]any], `{"a":#}`, nil},
		"map of lists":       {encodes[map[string][]any], `{"a":[#]}`, nil},
		"list":               {encodes[[]any], `[#,[#],{"a":#}]`, nil},
		"list of lists":      {encodes[[][]any], `[[#]]`, nil},
		"any":                {encodes[any], `{"a":#}`, nil},
		"pointer to any":     {encodes[*any], `#`, nil},
		"struct":             {encodes[loose], "", nil},
		"pointer to struct":  {encodes[*loose], "", nil},
		"struct in a struct": {encodes[struct{ A []map[string]loose }], `{"A":[{"x":L}]}`, nil},
		"codec, map":         {encodes[map[string]any], `{"a":#,"b":[#,{"c":#}]}`, codec},
		"codec, any":         {encodes[any], `{"a":[#]}`, codec},
		"codec, list":        {encodes[[]map[string]any], `[{"a":#}]`, codec},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				note := func(text string) { disk.note("%s", text) }
				bus, _ := disk.open(t, test.opts...)
				mustSubscribe(t, bus, "*", test.handler(note), eventbus.Named("typed"))
				require.NoError(t, bus.Start(t.Context()))
				var want []string
				for _, literal := range literals {
					text := looseText(literal)
					if test.text != "" {
						text = strings.ReplaceAll(strings.ReplaceAll(test.text, "L", text), "#", literal)
					}
					want = append(want, text)
					_, err := bus.PublishAndWait(t.Context(), "a", json.RawMessage(text))
					require.NoError(t, err)
				}
				require.Equal(t, want, disk.took(), "handled by the process that accepted it")

				mustPublish(t, bus, "a", json.RawMessage(want[0]), eventbus.After(time.Hour))
				disk.crash(bus)
				again, _ := disk.open(t, test.opts...)
				mustSubscribe(t, again, "*", test.handler(note), eventbus.Named("typed"))
				require.NoError(t, again.Start(t.Context()))
				time.Sleep(time.Hour)
				require.Equal(t, want[:1], disk.took(), "handled by the next process")
				shutdown(t, again)
			})
		})
	}
}

// An integer that Go publishes arrives, whatever the handler's type.
func TestE5_ExactIntegersThatGoPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		var got journal[any]
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, v map[string]any) error { got.add(v["N"]); return nil }), eventbus.Named("map"))
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, v struct{ N any }) error { got.add(v.N); return nil }), eventbus.Named("any"))
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, v struct{ N json.Number }) error { got.add(v.N); return nil }), eventbus.Named("number"))
		require.NoError(t, bus.Start(t.Context()))
		for _, n := range []any{int64(1<<53 + 1), int64(math.MinInt64), uint64(math.MaxUint64), 0.1, 1e21, 5, float32(0.1)} {
			_, err := bus.PublishAndWait(t.Context(), "a", map[string]any{"N": n})
			require.NoError(t, err)
			text, err := json.Marshal(n)
			require.NoError(t, err)
			number := json.Number(text)
			require.Equal(t, []any{number, number, number}, got.all()[got.len()-3:])
		}
		shutdown(t, bus)
	})
}

// StrictDecoding changes no number.
func TestE5_ExactNumbersWithStrictDecoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		note := func(text string) { disk.note("%s", text) }
		mustSubscribe(t, bus, "a", encodes[map[string]any](note), eventbus.Named("map"), eventbus.StrictDecoding())
		mustSubscribe(t, bus, "b", encodes[struct{ A any }](note), eventbus.Named("struct"), eventbus.StrictDecoding())
		require.NoError(t, bus.Start(t.Context()))
		for _, literal := range literals {
			text := `{"A":` + literal + `}`
			for _, eventType := range []string{"a", "b"} {
				_, err := bus.PublishAndWait(t.Context(), eventType, json.RawMessage(text))
				require.NoError(t, err)
			}
			require.Equal(t, []string{text, text}, disk.took())
		}
		shutdown(t, bus)
	})
}

func TestE5_ExactNumbersOfAnImportedLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, store := range []bool{false, true} {
			disk := newDisk()
			for _, literal := range literals {
				bus, _ := startBus(t, withoutCircuit)
				if store {
					bus, _ = disk.open(t)
				}
				mustSubscribe(t, bus, "a", encodes[map[string]any](func(text string) { disk.note("%s", text) }), eventbus.Named("s"))
				if store {
					require.NoError(t, bus.Start(t.Context()))
				}
				line := strings.Replace(letterLine, `{"number":1}`, `{"number":`+literal+`}`, 1)
				require.Equal(t, 1, importLetters(t, bus, []byte(line)).Imported)
				require.Contains(t, string(exportLetters(t, bus)), `{"number":`+literal+`}`)
				require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
				require.Equal(t, []string{`{"number":` + literal + `}`}, disk.took())
				shutdown(t, bus)
			}
		}
	})
}

func TestE5_ExactNumbersAfterAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, withoutCircuit)
		broken := true
		mustSubscribe(t, bus, "a", eventbus.Typed(func(ctx context.Context, payload loose) error {
			if broken {
				return eventbus.Permanent(errors.New("broken"))
			}
			return encodes[loose](func(text string) { disk.note("%s", text) })(ctx, eventbus.Event{Payload: payload})
		}), eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		for _, literal := range literals {
			payload, edited := looseText(literal), looseText("7"+strings.TrimPrefix(literal, "-"))
			broken = true
			mustPublish(t, bus, "a", json.RawMessage(payload))
			synctest.Wait()
			require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), oneLetter(t, bus).ID, json.RawMessage(edited)))
			synctest.Wait()
			l := oneLetter(t, bus)
			require.Equal(t, payload, string(l.Original.(json.RawMessage)))
			broken = false
			require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
			require.Equal(t, []string{edited}, disk.took())
		}
		shutdown(t, bus)
	})
}

// A payload that is no JSON is refused as encoding/json refuses it, with interfaces and without.
func TestE5_ExactDecodingAcceptsWhatJSONAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		mustSubscribe(t, bus, "map", typed[map[string]any](func(any) {}))
		mustSubscribe(t, bus, "struct", typed[struct {
			A any
			B int
		}](func(any) {}))
		for _, text := range []string{
			``, ` `, `{`, `{"a":1`, `{"a":1}}`, `{"a":1} x`, `{"a":1}{"a":2}`, `{"a":01}`, `{"a":1.}`, `{"a":+1}`, `{"a":NaN}`, `[1]`, `7`,
			`{"B":9223372036854775808}`, `{"B":"7"}`, `{"a":"\x"}`, "{\"a\":\"\x01\"}", `{"a":1}`, " {\"a\":1}\n\t ", `{"a":1,"a":2}`,
		} {
			for eventType, into := range map[string]any{"map": new(map[string]any), "struct": new(struct {
				A any
				B int
			})} {
				_, err := bus.PublishAndWait(t.Context(), eventType, json.RawMessage(text))
				want := json.Unmarshal([]byte(text), into)
				if want == nil {
					require.NoError(t, err, text)
					continue
				}
				var refused *eventbus.PayloadTypeError
				require.ErrorAs(t, err, &refused, text)
				require.Equal(t, want, refused.Err, text)
				require.EqualError(t, refused.Err, want.Error())
			}
		}
		shutdown(t, bus)
	})
}

func TestE5_ExactAnyLiteral(t *testing.T) {
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,6})?`)
	rapid.Check(t, func(rt *rapid.T) {
		text := fmt.Sprintf(`{"a":[%s],"b":%s}`, number.Draw(rt, "a"), number.Draw(rt, "b"))
		var got []string
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t)
			mustSubscribe(t, bus, "*", encodes[map[string]any](func(text string) { disk.note("%s", text) }), eventbus.Named("s"))
			require.NoError(t, bus.Start(t.Context()))
			mustPublish(t, bus, "a", json.RawMessage(text))
			got = disk.took()
			shutdown(t, bus)
		})
		require.Equal(rt, []string{text}, got)
	})
}

// strict is a codec that refuses unknown members, and knows the type that it decodes.
type strict struct{}

func (strict) Marshal(payload any) ([]byte, error) { return json.Marshal(payload) }

func (strict) Unmarshal(data []byte, pointer any) error {
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	return in.Decode(pointer.(*loose))
}

// A codec decodes types that have a Go type of their own alone: it may refuse members, or know the type.
func TestE5_ExactNumbersLeaveTypesToTheCodec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithCodec(strict{}))
		mustSubscribe(t, bus, "*", eventbus.Typed(func(context.Context, loose) error { return nil }), eventbus.Named("typed"))
		require.NoError(t, bus.Start(t.Context()))
		_, err := bus.PublishAndWait(t.Context(), "a", map[string]any{"unknown": 1})
		require.ErrorContains(t, err, "unknown field")
		shutdown(t, bus)
	})
}
