package loader_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/loader"
)

// TestHostileDefinitions loads large definitions that are made to take
// long.
func TestHostileDefinitions(t *testing.T) {
	if testing.Short() {
		t.Skip("megabytes take their time")
	}
	many := func(bytes int, format string) string {
		var b strings.Builder
		for i := 0; b.Len() < bytes; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	const most = 400_000
	flow := func(steps, more string) string {
		return `{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"s"` + more + `,"steps":{"s":{"action":"Return"},` + steps + `}}`
	}
	for name, source := range map[string]string{
		"members that there are not": flow(`"t":{"action":"Return",`+many(most, `"m%d":0`)+`}`, ""),
		"steps that there are not":   flow(many(most/2, `"s%d":{"action":"Raise"}`)+`,"m":{"action":"Match","default":{"next":"s"},"cases":[`+many(most/2, `{"when":"{{x}}","next":"z%d"}`)+`]}`, ""),
		"long names that there are not": flow(`"m":{"action":"Match","default":{"next":"s"},"cases":[`+many(most/2, `{"when":"{{x}}","next":"`+strings.Repeat("z", 180)+`%d"}`)+`]},`+
			many(most/3, `"`+strings.Repeat("y", 180)+`%d":{"action":"Raise"}`), ""),
		"flows that there are not":          flow(`"g":{"action":"Gather","next":"s","calls":[`+many(most/2, `{"flow":"x%d"}`)+`]}`, `,"flows":{`+many(most/3, `"f%d":{"entrypoint":"s","steps":{"s":{"action":"Raise"}}}`)+`}`),
		"clauses":                           flow(`"c":{"action":"Call","call":{"provider":"mwl:provider.call/mwl/mock/v1"},"next":"s","catch":[`+many(most, `{"match":{"codes":["A%d"]},"next":"s"}`)+`]}`, ""),
		"codes":                             flow(`"c":{"action":"Call","call":{"provider":"mwl:provider.call/mwl/mock/v1"},"next":"s","catch":[{"match":{"codes":[`+many(most/2, `"A%d"`)+`]},"next":"s"},{"match":{"codes":[`+many(most/2, `"B%d"`)+`]},"next":"s"}]}`, ""),
		"arguments":                         flow(`"c":{"action":"Call","call":{"provider":"mwl:provider.call/shop/charge/v1","with":{`+many(most/10, `"e%d":"{{1}}"`)+`,`+many(most*8/10, `"a%d":0`)+`}},"next":"s"}`, ""),
		"variables":                         flow(`"p":{"action":"Pass","next":"s","assign":{`+many(most, `"v%d":0`)+`}}`, ""),
		"parameters":                        flow(`"p":{"action":"Raise"}`, `,"parameters":{"type":"object","required":[`+many(most/4, `"p%d"`)+`],"properties":{`+many(most/2, `"p%d":{"default":0}`)+`}}`),
		"parameters that are required":      flow(`"p":{"action":"Raise"}`, `,"parameters":{"type":"object","required":[`+many(15_000, `"p%d"`)+`],"properties":{`+many(20_000, `"p%d":{"default":0}`)+`}}`),
		"long names of steps":               flow(`"`+strings.Repeat("n", most/2)+`":{"action":"Pass","next":"s","assign":{`+many(most/2, `"v%d":0`)+`}}`, ""),
		"long names of steps with problems": flow(`"`+strings.Repeat("n", most/2)+`":{"action":"Pass","next":"s",`+many(most/2, `"v%d":0`)+`}`, ""),
		"long names of values":              flow(`"p":{"action":"Return","value":{"`+strings.Repeat("n", most/2)+`":[`+many(most/2, `%d`)+`]}}`, ""),
		"long names of wrong expressions":   flow(`"p":{"action":"Return","value":{"`+strings.Repeat("n", most/2)+`":[`+many(most/2, `"{{%d+}}"`)+`]}}`, ""),
		"long names of unknown names":       flow(`"p":{"action":"Return","value":{"`+strings.Repeat("n", most/2)+`":[`+many(most/20, `"{{a%d}}"`)+`]}}`, ""),
		"calls in a circle":                 flow(`"p":{"action":"Raise"}`, `,"flows":{"f":{"entrypoint":"s","steps":{"s":{"action":"Gather","next":"s","calls":[`+many(most, `{"flow":"f","comment":"%d"}`)+`]}}}}`),
		"middleware":                        flow(`"p":{"action":"Raise"}`, `,"middleware":[`+many(most, `{"provider":"mwl:provider.middleware/mwl/retry/v1","comment":"%d"}`)+`]`),
		"retries":                           flow(`"p":{"action":"Raise"}`, `,"middleware":[`+many(most, `{"provider":"mwl:provider.middleware/mwl/retry/v1","onEntry":{"with":{"policies":[{"match":{"codes":["A%d"]},"attempts":2}]}}}`)+`]`),
		"retries of a Step":                 flow(`"c":{"action":"Call","next":"c","call":{"provider":"mwl:provider.call/shop/charge/v1","with":{"amount":1}},"middleware":[`+many(most, `{"provider":"mwl:provider.middleware/mwl/retry/v1","onEntry":{"with":{"policies":[{"match":{"codes":["Provider.Call.X%d"]},"attempts":2}]}}}`)+`]}`, ""),
		"policies":                          flow(`"p":{"action":"Raise"}`, `,"middleware":[{"provider":"mwl:provider.middleware/mwl/retry/v1","onEntry":{"with":{"policies":[`+many(most, `{"match":{"codes":["A%d"]},"attempts":2}`)+`]}}}]`),
		"parts of parameters":               flow(`"c":{"action":"Call","next":"s","call":{"flow":"f","with":{`+many(most, `"a%d":9e9`)+`}}}`, `,"flows":{"f":{"entrypoint":"s","steps":{"s":{"action":"Return"}},"parameters":{"type":"object","additionalProperties":{"allOf":[`+many(36_000, `{"minimum":%d}`)+`]}}}}`),
		"arguments of many parameters":      flow(`"c":{"action":"Call","next":"s","call":{"flow":"f","with":{`+many(most, `"a%d":0`)+`}}}`, `,"flows":{"f":{"entrypoint":"s","steps":{"s":{"action":"Return"}},"parameters":{"type":"object","properties":{`+many(25_000, `"p%d":{}`)+`}}}}`),
		"arrays":                            flow(`"p":{"action":"Return","value":`+strings.Repeat("[", 120)+many(most, `%d`)+strings.Repeat("]", 120)+`}`, ""),
		"names that stand twice":            `{` + strings.Repeat(`"a":0,`, most/6) + `"a":0}`,
		"numbers":                           flow(`"p":{"action":"Return","value":`+strings.Repeat("9", most)+`}`, ""),
		"digits":                            flow(`"p":{"action":"Return","value":0.`+strings.Repeat("123456789", most/9)+`}`, ""),
		"flows that call one another":       flow(`"p":{"action":"Raise"}`, `,"flows":{"f0":{"entrypoint":"s","steps":{"s":{"action":"Raise"}}},`+chain(5_000)+`}`),
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.MaxBytes = 2 << 20
			o.MaxSteps, o.MaxExpressions = 0, 0 // problems that hide the others
			began := time.Now()
			root, problems, _ := loader.Load([]byte(source), o)
			took := time.Since(began)
			t.Log(took.Round(time.Millisecond), root != nil, len(problems))
			require.LessOrEqual(t, len(problems), 100)
			require.Less(t, took, time.Minute) // a busy machine, with the race detector
		})
	}
}

func chain(n int) string {
	var b strings.Builder
	for i := 1; i < n; i++ {
		if i > 1 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"f%d":{"entrypoint":"s","steps":{"s":{"action":"Call","call":{"flow":"f%d"},"next":"s"}}}`, i, i-1)
	}
	return b.String()
}
