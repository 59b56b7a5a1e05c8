//go:build unix

package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

var (
	kills = flag.Int("kills", 10, "disturbances of TestClusterCrash")
	seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of TestClusterCrash")
)

const (
	members       = 3 // processes at a time
	publishers    = 4 // of a process
	clusterLease  = 2 * time.Second
	clusterSchema = "eventbus"
)

func init() { postgres.Child = clusterChild }

// say reports a step to the parent.
func say(kind string, of ...any) { _, _ = fmt.Fprintln(os.Stdout, append([]any{kind}, of...)...) }

// clusterChild is a process of the cluster: it publishes, plainly and in transactions, and handles when it has the lease. It
// reports each step in a line: P and A when a publication begins and is accepted, B and E when a call begins and ends.
func clusterChild() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := runChild(ctx, os.Getenv(postgres.ChildVariable), os.Getenv("EVENTBUS_TEST_DSN")); err != nil {
		say("X", err)
		return 1
	}
	return 0
}

func runChild(ctx context.Context, name, dsn string) error {
	bus, err := openCluster(dsn)
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); bus, err = openCluster(dsn) {
		time.Sleep(50 * time.Millisecond) // the server restarts
	}
	if err != nil {
		return err
	}
	_, err = bus.Subscribe("work", eventbus.Typed(func(_ context.Context, n string) error {
		say("B", n)
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		say("E", n)
		return nil
	}), eventbus.Named("work"))
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	all.Go(func() { beatAlways(ctx) })
	if name != "last" {
		pool, err := pgxpool.New(context.Background(), dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		for p := range publishers {
			all.Go(func() { publishAlways(ctx, bus, pool, fmt.Sprintf("%s-%d", name, p)) })
		}
	}
	if err := bus.Start(ctx); err == nil && name == "last" {
		drained, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		if err := drainAll(drained, bus); err != nil {
			return err
		}
		say("D")
	} else {
		<-ctx.Done()
	}
	all.Wait()
	ending, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return bus.Shutdown(ending)
}

func openCluster(dsn string) (*eventbus.Bus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := postgres.Open(ctx, dsn, postgres.WithSchema(clusterSchema), postgres.WithLeaseTime(clusterLease))
	if err != nil {
		return nil, err
	}
	bus, err := eventbus.New(eventbus.WithStore(s), eventbus.WithStandby(), eventbus.WithClock(shiftedClock{clock.New(), skewOf(os.Getenv(postgres.ChildVariable))}))
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return bus, nil
}

// drainAll waits until the store has nothing left.
func drainAll(ctx context.Context, bus *eventbus.Bus) error {
	for {
		if err := bus.Drain(ctx); err != nil {
			return err
		}
		m := bus.Metrics()
		if m.Store.Unsettled()+m.Store.Incoming == 0 {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%+v are left: %w", m.Store, ctx.Err())
		}
	}
}

// publishAlways publishes under a key of its own until ctx ends. After an error the outcome is unknown, and it goes on with
// the next event.
func publishAlways(ctx context.Context, bus *eventbus.Bus, pool *pgxpool.Pool, key string) {
	for i := 0; ctx.Err() == nil; i++ {
		n := fmt.Sprintf("%s-%06d", key, i)
		say("P", n)
		err := func() error {
			if i%5 != 0 {
				_, err := bus.Publish(context.Background(), "work", n, eventbus.Key(key))
				return err
			}
			within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			tx, err := pool.Begin(within)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(within) }()
			if _, err := bus.PublishTx(within, tx, "work", n, eventbus.Key(key)); err != nil {
				return err
			}
			return tx.Commit(within)
		}()
		if err == nil {
			say("A", n)
		}
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
	}
}

// report is a line of a process.
type report struct {
	member *member
	at     time.Time
	kind   string
	text   string
}

// member is a process of the cluster.
type member struct {
	name  string
	proxy *proxy // between it and the server
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait; written before ended is closed
}

// cluster runs the processes, and notes what they report.
type cluster struct {
	t      *testing.T
	server *postgrestest.Server
	random *rand.Rand
	born   int
	alive  []*member
	began  time.Time

	answers   []time.Time // of the server
	disturbed []disturbance
	story     []string // of the disturbances

	mu      sync.Mutex // guards the following
	reports []report
}

// disturbance is a fault. member is nil for one of the server, which concerns all.
type disturbance struct {
	what     string
	member   *member
	from, to time.Time
}

func (c *cluster) start(name string) *member {
	c.t.Helper()
	m := &member{name: name, proxy: startProxy(c.t, c.server.Socket()), cmd: exec.CommandContext(context.Background(), os.Args[0]), ended: make(chan struct{})}
	m.cmd.Env = append(os.Environ(), postgres.ChildVariable+"="+name, "EVENTBUS_TEST_DSN="+m.proxy.DSN())
	out, err := m.cmd.StdoutPipe()
	require.NoError(c.t, err)
	m.cmd.Stderr = os.Stderr
	require.NoError(c.t, m.cmd.Start())
	go func() {
		defer close(m.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			kind, text, _ := strings.Cut(lines.Text(), " ")
			c.mu.Lock()
			c.reports = append(c.reports, report{m, time.Now(), kind, text})
			c.mu.Unlock()
		}
		m.err = m.cmd.Wait()
		m.proxy.close()
	}()
	return m
}

// refill starts processes in place of those that have ended.
func (c *cluster) refill() {
	for len(c.alive) < members {
		c.born++
		c.alive = append(c.alive, c.start(fmt.Sprintf("p%d", c.born)))
	}
}

func (c *cluster) disturb(what string, m *member, fault func()) {
	c.t.Helper()
	began := time.Now()
	fault()
	c.disturbed = append(c.disturbed, disturbance{what, m, began, time.Now()})
	name := "the server"
	if m != nil {
		name = m.name
	}
	c.story = append(c.story, fmt.Sprintf("%8v %s %s", began.Sub(c.began).Round(time.Millisecond), what, name))
}

// pick removes a process from those that are alive.
func (c *cluster) pick() *member {
	i := c.random.IntN(len(c.alive))
	m := c.alive[i]
	c.alive = append(c.alive[:i:i], c.alive[i+1:]...)
	return m
}

func (c *cluster) end(m *member, signal syscall.Signal) {
	c.t.Helper()
	if err := m.cmd.Process.Signal(signal); err != nil {
		<-m.ended
		c.t.Fatalf("%s has ended by itself: %v: %v", m.name, m.err, c.lastLines(m))
	}
	select {
	case <-m.ended:
	case <-time.After(time.Minute):
		_ = m.cmd.Process.Kill()
		require.FailNow(c.t, "a process does not end", "%s, signal %v", m.name, signal)
	}
	if lines := c.lastLines(m); signal == syscall.SIGTERM && len(lines) > 0 { // otherwise it had not begun to catch it
		require.NoError(c.t, m.err, "%s: %v", m.name, lines)
	}
}

// lastLines returns what a process has reported last.
func (c *cluster) lastLines(m *member) (lines []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.member == m {
			lines = append(lines, r.kind+" "+r.text)
		}
	}
	return lines[max(0, len(lines)-5):]
}

// TestClusterCrash disturbs processes, their network and their server: SIGKILL, SIGSTOP, deploys, delays, stalls and resets, killed
// sessions, crashes of the server, a full disk. The clocks of the processes differ by an hour.
// Every accepted event is handled, keys keep their order, only what ran at a disturbance is handled again, and events do not
// wait for longer than claimTime for a process that claims them.
func TestClusterCrash(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, server: privateServer(t), random: rand.New(rand.NewPCG(*seed, 0)), began: time.Now()}
	t.Logf("%d kills, -seed=%d", *kills, *seed)
	t.Cleanup(func() {
		for _, m := range c.alive {
			_ = m.cmd.Process.Kill()
		}
	})
	asking, stop := context.WithCancel(t.Context())
	defer stop()
	asked := make(chan struct{})
	go c.ask(asking, asked)
	for range *kills {
		c.refill()
		time.Sleep(c.pause())
		c.fault()
	}
	c.refill()
	for len(c.alive) > 0 {
		c.end(c.pick(), syscall.SIGTERM)
	}
	last := c.start("last")
	c.alive = append(c.alive, last)
	select {
	case <-last.ended:
		t.Fatalf("the last process ended: %v", last.err)
	case <-c.drained():
	case <-time.After(3 * time.Minute):
		t.Fatal("the last process does not drain the store")
	}
	c.end(c.pick(), syscall.SIGTERM)
	stop()
	<-asked
	c.check()
}

// drained is closed when the last process has drained the store.
func (c *cluster) drained() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		for ticker := time.NewTicker(10 * time.Millisecond); ; <-ticker.C {
			c.mu.Lock()
			drained := slices.ContainsFunc(c.reports[max(0, len(c.reports)-100):], func(r report) bool { return r.kind == "D" })
			c.mu.Unlock()
			if drained {
				close(done)
				return
			}
		}
	}()
	return done
}

// call is a call of the handler.
type call struct {
	member *member
	at     time.Time
}

// check compares the reports with the promises.
func (c *cluster) check() {
	began, accepted := make(map[string]time.Time), make(map[string]time.Time)
	calls, ended := make(map[string][]call), make(map[string]bool)
	var lost, early, repeated, unordered int
	last := make(map[string]string) // by key: the event that was first called last
	var slowest time.Duration
	for _, r := range c.reports {
		switch r.kind {
		case "P":
			began[r.text] = r.at
		case "A":
			accepted[r.text] = r.at
		case "B":
			if len(calls[r.text]) == 0 {
				key := r.text[:strings.LastIndexByte(r.text, '-')]
				if at, ok := accepted[r.text]; ok && r.text < last[key] && at.Before(began[last[key]]) {
					unordered++
					first := calls[last[key]][0]
					c.t.Logf("%s was called by %s at %v, after %s by %s at %v; accepted at %v", r.text, r.member.name, r.at.Sub(c.began).Round(time.Millisecond),
						last[key], first.member.name, first.at.Sub(c.began).Round(time.Millisecond), at.Sub(c.began).Round(time.Millisecond))
				}
				last[key] = max(last[key], r.text)
				if at, ok := accepted[r.text]; ok {
					slowest = max(slowest, r.at.Sub(at))
				}
			} else {
				repeated++
				if before := calls[r.text][len(calls[r.text])-1]; !c.disturbedBetween(before, call{r.member, r.at}) {
					early++
					c.t.Logf("%s was called again by %s, %v after the call of %s, without a disturbance", r.text, r.member.name, r.at.Sub(before.at), before.member.name)
				}
			}
			calls[r.text] = append(calls[r.text], call{r.member, r.at})
		case "E":
			ended[r.text] = true
		case "X":
			c.t.Errorf("%s: %s", r.member.name, r.text)
		}
	}
	for n := range accepted {
		if !ended[n] {
			lost++
			c.t.Logf("%s was accepted and not handled", n)
		}
	}
	faults := make(map[string]int)
	for _, d := range c.disturbed {
		faults[d.what]++
	}
	c.t.Log(faults)
	unclaimed := c.checkClaims(accepted, calls)
	c.t.Logf("%d kills, %d processes, %d accepted, %d lost, %d repeated, slowest %v, unclaimed %v", *kills, c.born, len(accepted), lost, repeated, slowest.Round(time.Millisecond), unclaimed.Round(time.Millisecond))
	if lost+early+unordered > 0 {
		c.t.Log(strings.Join(c.story, "\n"))
	}
	require.Zero(c.t, lost, "lost")
	require.Zero(c.t, early, "repeated without a disturbance")
	require.Zero(c.t, unordered, "out of the order of their key")
	require.NotEmpty(c.t, accepted)
}

// disturbedBetween reports whether something happened between two calls to the process of the first one, or to the server, or
// whether the process of the second was cut off meanwhile: it goes on with a lease that it has lost, until it finds out.
func (c *cluster) disturbedBetween(first, second call) bool {
	for _, d := range c.disturbed {
		cutOff := d.member == second.member && (d.what == "SIGSTOP" || d.what == "stalled network")
		if (d.member == nil || d.member == first.member || cutOff) && d.to.After(first.at.Add(-5*time.Second)) && d.from.Before(second.at) {
			return true
		}
	}
	return false
}
