package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// results holds a value per round for each run and unit.
type results struct {
	rounds int
	values map[plan.Run]map[string][]float64
	parts  map[plan.Run][]int // how many there have been in a round
	// skipped has the reason for each run that this machine cannot measure.
	skipped map[plan.Run]string
	// about is the configuration that the benchmarks print: cpu, goos, goarch.
	about map[string]string
}

func newResults(rounds int) *results {
	return &results{rounds: rounds, values: make(map[plan.Run]map[string][]float64), parts: make(map[plan.Run][]int), skipped: make(map[plan.Run]string), about: make(map[string]string)}
}

// said returns the number of rounds in words.
func (r *results) said() string {
	if r.rounds == 1 {
		return "1 round"
	}
	return fmt.Sprintf("%d rounds", r.rounds)
}

// add reads the output of a part of a run in a round, counted from 0. A round has the average of
// the times of its parts, as one long run would have. Of other units it has the maximum, so that a
// single part that allocates is visible.
func (r *results) add(run plan.Run, round int, output []byte) error {
	if r.parts[run] == nil {
		r.parts[run] = make([]int, r.rounds)
	}
	r.parts[run][round]++
	parts := r.parts[run][round]
	reader := benchfmt.NewReader(bytes.NewReader(output), run.String())
	found := 0
	for reader.Scan() {
		switch record := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return record
		case *benchfmt.Result:
			found++
			for _, key := range []string{"cpu", "goos", "goarch"} {
				if v := strings.TrimSpace(record.GetConfig(key)); v != "" { // some processors pad their names
					r.about[key] = v
				}
			}
			for _, v := range record.Values {
				value, old := v.Value, r.at(round, run, v.Unit)
				switch {
				case math.IsNaN(old):
				case v.Unit == plan.Time:
					value = old + (value-old)/float64(parts)
				default:
					value = max(value, old)
				}
				r.set(run, v.Unit, round, value)
			}
		}
	}
	if err := reader.Err(); err != nil {
		return err
	}
	if found != 1 {
		return fmt.Errorf("%s: %d results, want 1; it printed:\n%s", run, found, output)
	}
	return nil
}

func (r *results) set(run plan.Run, unit string, round int, value float64) {
	units := r.values[run]
	if units == nil {
		units = make(map[string][]float64)
		r.values[run] = units
	}
	if units[unit] == nil {
		units[unit] = slices.Repeat([]float64{math.NaN()}, r.rounds)
	}
	units[unit][round] = value
}

// at returns the value of a round, or NaN if it was not measured.
func (r *results) at(round int, run plan.Run, unit string) float64 {
	if values := r.values[run][unit]; values != nil {
		return values[round]
	}
	return math.NaN()
}

// summary is a median with its spread.
type summary struct {
	median, low, high float64
}

var errNothing = errors.New("nothing measured")

// summarize returns the median with its 95 % confidence interval, as benchstat does. With too few
// values for an interval, low and high are the extremes.
func summarize(values []float64) (summary, error) {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) == 0 {
		return summary{}, errNothing
	}
	sample := benchmath.NewSample(values, &benchmath.DefaultThresholds)
	s := benchmath.AssumeNothing.Summary(sample, 0.95)
	out := summary{s.Center, s.Lo, s.Hi}
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) {
		out.low, out.high = slices.Min(values), slices.Max(values)
	}
	return out, nil
}

// spread returns the distance from the median to the farther end, in percent. It is 0 for a median of 0.
func (s summary) spread() float64 {
	if s.median == 0 {
		return 0
	}
	return 100 * max(s.high-s.median, s.median-s.low) / math.Abs(s.median)
}

// of returns the summary of a run.
func (r *results) of(run plan.Run, unit string) (summary, error) {
	return summarize(r.values[run][unit])
}

// ratio returns the values of one run divided by those of another. It divides within each round,
// because a machine that slows down slows both.
func (r *results) ratio(run, by plan.Run, unit string) (summary, error) {
	return r.perRound(func(at lookup) float64 { return at(run, unit) / at(by, unit) })
}

// whySkipped returns the reason of a skipped run that the figure uses. It returns an empty string if
// the figure uses none.
func (r *results) whySkipped(figure func(lookup) float64) (reason string) {
	figure(func(run plan.Run, _ string) float64 {
		if why, ok := r.skipped[run]; ok {
			reason = why
		}
		return 1
	})
	return reason
}

// lookup returns a value of one round.
type lookup func(run plan.Run, unit string) float64

// perRound computes a figure in each round. It returns an error if a round lacks a value.
func (r *results) perRound(figure func(lookup) float64) (summary, error) {
	var figures []float64
	for round := range r.rounds {
		v := figure(func(run plan.Run, unit string) float64 { return r.at(round, run, unit) })
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return summary{}, errNothing
		}
		figures = append(figures, v)
	}
	return summarize(figures)
}
