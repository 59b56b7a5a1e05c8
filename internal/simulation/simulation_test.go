package simulation

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
)

var (
	simSchedules = flag.Int("schedules", 0, "schedules of TestSimulation (default 400, or 100 with -short)")
	simBase      = flag.Int64("base", 0, "the first seed of TestSimulation")
	simCompared  = flag.Int64("compared", 50, "of so many schedules of TestSimulation one is run twice, for the same trace")
	simTogether  = flag.Float64("together", 0.2, "the part of the schedules of TestSimulation that end with calls at the same moment")
	simSeed      = flag.Int64("seed", -1, "the one schedule of TestSimulation to replay, and to print")
)

// TestSimulation runs the real bus in virtual time, with a gate in every handler, and
// at every run of a worker. At each step everything is at rest, and a seeded driver
// picks what happens next: who goes on, fails, panics, exits or is given up, what is
// published, replayed, unsubscribed; a model of plain code is told the same. What can
// be seen of the bus must then be as it is in the model. A seed makes the same
// schedule every time.
//
// Some schedules end with calls at the same moment. The scheduler decides which call
// comes first, so invariants replace the model (see together), and traces are compared
// only up to there. Where another goroutine records changes, the scheduler decides whether a
// worker looks for its next event before that is runnable, so traces are not compared.
//
// Snooze, Throttle, RateLimit, PerDestination and Detach are in schedules of their own, with invariants (see simulatePaced).
func TestSimulation(t *testing.T) {
	if *simStoreSeed >= 0 {
		violation, report := simulateStore(t, uint64(*simStoreSeed), new(storeTally))
		t.Logf("trace of store seed %d:\n%s", *simStoreSeed, report)
		if violation != "" {
			t.Errorf("store seed %d: %s", *simStoreSeed, violation)
		}
		return
	}
	if *simStandbySeed >= 0 {
		violation, report := simulateStandby(t, uint64(*simStandbySeed), new(standbyTally))
		t.Logf("trace of standby seed %d:\n%s", *simStandbySeed, report)
		if violation != "" {
			t.Errorf("standby seed %d: %s", *simStandbySeed, violation)
		}
		return
	}
	if *simPacedSeed >= 0 {
		violation, report := simulateOnePaced(t, uint64(*simPacedSeed), new(pacedTally))
		t.Logf("trace of paced seed %d:\n%s", *simPacedSeed, report)
		if violation != "" {
			t.Errorf("paced seed %d: %s", *simPacedSeed, violation)
		}
		return
	}
	if *simSeed >= 0 {
		r := simulate(t, uint64(*simSeed))
		t.Logf("trace of seed %d:\n%s", *simSeed, r.trace)
		if r.violation != "" {
			t.Errorf("seed %d: %s", *simSeed, r.violation)
		}
		return
	}
	schedules := *simSchedules
	if schedules == 0 {
		if schedules = 200; testing.Short() {
			schedules = 100
		}
	}
	var next, steps, repeats, virtual, compared, together atomic.Int64
	var violations violations
	t.Run("schedules", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < int64(schedules) && violations.count.Load() < 3; n = next.Add(1) - 1 {
					seed := *simBase + n
					r := simulate(t, uint64(seed))
					steps.Add(int64(r.steps))
					repeats.Add(int64(r.repeats))
					virtual.Add(int64(r.virtual))
					if 0 < r.exact && r.exact < len(r.trace) {
						together.Add(1)
					}
					if r.violation == "" && seed%*simCompared == 0 && r.exact > 0 {
						exact := func() []byte {
							again := simulate(t, uint64(seed))
							return again.trace[:again.exact]
						}
						compared.Add(1)
						// One run of very many is another one: a worker stops just before an event can be taken, which then waits for the pool's next
						// tick. More than one of five is a violation.
						isUsual := func(trace []byte) bool {
							for range 3 {
								if !bytes.Equal(trace, exact()) {
									return false
								}
							}
							return true
						}
						if x, y := r.trace[:r.exact], exact(); !bytes.Equal(x, y) && !isUsual(x) && !isUsual(y) {
							r.violation = "the same seed has made another trace" + firstDifference(x, y)
						}
					}
					if r.violation != "" {
						violations.add(uint64(seed), r.violation)
						t.Error(simReport(uint64(seed), r))
					}
				}
			})
		}
	})
	t.Logf("%d schedules were run twice, for the same traces; %d ended with calls at the same moment", compared.Load(), together.Load())
	t.Logf("%d schedules, %d steps, %d repetitions of keys, %s of virtual time, %s",
		min(next.Load(), int64(schedules)), steps.Load(), repeats.Load(), time.Duration(virtual.Load()).Round(time.Second), &violations)
	simulatePaced(t, schedules/storeShare)
	simulateStores(t, schedules/storeShare)
	simulateStandbys(t, schedules/storeShare)
}

// violations counts violations, and has the first one.
type violations struct {
	count atomic.Int64
	first atomic.Pointer[string]
}

func (v *violations) add(seed uint64, text string) {
	v.count.Add(1)
	first := fmt.Sprintf("seed %d: %.600s", seed, strings.ReplaceAll(text, "\n", " | "))
	v.first.CompareAndSwap(nil, &first)
}

// String returns the count, and in the same line the first violation: the end of a log may be all that is kept of it.
func (v *violations) String() string {
	text := fmt.Sprintf("%d violations", v.count.Load())
	if first := v.first.Load(); first != nil {
		text += ", the first in " + *first
	}
	return text
}

func simReport(seed uint64, r simResult) string {
	return fmt.Sprintf("seed %d: %s\nthe last steps:\n%s\nto replay it: go test -count=1 -v -run '^TestSimulation$' ./internal/simulation -args -seed=%d",
		seed, r.violation, lastLines(r.trace, 40), seed)
}

func lastLines(text []byte, n int) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], nil)
}

func firstDifference(x, y []byte) string {
	a, b := bytes.Split(x, []byte("\n")), bytes.Split(y, []byte("\n"))
	for i := range a {
		if i >= len(b) || !bytes.Equal(a[i], b[i]) {
			return fmt.Sprintf(" from line %d on:\n%s\nthe other:\n%s", i,
				bytes.Join(a[max(0, i-10):min(len(a), i+4)], []byte("\n")), bytes.Join(b[max(0, min(i, len(b))-2):min(len(b), i+4)], []byte("\n")))
		}
	}
	return ""
}

type simResult struct {
	steps     int
	repeats   int // of idempotency keys
	virtual   time.Duration
	trace     []byte
	exact     int // the length of the trace that the seed decides
	violation string
}

// simulate runs one schedule.
func simulate(t *testing.T, seed uint64) (r simResult) {
	var s *simulation
	watchdog := time.AfterFunc(time.Minute, func() { // not the bubble's time
		panic(fmt.Sprintf("seed %d does not come to an end", seed))
	})
	defer watchdog.Stop()
	defer func() {
		p := recover() // synctest's: goroutines are left, and can never end
		if s != nil {
			r = simResult{s.steps, s.repetitions, s.last, s.trace.Bytes(), s.trace.Len(), s.violation}
			switch {
			case s.recordsLater:
				r.exact = 0
			case s.loose != nil:
				r.exact = s.loose.exact
			}
		}
		if p != nil && r.violation == "" {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			r.violation = fmt.Sprintf("at the end: %v", p)
			for _, stack := range strings.Split(string(stacks), "\n\n") {
				if strings.Contains(stack, "durable") {
					r.violation += "\n" + stack
				}
			}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		s = &simulation{
			rng: rand.New(rand.NewPCG(seed, 20)), seed: seed, origin: time.Now(), free: make(chan struct{}),
			letters: map[string]eventbus.LetterID{}, types: map[string]*eventbus.TypeMetrics{}, accepted: map[int]bool{},
		}
		defer s.end()
		s.run()
	})
	return r
}
