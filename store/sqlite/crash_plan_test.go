//go:build unix

package sqlite

import (
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// failpointsOf returns the names of all failpoints, sorted, as the sources of the package have them.
func failpointsOf(t *testing.T) (names []string) {
	t.Helper()
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	call := regexp.MustCompile(`\breach\("([^"]+)"\)`)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		source, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		for _, m := range call.FindAllStringSubmatch(string(source), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	require.Len(t, slices.Compact(slices.Clone(names)), len(names), "a failpoint has the name of another")
	return names
}

// isOfNewFile reports whether a failpoint is reached only while a file is made.
func isOfNewFile(point string) bool {
	return strings.HasPrefix(point, "migrate: ") || point == "open: created" || point == "open: locked"
}

// needsBeside reports whether a failpoint is reached only by a process without the lease (itself), or by the bus that
// does what such a process has left.
func needsBeside(point string) (itself, needs bool) {
	switch point {
	case "commit: left", "batch: asked", "batch: unasked", "batch: withdrawn":
		return true, true
	case "batch: accepted", "batch: answered":
		return false, true
	}
	return false, false
}

// isOfRecovery reports whether a process reaches a failpoint before it publishes.
func isOfRecovery(point string) bool {
	for _, prefix := range []string{"migrate: ", "open: ", "lease: ", "claim: "} {
		if strings.HasPrefix(point, prefix) {
			return true
		}
	}
	return false
}

// crashPlan chooses how the processes die.
type crashPlan struct {
	random *rand.Rand
	kills  int // to do
	points []string
	queue  []string       // failpoints to kill at, the next one first
	fresh  []string       // of these, for a new file
	hits   map[string]int // kills at each failpoint
	tries  map[string]int
	depth  int // consecutive kills in recovery

	isolation    bool // of the processes with the current file
	wholeHistory bool // each of them keeps a history, for so long that all of it stays
}

func newCrashPlan(seed uint64, kills int, points []string) *crashPlan {
	p := &crashPlan{
		random: rand.New(rand.NewPCG(seed, 0)), kills: kills, points: points,
		hits: make(map[string]int), tries: make(map[string]int),
	}
	p.refill()
	return p
}

// refill queues each failpoint once, from a place that depends on the seed.
func (p *crashPlan) refill() {
	at := p.random.IntN(len(p.points))
	for _, point := range append(slices.Clone(p.points[at:]), p.points[:at]...) {
		if !isOfNewFile(point) {
			p.queue = append(p.queue, point)
		}
	}
}

// newFile queues the failpoints of a new file.
func (p *crashPlan) newFile() {
	p.fresh, p.depth, p.isolation, p.wholeHistory = nil, 0, p.random.IntN(4) == 0, p.random.IntN(3) > 0
	for _, point := range []string{"open: locked", "open: created", "migrate: begun", "migrate: tables made", "migrate: before commit"} {
		if slices.Contains(p.points, point) {
			p.fresh = append(p.fresh, point)
		}
	}
}

// Retentions of the history.
const (
	longHistory  = time.Hour
	shortHistory = 2 * time.Second // than which most processes are shorter
)

// history draws the retention of a process, 0 for no history.
func (p *crashPlan) history() time.Duration {
	if p.wholeHistory {
		return longHistory
	}
	return []time.Duration{0, longHistory, shortHistory, shortHistory}[p.random.IntN(4)]
}

// missing returns the failpoints at which no process was killed.
func (p *crashPlan) missing() (names []string) {
	for _, point := range p.points {
		if p.hits[point] == 0 {
			names = append(names, point)
		}
	}
	return names
}

// next fills in how a process works and dies.
func (p *crashPlan) next(spec *crashSpec) {
	p.workload(spec)
	share := p.random.IntN(100)
	switch {
	case len(p.fresh) > 0:
		spec.Failpoint, p.fresh = p.fresh[0], p.fresh[1:]
	case share < 50 || p.kills <= 3*len(p.missing()):
		spec.Failpoint = p.point()
	}
	recovers := share >= 50 && share < 75 || isOfRecovery(spec.Failpoint) && share%2 == 0
	if recovers && p.depth < 3 && !isOfNewFile(spec.Failpoint) {
		spec.Recover = true
	}
	if p.depth++; !spec.Recover {
		p.depth = 0
	}
	p.provoke(spec)
	// The process beside would make a store with a fault fail at any moment, and keep it from being idle.
	if spec.Fault || spec.Idle || p.tries[spec.Failpoint] > 0 {
		spec.Beside = false
	}
	if _, needs := needsBeside(spec.Failpoint); needs {
		spec.Beside, spec.Fault, spec.Recover, spec.Shutdown = true, false, false, 0
		spec.Hit = 1 + p.random.IntN(3)
	}
}

// point takes the next failpoint from the queue. Near the end of the run, those come first at which no
// process was killed yet.
func (p *crashPlan) point() string {
	if len(p.queue) == 0 {
		p.refill()
	}
	at := 0
	if missing := p.missing(); p.kills <= 3*len(missing) {
		at = max(0, slices.IndexFunc(p.queue, func(point string) bool { return slices.Contains(missing, point) }))
	}
	point := p.queue[at]
	p.queue = slices.Delete(p.queue, at, at+1)
	return point
}

// workload draws what a process does.
func (p *crashPlan) workload(spec *crashSpec) {
	r := p.random
	pick := func(from ...int) int { return from[r.IntN(len(from))] }
	spec.Publishers = pick(1, 2, 4, 8, 16, 32, 64)
	spec.Queue = pick(4, 16, 64, 1024)
	spec.Workers = pick(2, 4, 64)
	spec.Checkpoint = pick(10, 50, 400)
	spec.Isolation, spec.History = p.isolation, p.history()
	spec.Beside = r.IntN(3) == 0
	spec.Pause = r.IntN(3) == 0
	spec.Fault = r.IntN(10) == 0
	if r.IntN(8) == 0 {
		spec.Shutdown = time.Duration(10+r.IntN(60)) * time.Millisecond
	}
	spec.Hurry = r.IntN(2) == 0
	spec.Mail = []mailLife{mailFirst, mailFirst, mailFirst, mailLate, mailMissing, mailLeaves}[r.IntN(6)]
}

// standbys draws the number of standbys beside a process. They need a file, and a process that lives for a while.
func (p *crashPlan) standbys(spec *crashSpec, hasFile bool) {
	_, besides := needsBeside(spec.Failpoint)
	if *crashStandbys == 0 || !hasFile || spec.Quiet || spec.Recover || besides || p.random.IntN(4) == 0 {
		return
	}
	spec.Standbys, spec.Beside = *crashStandbys, false
	spec.Hurry = false // handlers that Shutdown has abandoned would run beside the next bus
	spec.Mail = mailFirst
}

// provoke makes the process reach its failpoint.
func (p *crashPlan) provoke(spec *crashSpec) {
	point := spec.Failpoint
	if point == "" {
		return
	}
	group, name, _ := strings.Cut(point, ": ")
	spec.Hit = 1
	switch group {
	case "commit", "done":
		spec.Hit += p.random.IntN(40)
	case "batch":
		if name != "forgotten" && name != "ordered" && name != "cataloged" { // those are rare
			spec.Hit += p.random.IntN(10)
		}
	case "history":
		spec.History = max(spec.History, shortHistory)
		if spec.Hit += p.random.IntN(20); name == "pruned" {
			spec.Hit = 1
		}
	case "claim", "checkpoint":
		spec.Hit += p.random.IntN(3)
	case "idle checkpoint":
		spec.Idle, spec.Fault, spec.Shutdown, spec.Recover = true, false, 0, false
	case "reopen":
		spec.Fault, spec.Shutdown, spec.Recover = true, 0, false
	case "close":
		spec.Shutdown, spec.Recover = time.Duration(10+p.random.IntN(50))*time.Millisecond, false
	}
	if spec.Recover && group != "open" && group != "lease" {
		spec.Hit = 1 + p.random.IntN(3)
	}
	if p.tries[point] > 0 {
		spec.Hit = 1
		spec.Recover = false
	}
	if group == "batch" || p.tries[point] > 0 {
		spec.Publishers = max(spec.Publishers, 8)
	}
	if group == "claim" {
		spec.Queue = 4
	}
}

// killed notes how a process has died.
func (p *crashPlan) killed(spec *crashSpec, at string) {
	switch {
	case at != "":
		p.hits[at]++
	case spec.Failpoint != "" && isOfNewFile(spec.Failpoint):
		p.tries[spec.Failpoint]++
	case spec.Failpoint != "":
		p.tries[spec.Failpoint]++
		p.queue = append(p.queue, spec.Failpoint)
	}
}
