//go:build unix

package sqlite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	crashKills = flag.Int("kills", 0, "number of processes that TestCrash kills; 0 for a few")
	crashSeed  = flag.Uint64("seed", 0, "seed of TestCrash; 0 for a new one")

	crashStandbys = flag.Int("standbys", 0, "number of standbys beside most processes of TestCrash, which take over and are killed in turn")
	crashTx       = flag.Bool("tx", false, "let the processes of TestCrash publish in transactions of their own, too")
	crashEmit     = flag.Bool("emit", false, "let the handlers of TestCrash emit events, too")
)

// killsPerFile is the number of kills before everything must settle, and a new file begins.
const killsPerFile = 50

// TestCrash kills processes with SIGKILL at random instants, at each failpoint of the store, and while
// they recover from earlier kills. Each process works with a bus over the same file: it publishes,
// handles, fails, parks, dead-letters, replays, purges, cancels, and shuts down. It writes a line to a
// pipe before and after whatever it does. This test reads the lines, and after each kill compares a
// copy of the file with them. See crashOracle for what must hold.
//
// In some of the processes the store keeps a history. Beside some, another process publishes, works on
// the dead letters and gives orders, and is killed later, or earlier. With -standbys, standbys publish beside most of
// them. When the bus with the lease is killed, one takes over, is killed, the next one takes over, and so on. With -tx, the
// processes publish in transactions of a table of their own in the file, and commit them or roll them back. With -emit, handlers
// emit events before they succeed or fail, and each copy has both the success of a handler and its events, or neither.
func TestCrash(t *testing.T) {
	t.Parallel()
	kills, seed := *crashKills, *crashSeed
	if kills == 0 {
		kills = 15
		if testing.Short() {
			kills = 5
		}
	}
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	t.Logf("%d kills, -seed=%d", kills, seed)
	points := failpointsOf(t)
	r := &crashRun{t: t, seed: seed, plan: newCrashPlan(seed, kills, points)}
	for r.plan.kills > 0 {
		r.file()
	}
	r.report(points)
	if kills >= 3*len(points) {
		require.Empty(t, r.plan.missing(), "failpoints that were not reached")
	}
}

// crashRun is a run of TestCrash.
type crashRun struct {
	t    *testing.T
	seed uint64
	plan *crashPlan

	// Of the current file.
	dir    string
	oracle *crashOracle
	log    *bufio.Writer
	born   int

	lives                                        int
	kills, atPoints, inRecovery                  int
	acknowledged, reruns, replays, purges, lines int
	crashLetters, neverRan                       int
	besides, byBeside, settled                   int // processes beside, what they acknowledged, rows of the history
	takeOvers, transactions, rolledBack          int
	children, emitters, emissions                int // events that were emitted, by how many handlers, and calls of Emit
	slowestOpen                                  time.Duration
	largestLog                                   int64
}

func (r *crashRun) path() string { return filepath.Join(r.dir, "events.db") }

// file kills processes with one file, and lets the last one settle everything.
func (r *crashRun) file() {
	t := r.t
	var err error
	r.dir, err = os.MkdirTemp("", "eventbus-crash-")
	require.NoError(t, err)
	out, err := os.Create(filepath.Join(r.dir, "witness.log"))
	require.NoError(t, err)
	r.log, r.oracle, r.born = bufio.NewWriter(out), newCrashOracle(r.seed), r.lives
	r.plan.newFile()
	r.oracle.wholeHistory = r.plan.wholeHistory
	for n := 0; n < killsPerFile && r.plan.kills > 0; {
		spec := &crashSpec{Again: r.oracle.again(8)}
		r.plan.next(spec)
		if r.life(spec) {
			n++
		}
	}
	r.life(&crashSpec{
		Quiet: true, Queue: 1000, Workers: 64, Checkpoint: 400, Isolation: r.plan.isolation, History: r.plan.history(),
	})
	r.acknowledged += r.oracle.acknowledged
	r.reruns += r.oracle.reruns
	r.replays += r.oracle.replays
	r.purges += r.oracle.purges
	r.lines += r.oracle.lines
	r.crashLetters += r.oracle.crashLetters
	r.neverRan += r.oracle.neverRan
	r.byBeside += r.oracle.byBeside
	r.settled += r.oracle.settled
	r.takeOvers += r.oracle.takeOvers
	r.transactions += r.oracle.transactions
	r.rolledBack += r.oracle.rolledBack
	r.children += r.oracle.children
	r.emitters += r.oracle.emitters
	r.emissions += r.oracle.emissions
	require.NoError(t, out.Close())
	require.NoError(t, os.RemoveAll(r.dir))
}

// life runs a process until it ends, and checks what it leaves. It reports whether it was killed.
func (r *crashRun) life(spec *crashSpec) (killed bool) {
	t := r.t
	spec.Path, spec.Seed, spec.Life, spec.Born, spec.Began = r.path(), r.seed, r.lives, r.born, time.Now()
	spec.Beside = spec.Beside && r.oracle.checked
	spec.Tx = *crashTx && !spec.Quiet
	spec.Emit = *crashEmit
	r.plan.standbys(spec, r.oracle.checked)
	r.lives += 1 + spec.Standbys // each that takes over is a process with the lease
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	_, _ = fmt.Fprintf(r.log, "# %s\n", text)
	r.oracle.begin(spec)
	// Both processes write to the same pipe, which keeps the order of their lines. It ends when both have
	// ended.
	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	p := startCrashChild(t, spec.ofBus(), in)
	var beside *crashProcess
	if spec.Beside {
		r.besides++
		beside = p.startBeside(t, *spec, in, r.plan.random)
	}
	standbys := &crashStandbyGroup{t: t, spec: *spec, random: r.plan.random, pipe: in}
	if spec.Standbys == 0 {
		standbys.closePipe()
	}
	p.killAfter(spec, r.plan)
	go func() {
		<-p.ended
		standbys.closePipe()
	}()
	scanner := bufio.NewScanner(out)
	scanner.Buffer(make([]byte, 64<<10), 1<<20)
	for scanner.Scan() {
		line := scanner.Text()
		_, _ = fmt.Fprintln(r.log, line)
		r.oracle.read(line)
		p.saw(spec, line)
		standbys.saw(line)
	}
	err = p.wait()
	require.NoError(t, scanner.Err())
	if beside != nil && (beside.wait() == nil || !beside.wasKilled()) {
		r.oracle.violate("child", nil, "the process beside ended with %v:\n%s", beside.err, tail(beside.stderr.String()))
	}
	r.kills += standbys.wait(r.oracle)
	ended := err == nil // by itself
	if !ended && !p.wasKilled() {
		r.oracle.violate("child", nil, "the process ended with %v:\n%s", err, tail(p.stderr.String()))
	}
	if spec.Quiet && !ended {
		r.oracle.violate("Q1", nil, "the last process did not end by itself")
	}
	r.count(spec, p, ended)
	r.check(spec)
	return !ended
}

// ofBus returns the work of the process with the lease.
func (s *crashSpec) ofBus() *crashSpec {
	of := *s
	if itself, _ := needsBeside(s.Failpoint); itself {
		of.Failpoint = ""
	}
	return &of
}

func tail(text string) string { return text[max(0, len(text)-8000):] }

func (r *crashRun) count(spec *crashSpec, p *crashProcess, ended bool) {
	r.slowestOpen = max(r.slowestOpen, p.opened)
	if ended {
		return
	}
	r.kills++
	r.plan.kills--
	if p.at != "" {
		r.atPoints++
	}
	if spec.Recover || isOfRecovery(p.at) {
		r.inRecovery++
	}
	r.plan.killed(spec, p.at)
}

// check copies the files of a process that has ended, and checks the copy.
func (r *crashRun) check(spec *crashSpec) {
	t := r.t
	copied := filepath.Join(r.dir, "copy.db")
	for _, suffix := range []string{"", "-wal", "-shm", leaseSuffix} {
		_ = os.Remove(copied + suffix) // of the copy before
		if suffix == "-shm" {
			continue // SQLite makes it again
		}
		content, err := os.ReadFile(r.path() + suffix)
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(copied+suffix, content, 0o600))
		if suffix == "-wal" {
			r.largestLog = max(r.largestLog, int64(len(content)))
		}
	}
	dump, problems, err := dumpCopy(copied)
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, p := range problems {
		r.oracle.violate("K10", nil, "%s", p)
	}
	if err == nil {
		r.oracle.check(dump, spec.Quiet)
	}
	const largest = 16 << 20
	if r.largestLog > largest {
		r.oracle.violate("Q3", nil, "the write-ahead log has %d bytes", r.largestLog)
	}
	if v := r.oracle.violations; len(v) > 0 {
		require.NoError(t, r.log.Flush())
		shown := v[:min(len(v), 5)]
		text, _ := json.Marshal(spec)
		t.Fatalf("seed %d, process %d, %d violations:\n%s\n\nprocess: %s\nfiles, copy and witness log: %s",
			r.seed, spec.Life, len(v), strings.Join(shown, "\n"), text, r.dir)
	}
}

// crashProcess is a running child.
type crashProcess struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{} // closed when it has ended
	err    error         // then: how

	delay  time.Duration // from the first acknowledgement to the kill; negative: not
	armed  bool
	at     string // the failpoint where it has killed itself
	opened time.Duration
	guard  *time.Timer
}

// startCrashChild starts a process that writes its lines to a pipe.
func startCrashChild(t *testing.T, spec *crashSpec, pipe *os.File) *crashProcess {
	t.Helper()
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	p := &crashProcess{
		cmd:   exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$"), //nolint:gosec // this test
		ended: make(chan struct{}), delay: -1,
	}
	p.cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	p.cmd.ExtraFiles = []*os.File{pipe}
	p.cmd.Stderr, p.cmd.Stdout = &p.stderr, &p.stderr
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	return p
}

// startBeside starts the process beside another one. It is killed after that one, or before.
func (p *crashProcess) startBeside(t *testing.T, spec crashSpec, pipe *os.File, random *rand.Rand) (beside *crashProcess) {
	t.Helper()
	itself, needs := needsBeside(spec.Failpoint)
	if spec.IsBeside = true; !itself {
		spec.Failpoint = ""
	}
	beside = startCrashChild(t, &spec, pipe)
	if !needs && random.IntN(5) == 0 {
		beside.guard = time.AfterFunc(time.Duration(random.IntN(80_000))*time.Microsecond, beside.kill)
	}
	longer := time.Duration(random.IntN(30_000)) * time.Microsecond
	go func() {
		<-p.ended
		time.Sleep(longer)
		beside.kill()
	}()
	return beside
}

// killAfter decides when the process is killed: at a random instant, or after a while if it does not
// reach its failpoint.
func (p *crashProcess) killAfter(spec *crashSpec, plan *crashPlan) {
	limit := 2 * time.Second
	switch {
	case spec.Quiet:
		limit = time.Minute
	case spec.Failpoint != "":
		if spec.Idle || spec.Fault {
			limit = 4 * time.Second
		}
	case spec.Recover:
		limit = time.Duration(plan.random.IntN(40_000)) * time.Microsecond
		p.armed = true // an acknowledgement cannot come
		time.AfterFunc(limit, p.kill)
		return
	case spec.Fault:
		p.delay = time.Duration(plan.random.IntN(400)) * time.Millisecond
	default:
		p.delay = time.Duration(plan.random.IntN(100_000)) * time.Microsecond
	}
	p.guard = time.AfterFunc(limit, p.kill)
}

// saw looks at a line for what concerns the process.
func (p *crashProcess) saw(spec *crashSpec, line string) {
	verb, rest, _ := strings.Cut(line, "\t")
	switch verb {
	case "A":
		if p.delay >= 0 && !p.armed {
			p.armed = true
			time.AfterFunc(p.delay, p.kill)
		}
	case "T":
		if p.at = spec.Failpoint; spec.Beside { // it may be the process beside that has reached it
			p.kill()
		}
	case "O":
		p.opened, _ = time.ParseDuration(rest + "us")
	}
}

func (p *crashProcess) kill() { _ = p.cmd.Process.Kill() }

func (p *crashProcess) wait() error {
	<-p.ended
	if p.guard != nil {
		p.guard.Stop()
	}
	return p.err
}

func (p *crashProcess) wasKilled() bool {
	return strings.Contains(p.cmd.ProcessState.String(), "killed")
}

// report prints the figures.
func (r *crashRun) report(points []string) {
	hit := 0
	width := 0
	for _, point := range points {
		width = max(width, len(point))
	}
	var table strings.Builder
	for _, point := range slices.Sorted(slices.Values(points)) {
		if r.plan.hits[point] > 0 {
			hit++
		}
		fmt.Fprintf(&table, "%-*s %5d\n", width, point, r.plan.hits[point])
	}
	t := r.t
	t.Logf("kills at each failpoint:\n%s", table.String())
	t.Logf("%d processes, %d witness lines, %d replays, %d purges, %d letters of suspected crashes (%d of events that never ran); slowest open %v, largest write-ahead log %d KiB",
		r.lives, r.lines, r.replays, r.purges, r.crashLetters, r.neverRan, r.slowestOpen, r.largestLog>>10)
	t.Logf("%d processes beside, which acknowledged %d operations; %d dispatches in the histories", r.besides, r.byBeside, r.settled)
	if *crashStandbys > 0 || *crashTx {
		t.Logf("%d standbys took over; %d transactions committed an event, %d did not commit", r.takeOvers, r.transactions, r.rolledBack)
	}
	if *crashEmit {
		t.Logf("%d children of %d handlers that succeeded, %d emitted by attempts that did not: children neither lost nor doubled",
			r.children, r.emitters, r.emissions-r.children)
	}
	t.Logf("%d kills (%d at failpoints, %d in recovery), %d acknowledged, 0 lost, %d handler reruns, failpoints hit %d/%d",
		r.kills, r.atPoints, r.inRecovery, r.acknowledged, r.reruns, hit, len(points))
}
