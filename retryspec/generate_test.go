package retryspec_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// generator makes documents, most of them valid or nearly so, as text.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 17))} }

func pick[T any](g generator, of ...T) T { return of[g.IntN(len(of))] }

// often is true in most cases: a document has many places to break it.
func (g generator) often() bool { return g.IntN(40) > 0 }

// anything is a JSON value that hardly ever fits.
func (g generator) anything() string {
	return pick(g, "null", "true", "false", `""`, `"x"`, `"fixed"`, `"PT1S"`, `"1"`, "[]", "{}", `["x"]`, `{"a":1}`, `[null]`,
		"0", "-0", "-1", "-1e-9", "0.5", "1", "1.0", "5.0", "5e0", "2.5", "1e3", "1e300", "1e400", "-1e400",
		"9007199254740991", "9007199254740992", "12345678901234567890", "1.7976931348623157e308", "1e-400", "0.99", "[[1]]")
}

// usually is the value, or else anything.
func (g generator) usually(value string) string {
	if g.often() {
		return value
	}
	return g.anything()
}

// object has some of the members, in any order, sometimes one that is misspelt.
// The first ones are always there.
func (g generator) object(always int, members ...string) string {
	var some []string
	for i, m := range members {
		if i < always && g.often() || g.IntN(2) == 0 {
			some = append(some, m)
		}
	}
	if !g.often() {
		some = append(some, fmt.Sprintf("%q:%s", pick(g, "", "x", "Version", "max_atempts", "Policies", "match", "stop"), g.anything()))
	}
	g.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	seen := make(map[string]bool)
	var once []string
	for _, m := range some {
		if name, _, _ := strings.Cut(m, ":"); !seen[name] {
			seen[name] = true
			once = append(once, m)
		}
	}
	return "{" + strings.Join(once, pick(g, ",", ", ", ",\n\t")) + "}"
}

func (g generator) member(name, value string) string {
	return strconv.Quote(name) + ":" + g.usually(value)
}

func (g generator) array(least, most int, item func() string) string {
	items := make([]string, least+g.IntN(most-least+1))
	for i := range items {
		items[i] = g.usually(item())
	}
	return "[" + strings.Join(items, ",") + "]"
}

func (g generator) number(least float64) string {
	return pick(g,
		strconv.FormatFloat(least, 'g', -1, 64),
		strconv.FormatFloat(least+g.ExpFloat64(), 'g', -1, 64),
		strconv.FormatFloat(least+float64(g.IntN(1000)), 'f', 1, 64),
		strconv.FormatFloat(least+1e18*g.Float64(), 'e', -1, 64),
	)
}

func (g generator) name() string {
	return strconv.Quote(pick(g, "ValueError", "TimeoutError", "é", "", "A.B", "a b", "success"))
}

func (g generator) policy() string {
	names := func() string { return g.array(0, 3, g.name) }
	return g.usually(g.object(0,
		g.member("version", pick(g, "1", "1.0", "1", "2")),
		g.member("stop", g.object(0,
			g.member("max_attempts", pick(g, "null", "1", "5.0", "7", "1e3", "9007199254740991")),
			g.member("max_delay", pick(g, "null", g.number(0))),
		)),
		g.member("wait", g.object(0,
			g.member("strategy", pick(g, `"fixed"`, `"exponential"`, `"exponential_jitter"`)),
			g.member("delay", g.number(0)),
			g.member("initial_delay", g.number(0)),
			g.member("multiplier", g.number(1)),
			g.member("max_delay", g.number(0)),
		)),
		g.member("retry", g.object(0,
			g.member("include_errors", names()),
			g.member("exclude_errors", names()),
		)),
		g.member("owner", g.anything()),
	))
}

func (g generator) duration() string {
	var b strings.Builder
	b.WriteString(pick(g, "", "", "", "-", "+"))
	b.WriteString("P")
	part := func(letter string) {
		if g.IntN(3) > 0 {
			return
		}
		fmt.Fprintf(&b, "%d", g.IntN(pick(g, 3, 100, 1_000_000_000)))
		if g.IntN(8) == 0 {
			fmt.Fprintf(&b, "%s%d", pick(g, ".", ",", ".."), g.IntN(1e9))
		}
		b.WriteString(letter)
	}
	for _, letter := range []string{"Y", "M", "W", "D"} {
		part(letter)
	}
	if g.IntN(4) > 0 {
		b.WriteString("T")
		for _, letter := range []string{"H", "M", "S"} {
			part(letter)
		}
	}
	if g.IntN(20) == 0 {
		b.WriteString(pick(g, "1S", "S", "T", "1H", " ", "\n", "PT1S"))
	}
	return strconv.Quote(pick(g, b.String(), "PT1S", "PT1M30S", "P1D", "PT0.5S"))
}

func (g generator) code() string {
	return strconv.Quote(pick(g, "*", "A", "A.*", "A.B", "A.B.*", "Provider.Call.Http.NotFound", "é.*",
		pick(g, "*", "", ".", "A.", ".A", "A..B", "A.*.B", "A.B*", "*.A", ".*", "A.*.*", "a b.*", "A\n", "**")))
}

func (g generator) rules() string {
	policy := func() string {
		return g.object(2,
			g.member("match", g.object(pick(g, 1, 1, 1, 0),
				g.member("codes", g.array(1, 3, g.code)),
				g.member("types", g.array(1, 2, func() string {
					return pick(g, `"error"`, `"timeout"`, `"acme.throttled"`, `"cancellation"`, pick(g, `"error"`, `"success"`, `""`))
				})),
				g.member("retryable", pick(g, "true", "false")),
			)),
			g.member("attempts", pick(g, "1", "3", "4.0", "9007199254740991")),
			g.member("backoff", g.object(1,
				g.member("initial", g.duration()),
				g.member("rate", g.number(1)),
				g.member("max", g.duration()),
				g.member("jitter", pick(g, `"none"`, `"full"`, `"equal"`, `"decorrelated"`)),
			)),
		)
	}
	return g.usually(g.object(1, g.member("policies", g.array(1, 2, policy))))
}
