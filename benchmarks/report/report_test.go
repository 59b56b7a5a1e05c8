package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/benchmarks/plan"
)

const printed = `goos: linux
goarch: amd64
pkg: github.com/surebus/eventbus/benchmarks
cpu: A Processor   
BenchmarkPublish/subscribers=1/channel-2   	 1914458	        59.82 ns/op	       0 B/op	       0 allocs/op
PASS
`

func TestResults_ReadWhatABenchmarkPrints(t *testing.T) {
	r := newResults(2)
	run := publish(1, "channel")
	require.NoError(t, r.add(run, 1, []byte(printed)))
	require.InDelta(t, 59.82e-9, r.at(1, run, plan.Time), 1e-15)
	require.Zero(t, r.at(1, run, plan.Bytes))
	require.True(t, math.IsNaN(r.at(0, run, plan.Time)), "nothing was measured in round 0")
	require.True(t, math.IsNaN(r.at(1, run, "no-unit")))
	require.Equal(t, map[string]string{"cpu": "A Processor", "goos": "linux", "goarch": "amd64"}, r.about)
}

func TestResults_OwnUnitsComeTidied(t *testing.T) {
	r := newResults(1)
	run := neighbour("alone")
	require.NoError(t, r.add(run, 0, []byte("BenchmarkNeighbour/alone/eventbus-2 \t 3000\t 100000 ns/op\t 4158 p50-ns\t 45744 p99-ns\n")))
	require.InDelta(t, 45744e-9, r.at(0, run, plan.P99), 1e-12)
	require.InDelta(t, 4158e-9, r.at(0, run, plan.P50), 1e-12)
}

func TestResults_RefuseWhatIsNotOneResult(t *testing.T) {
	r := newResults(1)
	require.ErrorContains(t, r.add(publish(1, "channel"), 0, []byte("PASS\n")), "Publish/subscribers=1/channel: 0 results")
	require.ErrorContains(t, r.add(publish(1, "channel"), 0, []byte(printed+printed)), "2 results")
	require.Error(t, r.add(publish(1, "channel"), 0, []byte("BenchmarkX 1 nonsense ns/op\n")))
}

func TestSummarize_MedianWithItsSpread(t *testing.T) {
	s, err := summarize([]float64{3, 1, 2})
	require.NoError(t, err)
	require.Equal(t, summary{2, 1, 3}, s, "too few for an interval: the extremes")
	require.InDelta(t, 50, s.spread(), 1e-9)

	s, err = summarize([]float64{1, 2, 3, 4, 5, 6, math.NaN()})
	require.NoError(t, err)
	require.InDelta(t, 3.5, s.median, 1e-9)
	require.LessOrEqual(t, s.low, 3.0)
	require.GreaterOrEqual(t, s.high, 4.0)

	_, err = summarize([]float64{math.NaN()})
	require.ErrorIs(t, err, errNothing)
	require.Zero(t, summary{}.spread())
}

// A machine that is half as fast in one round changes no ratio.
func TestResults_RatiosAreFormedWithinARound(t *testing.T) {
	r := newResults(3)
	for round, slower := range []float64{1, 10, 2} {
		r.set(publish(1, plan.Us), plan.Time, round, 100*slower)
		r.set(publish(1, "channel"), plan.Time, round, 50*slower)
	}
	s, err := r.ratio(publish(1, plan.Us), publish(1, "channel"), plan.Time)
	require.NoError(t, err)
	require.Equal(t, summary{2, 2, 2}, s)
	_, err = r.ratio(publish(1, plan.Us), publish(1, "cskr"), plan.Time)
	require.ErrorIs(t, err, errNothing)
}

// everything has a value for all that the plan measures: 1, but for what keeping
// the bounds demands.
func everything(rounds int) *results {
	r := newResults(rounds)
	r.about["cpu"] = "A Processor"
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			for _, rival := range c.Rivals {
				run := plan.Run{Workload: w.Name, Case: c.Name, Rival: rival}
				for round := range rounds {
					for _, unit := range append([]string{c.Unit}, c.More...) {
						v := 1.0
						switch {
						case unit == plan.Allocs || unit == plan.Growth || unit == plan.GoroutinesWaiting:
							v = 0
						case (w.Name == plan.Shared || w.Name == plan.Replicas) && unit != plan.Alone && unit != plan.Near && unit != plan.Plain:
							v = 1e-3
						case rival == "globloop":
							v = 2000
						case rival != plan.Us && rival != "channel":
							v = 200
						}
						r.set(run, unit, round, v)
					}
				}
			}
		}
	}
	return r
}

func TestBounds_AllAreJudged(t *testing.T) {
	for _, v := range judge(everything(3)) {
		require.True(t, v.known, "%s, %s", v.work, v.against)
		require.True(t, v.kept, "%s, %s: %s", v.work, v.against, v.got())
	}
	for _, v := range judge(newResults(3)) {
		require.False(t, v.known)
		require.False(t, v.kept)
		require.Equal(t, "not measured", v.says())
	}
}

// What is slow in one round, here and there, is no bound missed; what is slow in most is.
func TestBounds_TheWorstOfTheMediansCounts(t *testing.T) {
	r := everything(3)
	sizes := plan.NonMatching[1:]
	for round := range 3 {
		r.set(sized("NonMatching", "subscriptions", sizes[round%len(sizes)]), plan.Time, round, 2)
	}
	judged := func() verdict {
		i := slices.IndexFunc(bounds(), func(b bound) bool { return strings.Contains(b.work, "do not match") })
		return bounds()[i].judge(r)
	}
	require.True(t, judged().kept)
	require.InDelta(t, 1, judged().measured.median, 0)
	r.set(sized("NonMatching", "subscriptions", sizes[0]), plan.Time, 1, 3)
	require.False(t, judged().kept)
	require.InDelta(t, 2, judged().measured.median, 0)
}

// worseResult is a run whose value in a unit makes this bus miss the bound that the texts name.
type worseResult struct {
	work, against string
	run           plan.Run
	unit          string
	value         float64
}

// requireMissed checks that each bound is missed if the run of its row is worse. A bound that is left
// passes -check, so its reason is taken away.
func requireMissed(t *testing.T, bounds []bound, worse []worseResult) {
	t.Helper()
	require.Len(t, worse, len(bounds), "a case for each bound")
	for i, c := range worse {
		r := everything(3)
		for round := range 3 {
			r.set(c.run, c.unit, round, c.value)
		}
		b := bounds[i]
		b.left = ""
		v := b.judge(r)
		require.Contains(t, v.work, c.work)
		require.Contains(t, v.against, c.against)
		require.False(t, v.kept, "%s, %s: measured %s", v.work, v.against, v.got())

		var out bytes.Buffer
		err := conclude(&out, []verdict{v}, true, true)
		require.ErrorContains(t, err, v.against)
		require.ErrorContains(t, err, v.got())
		require.Contains(t, out.String(), "missed ")
		require.NoError(t, conclude(io.Discard, []verdict{v}, false, true), "without -check it is only printed")
	}
}

func TestBounds_EachCanBeMissed(t *testing.T) {
	requireMissed(t, generalBounds(), []worseResult{
		{"1 publisher", "channel", publish(1, plan.Us), plan.Time, 3.51},
		{"2 publishers", "channel", publishers(2, plan.Us), plan.Time, 3.51},
		{"1 or 2 publishers", "allocations", publish(1, plan.Us), plan.Allocs, 1.21},
		{"1 or 2 publishers", "bytes", publishers(2, plan.Us), plan.Bytes, 161},
		{"1 publisher", "watermill", publish(1, "watermill-router"), plan.Time, 49},
		{"1 publisher", "tailscale", publish(1, "tailscale"), plan.Time, 5.9},
		{"1 publisher", "cskr", publish(1, "cskr"), plan.Time, 1.2},
		{"1 publisher", "NATS", publish(1, "nats"), plan.Time, 1.7},
		{"each further", "channel hop", publish(10, plan.Us), plan.Time, 1 + 9*1.01},
		{"wait", "channel", wait(plan.Us), plan.Time, 2.51},
		{"wait", "watermill", wait("watermill-router"), plan.Time, 11.9},
		{"protected handler", "failsafe", protected("failsafe"), plan.Time, 6.9},
		{"protected handler", "gobreaker", protected("gobreaker"), plan.Time, 4.9},
		{"repeated types", "sublist", routing(10_000, "repeated", "sublist-cache"), plan.Time, 1.9},
		{"repeated types", "allocations", routing(10_000, "repeated", plan.Us), plan.Allocs, 0.003},
		{"unique types", "sublist", routing(10_000, "unique", "sublist"), plan.Time, 2.4},
		{"unique types", "loop", routing(10_000, "unique", "globloop"), plan.Time, 499},
		{"unique types", "heap", routing(10_000, "unique", plan.Us), plan.Growth, 257 << 10},
		{"unique types", "1,000 globs", routing(1_000, "unique", plan.Us), plan.Time, 0.39},
		{"storm", "bytes", storm("waiting", plan.Us), plan.Waiting, 351},
		{"storm", "watermill", storm("waiting", "watermill-router"), plan.Waiting, 12},
		{"storm", "goroutines", storm("waiting", plan.Us), plan.GoroutinesWaiting, 0.002},
		{"storm", "backoff", storm("fails-once", plan.Us), plan.Drain, 1.11},
		{"fast subscriber", "p99", neighbour("beside"), plan.P99, 1.011},
		{"64 publishers", "throughput", publishers(16, plan.Us), plan.Time, 2.23},
		{"do not match", "highest", sized("NonMatching", "subscriptions", 100_000), plan.Time, 1.41},
		{"queued", "highest", sized("Backlog", "queued", 100_000), plan.Time, 1.41},
	})
}

// A bound that is left is printed with its reason and passes -check. Without the miss it is kept.
func TestConclude_ABoundThatIsLeftPassesWithItsReason(t *testing.T) {
	b := bound{work: "work", against: "cost", limit: 2, figure: value(publish(1, plan.Us), plan.Time), left: "two days were not enough"}
	r := everything(3)
	for round := range 3 {
		r.set(publish(1, plan.Us), plan.Time, round, 3)
	}
	missed := b.judge(r)
	require.False(t, missed.kept)
	require.Equal(t, "left: two days were not enough", missed.says())
	var out bytes.Buffer
	require.NoError(t, conclude(&out, []verdict{missed}, true, true))
	require.Equal(t, "left    work, cost: ≤ 2 ×, measured 3 ×: two days were not enough\n", out.String())
	require.Contains(t, report(r, machine{}, []verdict{missed}, settings{}), "| work | cost | ≤ 2 × | 3 × | left: two days were not enough |\n")

	kept := b.judge(everything(3))
	require.Equal(t, "kept", kept.says())
	unknown := b.judge(newResults(3))
	require.Error(t, conclude(io.Discard, []verdict{unknown}, true, true), "a bound that is left must be measured")
}

// A bound over several sizes is missed when one of them is, whichever.
func TestBounds_EverySizeIsJudged(t *testing.T) {
	for work, runs := range map[string][]plan.Run{
		"2 to 64":      runsOf(plan.Publishers[1:], func(n int) plan.Run { return publishers(n, plan.Us) }),
		"do not match": runsOf(plan.NonMatching[1:], func(n int) plan.Run { return sized("NonMatching", "subscriptions", n) }),
		"queued":       runsOf(plan.Queued[1:], func(n int) plan.Run { return sized("Backlog", "queued", n) }),
	} {
		i := slices.IndexFunc(bounds(), func(b bound) bool { return b.figures != nil && strings.Contains(b.work, work) })
		for _, run := range runs {
			r := everything(3)
			for round := range 3 {
				r.set(run, plan.Time, round, 2.3)
			}
			v := bounds()[i].judge(r)
			require.True(t, v.known, "%s", run)
			require.False(t, v.kept, "%s", run)
		}
	}
}

// What is not measured in each round is not taken for kept.
func TestConclude_ABoundThatIsNotMeasuredIsNotKept(t *testing.T) {
	for name, spoil := range map[string]func(r *results){
		"no such unit":      func(r *results) { delete(r.values[routing(10_000, "unique", plan.Us)], plan.Growth) },
		"not in each round": func(r *results) { r.set(routing(10_000, "unique", plan.Us), plan.Growth, 1, math.NaN()) },
		"no number":         func(r *results) { r.set(routing(10_000, "unique", plan.Us), plan.Growth, 1, math.Inf(-1)) },
	} {
		r := everything(3)
		spoil(r)
		var out bytes.Buffer
		require.ErrorContains(t, conclude(&out, judge(r), true, true), "heap growth", name)
		require.Contains(t, out.String(), "unknown ", name)
		require.NoError(t, conclude(io.Discard, judge(r), false, true), name)
		require.NoError(t, conclude(io.Discard, judge(r), true, false), "only some were to be measured")
	}
	require.ErrorContains(t, conclude(io.Discard, judge(newResults(1)), true, false), "-bench")
}

// Benchmarks measure what the tables and the bounds ask for, under the same names.
func TestMeasure_EveryUnitOfThePlanIsPrinted(t *testing.T) {
	dir, err := moduleDir(t.Context())
	require.NoError(t, err)
	binary, err := build(t.Context(), dir, t.TempDir())
	require.NoError(t, err)
	ours, skipped := measurableHere(t, steps(regexp.MustCompile("/"+plan.Us+"$"), time.Second))
	require.NoError(t, buildPrograms(t.Context(), dir, binary, ours))
	for i := range ours {
		ours[i].count, ours[i].times = 1, 1
	}
	r, err := measure(t.Context(), binary, ours, 1, io.Discard)
	require.NoError(t, err)
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			run := plan.Run{Workload: w.Name, Case: c.Name, Rival: plan.Us}
			if skipped[run] != "" {
				continue
			}
			for _, unit := range append([]string{c.Unit}, c.More...) {
				require.Contains(t, r.values[run], unit, "%s", run)
			}
		}
	}
}

func TestBounds_AsReadersSeeThem(t *testing.T) {
	ratio := bound{limit: 3.5}
	require.Equal(t, "≤ 3.5 ×", ratio.demand())
	require.Equal(t, "≤ 1.2", bound{limit: 1.2, unit: plan.Allocs}.demand())
	require.Equal(t, "≥ 50 ×", bound{limit: 50, least: true}.demand())
	v := verdict{bound: ratio, measured: summary{4.5, 4.25, 5}, known: true}
	require.Equal(t, "4.5 × (4.25 × to 5 ×)", v.got())
	require.Equal(t, "**missed**", v.says())
	require.Equal(t, "2 ×", verdict{bound: ratio, measured: summary{2, 2, 2}, known: true}.got())
}

func TestQuantity(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  string
		want  string
	}{
		{59.82e-9, plan.Time, "59.8 ns"},
		{9.999e-9, plan.Time, "10 ns"},
		{999.9e-9, plan.Time, "1 µs"},
		{1.234e-3, plan.P99, "1.23 ms"},
		{161_000, plan.Retained, "161 kB"},
		{1.01e9, plan.Retained, "1.01 GB"},
		{-22_456, plan.Retained, "-22.5 kB"},
		{0, plan.Allocs, "0"},
		{10_013, plan.Goroutines, "10,013"},
		{0.00009, plan.GoroutinesWaiting, "9e-05"},
		{1.05, plan.Drain, "1.05 ×"},
		{2300, plan.Time, "2,300 s"},
	} {
		require.Equal(t, c.want, quantity(c.value, c.unit))
	}
	require.Equal(t, "1,234,567", figures(1234567))
}

func TestChart_IsWellFormedAndToScale(t *testing.T) {
	type rect struct {
		Width float64 `xml:"width,attr"`
		Class string  `xml:"class,attr"`
	}
	var svg struct {
		XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
		Texts   []string `xml:"text"`
		Rects   []rect   `xml:"rect"`
	}
	require.NoError(t, xml.Unmarshal([]byte(chart("Title & <more>", []group{{"case", []bar{
		{"us", "10 ns", 10, true}, {"them", "20 ns", 20, false}, {"none", "0", 0, false},
	}}})), &svg))
	require.Contains(t, svg.Texts, "Title & <more>")
	require.Contains(t, svg.Texts, "shorter is better, linear scale")
	require.Len(t, svg.Rects, 3)
	require.Equal(t, "ours", svg.Rects[0].Class)
	require.InDelta(t, svg.Rects[1].Width, 2*svg.Rects[0].Width, 0.2)
	require.Zero(t, svg.Rects[2].Width)

	svg.Texts, svg.Rects = nil, nil
	require.NoError(t, xml.Unmarshal([]byte(chart("t", []group{{"case", []bar{{"a", "", 1, false}, {"b", "", 10, false}, {"c", "", 100, false}}}})), &svg))
	require.Contains(t, svg.Texts, "shorter is better, logarithmic scale")
	step := svg.Rects[1].Width - svg.Rects[0].Width
	require.InDelta(t, step, svg.Rects[2].Width-svg.Rects[1].Width, 0.2, "a decade is as long as the next")
	require.Greater(t, svg.Rects[0].Width, 10.0)
}

func TestChart_LabelsFitAndHaveNoMarks(t *testing.T) {
	for _, r := range plan.Rivals {
		require.LessOrEqual(t, len(label(r)), 45, label(r))
		require.NotContains(t, label(r), "`")
	}
	us, _ := plan.RivalNamed(plan.Us)
	require.Equal(t, "this bus", label(us))
}

func TestWrite_ReportsEveryRivalAndDrawsEveryWorkload(t *testing.T) {
	dir := t.TempDir()
	r := everything(3)
	m := describe(r, []module{{"example.org/rival", "v1.2.3"}}, "0.31")
	require.NoError(t, write(dir, r, m, judge(r), settings{"go run ./report -rounds 3", 500 * time.Millisecond}))
	text, err := os.ReadFile(filepath.Join(dir, "RESULTS.md"))
	require.NoError(t, err)
	for _, want := range []string{"A Processor", "example.org/rival | v1.2.3", "500ms", "3 rounds", "go run ./report -rounds 3", "load before | 0.31", m.goVersion, "≤ 3.5 ×"} {
		require.Contains(t, string(text), want)
	}
	for _, w := range plan.Workloads {
		require.Contains(t, string(text), "## "+w.Title+"\n")
		drawn, err := os.ReadFile(filepath.Join(dir, chartFile(w)))
		require.NoError(t, err)
		require.NoError(t, xml.Unmarshal(drawn, new(struct{})), chartFile(w))
		for _, c := range w.Cases {
			rows := table(r, w, c)
			require.Contains(t, string(text), rows)
			require.Equal(t, 2+len(c.Rivals), strings.Count(rows, "\n"), "a row each:\n%s", rows)
		}
	}
	// Tables keep their columns.
	columns := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		n := strings.Count(line, "|")
		if columns == 0 {
			columns = n
		}
		require.Equal(t, columns, n, "%s", line)
	}
}

func TestComparison_OnlyTheTablesAreReplaced(t *testing.T) {
	name := filepath.Join(t.TempDir(), "comparison.md")
	require.NoError(t, os.WriteFile(name, []byte("before\n"+measuredBegin+"\n\nold\n\n"+measuredEnd+"\nafter\n"), 0o644))
	r := newResults(1)
	r.set(publish(1, plan.Us), plan.Time, 0, 100e-9)
	r.set(publish(1, "cskr"), plan.Time, 0, 250e-9)
	r.set(plan.Accept(64, "goqite"), plan.Rate, 0, 4304)
	for range 2 {
		require.NoError(t, writeComparison(name, comparisonTables(r, describe(r, nil, "0.1"))))
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, string(text), "old")
		require.Contains(t, string(text), "| cskr/pubsub | 250 ns (2.5 ×) |  |  |  |  |  |\n")
		require.Contains(t, string(text), "| goqite |  | 4,304 |  |  |\n")
		require.True(t, strings.HasPrefix(string(text), "before\n"+measuredBegin+"\n"))
		require.True(t, strings.HasSuffix(string(text), measuredEnd+"\nafter\n"))
	}
	_, err := between("nothing", "table")
	require.ErrorContains(t, err, measuredBegin)
}

// The report measures for minutes before it writes, so the page is looked at here.
func TestComparison_ThePageHasTheMarks(t *testing.T) {
	text, err := os.ReadFile("../../docs/comparison.md")
	require.NoError(t, err)
	_, err = between(string(text), "table")
	require.NoError(t, err)
}

func TestTable_RatiosByThisBus(t *testing.T) {
	w, _ := plan.WorkloadNamed("Publish")
	r := newResults(1)
	r.set(publish(1, plan.Us), plan.Time, 0, 100e-9)
	r.set(publish(1, "cskr"), plan.Time, 0, 250e-9)
	require.Equal(t, ""+
		"| 1 subscriber | time | ± | × this bus | allocations | allocated |\n"+
		"| --- | --- | --- | --- | --- | --- |\n"+
		"| **this bus** | 100 ns | 0 % | | | |\n"+
		"| cskr/pubsub | 250 ns | 0 % | 2.5 × | | |\n", table(r, w, w.Cases[0]))
}

func TestSteps_AsOftenAsBoundsNeed(t *testing.T) {
	names := make(map[string]bool)
	for _, s := range steps(regexp.MustCompile(""), 60*time.Millisecond) {
		require.GreaterOrEqual(t, s.benchtime, 60*time.Millisecond, s)
		require.False(t, names[s.String()], "%s comes twice", s)
		names[s.String()] = true
	}
	for name, times := range map[string]int{
		"Publish/subscribers=1/eventbus":            often,
		"Publish/subscribers=1/channel":             often,
		"Publish/subscribers=1/cskr":                judged,
		"Publish/subscribers=1/kelindar":            other,
		"Publish/subscribers=10/eventbus":           often,
		"Publish/subscribers=10/channel":            other,
		"Publishers/publishers=2/channel":           often,
		"Publishers/publishers=64/eventbus":         often,
		"Publishers/publishers=64/channel":          other,
		"NonMatching/subscriptions=1/eventbus":      often,
		"NonMatching/subscriptions=100000/eventbus": judged,
		"Wait/subscribers=1/eventbus":               judged,
		"Storm/waiting/eventbus":                    1,
		"Storm/waiting/goroutine":                   1,
		"Neighbour/beside/eventbus":                 1,      // a quantile, not a time to average
		"Backlog/queued=1000/eventbus":              judged, // counted, but a time
		"Backlog/queued=1000/channel":               other,
		"Startup/subscriptions=10000/eventbus":      other,
	} {
		some := steps(regexp.MustCompile("^"+name+"$"), 60*time.Millisecond)
		require.Len(t, some, 1, name)
		require.Equal(t, times, some[0].times, name)
	}
	require.Contains(t, parts(), "4 times if the run is close to a bound, twice if a bound uses it, once otherwise.")
	require.Contains(t, parts(), "a fixed number of events: a retry storm, a fast subscriber beside a slow one, an idle bus")
	slow := regexp.MustCompile("^Publish/subscribers=1/watermill-router$")
	require.Equal(t, 150*time.Millisecond, steps(slow, 60*time.Millisecond)[0].benchtime, "it takes that long to settle")
	require.Equal(t, 250*time.Millisecond, steps(slow, 250*time.Millisecond)[0].benchtime)
	require.Equal(t, 1, steps(regexp.MustCompile("^Storm/waiting/eventbus$"), time.Second)[0].count)
	require.Empty(t, steps(regexp.MustCompile("no such"), 60*time.Millisecond))
}

// What runs more often than others is what a bound rests on.
func TestSteps_OftenIsForBounds(t *testing.T) {
	needed := underBounds()
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			for _, rival := range c.Often {
				require.Contains(t, needed, plan.Run{Workload: w.Name, Case: c.Name, Rival: rival})
				require.Zero(t, c.Count, "%s runs once", c.Name)
			}
		}
	}
}

// What comes often is dealt out over the round, what comes twice meets what it is compared
// with, and what comes once lies between.
func TestDealtOut(t *testing.T) {
	some := []step{{times: 4}, {times: 1}, {times: 2}, {times: 1}, {times: 4}, {times: 2}, {times: 1}}
	require.Equal(t, []int{
		0, 1, 2, 4, 5,
		4, 3, 0,
		0, 2, 4, 5, 6,
		4, 0,
	}, dealtOut(some, false))
	require.Equal(t, []int{
		5, 4, 2, 1, 0,
		0, 3, 4,
		6, 5, 4, 2, 0,
		0, 4,
	}, dealtOut(some, true))
	require.Equal(t, []int{0}, dealtOut([]step{{times: 1}}, true))
}

func TestBusy(t *testing.T) {
	require.False(t, busy("0.31", 2))
	require.True(t, busy("0.51", 2))
	require.False(t, busy("unknown", 2))
}

func TestETA_FromWhatTheSameStepsTook(t *testing.T) {
	e := newETA([]step{{times: 1}, {times: 2}}, 3)
	require.Zero(t, e.left())
	e.took(0, 4*time.Second)
	require.Equal(t, (2*4+6*4)*time.Second, e.left(), "the other step is taken for an average one")
	e.took(1, time.Second)
	require.Equal(t, (2*4+5*1)*time.Second, e.left())
}

func TestRun_RefusesWhatItDoesNotUnderstand(t *testing.T) {
	for args, want := range map[string]string{
		"-bench [":      "-bench",
		"-bench nobody": "matches nothing",
		"-rounds -1":    "at least 1",
		"quick":         `unexpected argument "quick"`,
		"-nonsense":     "not defined",
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard)
		require.ErrorContains(t, err, want)
	}
	require.Empty(t, said(errors.New("no process")))
}

// script is a program that stands for the benchmarks.
func script(t *testing.T, lines ...string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	name := filepath.Join(t.TempDir(), "benchmarks.test")
	require.NoError(t, os.WriteFile(name, []byte("#!/bin/sh\n"+strings.Join(lines, "\n")+"\n"), 0o755))
	return name
}

// A benchmark that fails ends the report with what it printed.
func TestMeasure_AFailedBenchmarkIsTold(t *testing.T) {
	failing := script(t, "echo 'it was said' >&2", "exit 3")
	var progress bytes.Buffer
	_, err := measure(t.Context(), failing, []step{{publish(1, "channel"), 0, 1, plan.Time, 1}}, 1, &progress)
	require.ErrorContains(t, err, "Publish/subscribers=1/channel")
	require.ErrorContains(t, err, "it was said")
}

// Rounds go there and back, and every other one begins at the end.
func TestMeasure_TellsHowFarItIs(t *testing.T) {
	binary := script(t, "echo 'BenchmarkX 10 5 ns/op'")
	all := []step{
		{publish(1, "channel"), time.Second, 0, plan.Time, 3},
		{publish(1, "cskr"), 0, 1, plan.Time, 1},
		{publish(1, "nats"), time.Second, 0, plan.Time, 2},
	}
	var progress bytes.Buffer
	r, err := measure(t.Context(), binary, all, 2, &progress)
	require.NoError(t, err)
	var told []string
	for line := range strings.Lines(progress.String()) {
		told = append(told, strings.Split(line, ";")[0])
	}
	require.Equal(t, []string{
		"round 1 of 2,   1 of 6, Publish/subscribers=1/channel: 5 ns",
		"round 1 of 2,   2 of 6, Publish/subscribers=1/cskr: 5 ns",
		"round 1 of 2,   3 of 6, Publish/subscribers=1/nats: 5 ns",
		"round 1 of 2,   4 of 6, Publish/subscribers=1/nats: 5 ns",
		"round 1 of 2,   5 of 6, Publish/subscribers=1/channel: 5 ns",
		"round 1 of 2,   6 of 6, Publish/subscribers=1/channel: 5 ns",
		"round 2 of 2,   1 of 6, Publish/subscribers=1/nats: 5 ns",
		"round 2 of 2,   2 of 6, Publish/subscribers=1/cskr: 5 ns",
		"round 2 of 2,   3 of 6, Publish/subscribers=1/channel: 5 ns",
		"round 2 of 2,   4 of 6, Publish/subscribers=1/channel: 5 ns",
		"round 2 of 2,   5 of 6, Publish/subscribers=1/nats: 5 ns",
		"round 2 of 2,   6 of 6, Publish/subscribers=1/channel: 5 ns",
	}, told)
	s, err := r.of(all[0].Run, plan.Time)
	require.NoError(t, err)
	require.Equal(t, "5 ns", fmt.Sprint(quantity(s.median, plan.Time)))
}

// A run comes in parts: a round has the average of the times, and the most of what else they took.
func TestResults_AverageTimeAndTheMostOfTheRest(t *testing.T) {
	r := newResults(2)
	run := publish(1, "channel")
	for _, printed := range []string{"7 ns/op 1 B/op", "5 ns/op 2 B/op", "4 ns/op 3 B/op", "8 ns/op 2 B/op"} {
		require.NoError(t, r.add(run, 1, []byte("BenchmarkX 10 "+printed+"\n")))
	}
	require.InDelta(t, 6e-9, r.at(1, run, plan.Time), 1e-12)
	require.InDelta(t, 3, r.at(1, run, "B/op"), 0)
	require.True(t, math.IsNaN(r.at(0, run, plan.Time)))
	require.NoError(t, r.add(run, 0, []byte("BenchmarkX 10 9 ns/op\n")))
	require.InDelta(t, 9e-9, r.at(0, run, plan.Time), 1e-12)
	require.InDelta(t, 6e-9, r.at(1, run, plan.Time), 1e-12)
}

// A time to run becomes a number of operations once it is known how long one takes.
func TestMeasure_WhatThePaceIsIsFoundOutOnce(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	binary := script(t, `for last; do :; done; echo "$last" >> '`+asked+`'`, "echo 'BenchmarkX 10 4000000 ns/op'")
	_, err := measure(t.Context(), binary, []step{
		{publish(1, "channel"), time.Second, 0, plan.Time, 2},
		{publish(1, "cskr"), time.Millisecond, 0, plan.Time, 1},
		{publish(1, "nats"), time.Second, 7, plan.Time, 1},
	}, 2, io.Discard)
	require.NoError(t, err)
	told, err := os.ReadFile(asked)
	require.NoError(t, err)
	require.Equal(t, []string{"1s", "1ms", "7x", "250x", "1x", "250x", "250x", "7x"}, strings.Fields(string(told)))
}
