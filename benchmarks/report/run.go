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

// modulePath is the path of the benchmarks' module.
const modulePath = "github.com/surebus/eventbus/benchmarks"

// moduleDir returns the directory of the benchmarks' module. The command must run in that module.
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

// step is a run with the number of its parts in a round.
type step struct {
	plan.Run
	// benchtime is the time of a part. A count other than 0 replaces it: the number of operations.
	benchtime time.Duration
	count     int
	unit      string
	times     int
}

// The number of parts of a run in a round.
const (
	often  = 4 // of runs that the plan names
	judged = 2 // of the other runs that bounds use
	other  = 1
)

// steps returns the steps of a round whose names match.
func steps(only *regexp.Regexp, benchtime time.Duration) []step {
	var all []step
	needed := underBounds()
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			for _, rival := range c.Rivals {
				r, _ := plan.RivalNamed(rival)
				s := step{Run: plan.Run{Workload: w.Name, Case: c.Name, Rival: rival}, benchtime: max(benchtime, r.Settles, w.Shortest), count: c.Count, unit: c.Unit}
				switch {
				case countedOnce(c):
					s.times = 1
				case slices.Contains(c.Often, rival):
					s.times = often
				case needed[s.Run]:
					s.times = judged
				default:
					s.times = other
				}
				if only.MatchString(s.String()) {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// countedOnce reports whether a case has a fixed number of operations and a unit other than time.
// Such a case runs once in a round, because only times are averaged over the parts.
func countedOnce(c plan.Case) bool { return c.Count > 0 && c.Unit != plan.Time }

// limit is the timeout of a process.
const limit = 2 * time.Minute

// measure runs the steps of all rounds and prints its progress. Every other round runs backwards,
// so that a machine that slows down gradually favours no rival.
func measure(ctx context.Context, binary string, steps []step, rounds int, progress io.Writer) (*results, error) {
	r := newResults(rounds)
	clock := newETA(steps, rounds)
	paces := make([]float64, len(steps)) // seconds an operation, 0 if not known
	for round := range rounds {
		order := dealtOut(steps, round%2 == 1)
		for done, i := range order {
			s := steps[i]
			begin := time.Now()
			out, err := runStep(ctx, binary, s, paces[i])
			if err == nil {
				err = r.add(s.Run, round, out)
				r.addRate(s.Run, round)
			}
			if err != nil {
				return nil, err
			}
			clock.took(i, time.Since(begin))
			paces[i] = r.at(round, s.Run, plan.Time)
			fmt.Fprintf(progress, "round %d of %d, %3d of %d, %s: %s; %s to go\n", round+1, rounds, done+1, len(order), s.Run,
				quantity(r.at(round, s.Run, s.unit), s.unit), clock.left().Round(time.Second))
		}
	}
	return r, nil
}

// dealtOut returns the order of the steps in a round. A round has as many turns as the step with
// the most parts, alternately forwards and backwards. Steps with fewer parts are spread over the
// turns. A disturbance of the machine, of seconds or a minute, then slows all steps alike.
func dealtOut(steps []step, backwards bool) []int {
	most := slices.MaxFunc(steps, func(a, b step) int { return a.times - b.times }).times
	turns := make([][]int, most)
	once := 0
	for i, s := range steps {
		first := 0
		if s.times == 1 {
			first = once % most
			once++
		}
		for n := range s.times {
			turn := first + n*most/s.times
			turns[turn] = append(turns[turn], i)
		}
	}
	var order []int
	for n, turn := range turns {
		if backwards != (n%2 == 1) {
			slices.Reverse(turn)
		}
		order = append(order, turn...)
	}
	return order
}

// runStep runs one benchmark in a process of its own. If the pace is known, it passes the number of
// operations, which saves the benchmark the time to find that number.
func runStep(ctx context.Context, binary string, s step, pace float64) ([]byte, error) {
	if program, synchronous := plan.ProgramOf(s.Run); program != "" {
		return runProgram(ctx, binary, program, synchronous, s)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	exactly := func(name string) string { return "^" + regexp.QuoteMeta(name) + "$" }
	pattern := exactly("Benchmark"+s.Workload) + "/" + exactly(s.Case) + "/" + exactly(s.Rival)
	benchtime := s.benchtime.String()
	switch {
	case s.count > 0:
		benchtime = fmt.Sprintf("%dx", s.count)
	case pace > 0:
		benchtime = fmt.Sprintf("%.0fx", max(1, s.benchtime.Seconds()/pace))
	}
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", benchtime)
	cmd.WaitDelay = time.Second
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", s.Run, err, out, complaints.Bytes())
	}
	return out, nil
}

// eta estimates the remaining time from the earlier times of the same steps.
type eta struct {
	last []time.Duration // of each step, 0 if it has not run
	runs []int           // of each step, that are left
}

func newETA(steps []step, rounds int) *eta {
	e := &eta{last: make([]time.Duration, len(steps)), runs: make([]int, len(steps))}
	for range rounds {
		for _, i := range dealtOut(steps, false) {
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
