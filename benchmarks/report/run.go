package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// modulePath is where the benchmarks are.
const modulePath = "github.com/surebus/eventbus/benchmarks"

// moduleDir is the directory of the benchmarks' module, which the command must be
// run in.
func moduleDir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", modulePath)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("the benchmarks are not found from here; run this in their directory: (cd benchmarks && GOWORK=off go run ./report): %w%s", err, said(err))
	}
	return string(bytes.TrimSpace(out)), nil
}

// build compiles the benchmarks.
func build(ctx context.Context, dir, into string) (binary string, err error) {
	binary = filepath.Join(into, "benchmarks.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, modulePath)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the benchmarks: %w\n%s", err, out)
	}
	return binary, nil
}

// step is a run with how much is done in it, and how many times it comes in a round.
type step struct {
	plan.Run
	benchtime, unit string
	times           int
}

// steps are those of a round whose names match. Quick, what no bound rests on comes once.
func steps(only *regexp.Regexp, benchtime time.Duration, quick bool) []step {
	var all []step
	needed := judged()
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			for _, rival := range c.Rivals {
				s := step{Run: plan.Run{Workload: w.Name, Case: c.Name, Rival: rival}, benchtime: c.Benchtime, unit: c.Unit, times: 1}
				if s.benchtime == "" {
					r, _ := plan.RivalNamed(rival)
					s.benchtime, s.times = max(benchtime, r.Settles).String(), 2
				}
				if c.Often && needed[s.Run] {
					s.times *= 2
				}
				if quick && !needed[s.Run] {
					s.times = 1
				}
				if only.MatchString(s.String()) {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// limit is how long a process may take.
const limit = 2 * time.Minute

// measure runs the steps of all rounds and tells how far it is. Every other round
// goes backwards, so that what slows a machine down gradually favours nobody.
func measure(ctx context.Context, binary string, steps []step, rounds int, progress io.Writer) (*results, error) {
	r := newResults(rounds)
	clock := newETA(steps, rounds)
	for round := range rounds {
		way := thereAndBack(steps, round%2 == 1)
		for done, i := range way {
			s := steps[i]
			begin := time.Now()
			out, err := runStep(ctx, binary, s)
			if err == nil {
				err = r.add(s.Run, round, out)
			}
			if err != nil {
				return nil, err
			}
			clock.took(i, time.Since(begin))
			fmt.Fprintf(progress, "round %d of %d, %3d of %d, %s: %s; %s to go\n", round+1, rounds, done+1, len(way), s.Run,
				quantity(r.at(round, s.Run, s.unit), s.unit), clock.left().Round(time.Second))
		}
	}
	return r, nil
}

// thereAndBack is the order of a round: all steps, then those that come again in the
// opposite order, and so on. A neighbour that takes a part of the machine does so for
// seconds, and most steps' runs are further apart: it seldom meets all.
func thereAndBack(steps []step, backwards bool) []int {
	var way []int
	for turn := range slices.MaxFunc(steps, func(a, b step) int { return a.times - b.times }).times {
		var these []int
		for i, s := range steps {
			if s.times > turn {
				these = append(these, i)
			}
		}
		if backwards != (turn%2 == 1) {
			slices.Reverse(these)
		}
		way = append(way, these...)
	}
	return way
}

// runStep runs one benchmark in a process of its own.
func runStep(ctx context.Context, binary string, s step) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	exactly := func(name string) string { return "^" + regexp.QuoteMeta(name) + "$" }
	pattern := exactly("Benchmark"+s.Workload) + "/" + exactly(s.Case) + "/" + exactly(s.Rival)
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", s.benchtime)
	cmd.WaitDelay = time.Second
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", s.Run, err, out, complaints.Bytes())
	}
	return out, nil
}

// eta estimates what is left from what the same steps took before.
type eta struct {
	last []time.Duration // of each step, 0 if it has not run
	runs []int           // of each step, that are left
}

func newETA(steps []step, rounds int) *eta {
	e := &eta{last: make([]time.Duration, len(steps)), runs: make([]int, len(steps))}
	for range rounds {
		for _, i := range thereAndBack(steps, false) {
			e.runs[i]++
		}
	}
	return e
}

func (e *eta) took(step int, d time.Duration) {
	e.last[step] = d
	e.runs[step]--
}

func (e *eta) left() time.Duration {
	var known time.Duration
	ran := 0
	for _, d := range e.last {
		if d > 0 {
			known += d
			ran++
		}
	}
	if ran == 0 {
		return 0
	}
	average := known / time.Duration(ran)
	var left time.Duration
	for i, d := range e.last {
		if d == 0 {
			d = average
		}
		left += d * time.Duration(e.runs[i])
	}
	return left
}
