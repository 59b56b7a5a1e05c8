//go:build unix

package sqlite

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// Environment of a child process of the tests.
const (
	childMode = "EVENTBUS_SQLITE_CHILD" // what the child does
	childPath = "EVENTBUS_SQLITE_PATH"
)

// TestChild is the child process.
func TestChild(t *testing.T) {
	path := os.Getenv(childPath)
	switch os.Getenv(childMode) {
	case "":
		t.Skip("runs in a child process only")
	case "hold":
		s, err := Open(context.Background(), path)
		if err == nil {
			_, err = s.Acquire(context.Background(), driver.AcquireQuery{})
		}
		if err != nil {
			fmt.Println("error:", err) //nolint:forbidigo // the parent reads it
			return
		}
		accept(t, s, ready(""))
		fmt.Println("open") //nolint:forbidigo // the parent reads it
		time.Sleep(time.Minute)
	case "open":
		_, err := Open(context.Background(), path)
		require.NoError(t, err)
		fmt.Println("open") //nolint:forbidigo // the parent reads it
		time.Sleep(time.Minute)
	case "publish":
		publishForever(t, path)
	case "bus":
		runBus(t, path)
	}
}

// runBus handles events until it is killed, and prints their payloads.
func runBus(t *testing.T, path string) {
	store, err := Open(context.Background(), path)
	require.NoError(t, err)
	bus, err := eventbus.New(eventbus.WithStore(store))
	require.NoError(t, err)
	_, err = bus.Subscribe("*", eventbus.Typed(func(_ context.Context, payload string) error {
		fmt.Println(payload) //nolint:forbidigo // the parent reads it
		return nil
	}), eventbus.Named("mail"))
	require.NoError(t, err)
	require.NoError(t, bus.Start(context.Background()))
	fmt.Println("open") //nolint:forbidigo // the parent reads it
	time.Sleep(time.Minute)
}

// publishForever accepts events, settles every second one and buries every tenth. It prints each
// outcome after it is durable, and "settling" before it is submitted.
func publishForever(t *testing.T, path string) {
	s := openAt(t, path)
	var printing sync.Mutex
	out := func(line string) {
		printing.Lock()
		defer printing.Unlock()
		fmt.Println(line) //nolint:forbidigo // the parent reads it
	}
	var publishers sync.WaitGroup
	for p := range 8 {
		publishers.Go(func() {
			for i := 0; ; i++ {
				r := ready("")
				if err := submit(s, &driver.Batch{New: []*driver.Record{r}}); err != nil {
					out("error: " + err.Error())
					return
				}
				out("accepted " + r.ID.String())
				var b driver.Batch
				switch {
				case i%10 == p:
					l := letterFor("s", eventbus.ReasonExhausted, "e", func(l *eventbus.DeadLetter) { l.Event.ID = eventbus.EventID(r.ID) })
					b = driver.Batch{Delete: []driver.Ref{r.Ref}, Bury: []*driver.Letter{l}}
				case i%2 == 0:
					b = driver.Batch{Delete: []driver.Ref{r.Ref}}
				default:
					continue
				}
				out("settling " + r.ID.String())
				if err := submit(s, &b); err != nil {
					out("error: " + err.Error())
					return
				}
				if b.Bury == nil {
					out("settled " + r.ID.String())
				} else {
					out("buried " + r.ID.String())
				}
			}
		})
	}
	publishers.Wait()
}

// child starts a child process. It returns its output line by line.
func child(t *testing.T, mode, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.v=false")
	cmd.Env = append(os.Environ(), childMode+"="+mode, childPath+"="+path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

func TestStore_LockOfAnotherProcess(t *testing.T) {
	path := testPath(t)
	cmd, out := child(t, "hold", path)
	require.True(t, out.Scan())
	require.Equal(t, "open", out.Text())
	s := openOnly(t, path)
	_, err := s.Acquire(context.Background(), driver.AcquireQuery{})
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, cmd.Process.Pid, locked.PID)
	require.WithinDuration(t, time.Now(), locked.Since, time.Minute)
	leave(t, s)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	require.True(t, acquire(t, s).Crashed)
	takeIn(t, s)
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	acquire(t, s)
	c := claim(t, s, driver.ClaimQuery{})
	require.Len(t, c.Records, 2)
	require.Equal(t, []int{1, 0}, []int{c.Records[0].Crashes, c.Records[1].Crashes})
}

// A process that is stopped keeps its lease, and the lease ends with the process.
func TestS6_AStoppedProcessKeepsItsLease(t *testing.T) {
	path := testPath(t)
	cmd, out := child(t, "hold", path)
	require.True(t, out.Scan())
	require.Equal(t, "open", out.Text())
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	s := openOnly(t, path)
	leave(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 5*leaseLook)
	defer cancel()
	_, err := s.Acquire(ctx, driver.AcquireQuery{Wait: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, ErrLocked)
	ended := make(chan driver.Lease, 1)
	go func() {
		lease, err := s.Acquire(context.Background(), driver.AcquireQuery{Wait: true})
		if err != nil {
			t.Error(err)
		}
		ended <- lease
	}()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	lease := <-ended
	require.True(t, lease.Crashed)
	require.EqualValues(t, 1, lease.CrashedEvents)
}

// stopBetweenCommits stops a child that is not in the midst of a write: a stopped process keeps the write lock, too, and
// then no one else can publish.
func stopBetweenCommits(t *testing.T, child *os.Process, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, child.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err = syscall.Wait4(child.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	require.NoError(t, tx.Rollback())
	require.NoError(t, db.Close())
}

// While the active process is stopped, a standby publishes and does not take over. The active process goes on with what
// it was left. When it is killed, the standby takes over.
func TestS6_AStoppedActiveBus(t *testing.T) {
	path := testPath(t)
	cmd, out := child(t, "bus", path)
	expect := func(want string) {
		t.Helper()
		require.True(t, out.Scan(), "the process has ended")
		require.Equal(t, want, out.Text())
	}
	expect("open")
	handled := make(chan string, 100)
	store, err := Open(t.Context(), path)
	require.NoError(t, err)
	standby, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby(), eventbus.WithLogger(zap.NewNop()))
	require.NoError(t, err)
	_, err = standby.Subscribe("*", eventbus.Typed(func(_ context.Context, payload string) error {
		handled <- payload
		return nil
	}), eventbus.Named("mail"))
	require.NoError(t, err)
	started := make(chan error, 1)
	go func() { started <- standby.Start(context.Background()) }()
	publish := func(payload string) {
		t.Helper()
		_, err := standby.Publish(t.Context(), "order", payload)
		require.NoError(t, err)
	}
	publish("before")
	expect("before")

	stopBetweenCommits(t, cmd.Process, path)
	for i := range 5 {
		publish(fmt.Sprint("stopped ", i))
		time.Sleep(2 * leaseLook)
	}
	require.Empty(t, started, "the standby has taken over")
	require.Empty(t, handled)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	var got []string
	for range 5 {
		require.True(t, out.Scan())
		got = append(got, out.Text())
	}
	require.ElementsMatch(t, []string{"stopped 0", "stopped 1", "stopped 2", "stopped 3", "stopped 4"}, got)
	require.Eventually(t, func() bool { // what is not recorded as handled is handled again after a kill
		stats, err := store.Stats(t.Context())
		return err == nil && stats.Unsettled() == 0
	}, 20*time.Second, time.Millisecond)

	stopBetweenCommits(t, cmd.Process, path)
	publish("stopped and killed")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	require.NoError(t, <-started)
	require.Equal(t, "stopped and killed", <-handled)
	require.NoError(t, standby.Shutdown(context.Background()))
	require.Empty(t, handled)
}

// TestStore_SurvivesKills kills a child again and again while it publishes, and checks after each
// kill that nothing acknowledged is lost and nothing settled returns.
func TestStore_SurvivesKills(t *testing.T) {
	t.Parallel()
	kills := 4
	if *search {
		kills = 12
	}
	path := testPath(t)
	state := make(map[string]string) // of each event: accepted, settling, settled, buried
	for range kills {
		cmd, out := child(t, "publish", path)
		wait := time.Duration(rand.IntN(300)) * time.Millisecond
		var timer *time.Timer
		for out.Scan() {
			verb, id, _ := strings.Cut(out.Text(), " ")
			require.NotEqual(t, "error:", verb, out.Text())
			if timer == nil {
				timer = time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
			}
			state[id] = verb
		}
		_ = cmd.Wait() // it was killed
		checkBooks(t, copyAfterKill(t, path), state)
	}
	t.Logf("%d kills, %d events", kills, len(state))
}

func copyAfterKill(t *testing.T, path string) string {
	t.Helper()
	if _, err := os.Stat(path + "-wal"); err != nil {
		return path
	}
	return copyFiles(t, path)
}

func checkBooks(t *testing.T, path string, state map[string]string) {
	t.Helper()
	s := openAt(t, path)
	defer closeStore(t, s)
	inside(t, s, func(c *committer) error { return c.w.quickCheck() })
	ctx := context.Background()
	stored := make(map[string]bool)
	var counted int64
	for more := true; more; {
		c := claim(t, s, driver.ClaimQuery{Limit: 1000})
		for _, r := range c.Records {
			stored[r.ID.String()] = true
			counted++
		}
		more = c.More
	}
	letters := make(map[string]bool)
	page, err := s.Letters(ctx, driver.LetterQuery{Limit: 100_000})
	require.NoError(t, err)
	for _, l := range page.Letters {
		letters[l.Event.String()] = true
	}
	stats, err := s.Stats(ctx)
	require.NoError(t, err)
	require.True(t, s.Lease().Crashed)
	require.Equal(t, driver.Stats{Ready: counted, Letters: int64(len(page.Letters))}, stats)
	for id, verb := range state {
		switch verb {
		case "accepted":
			require.True(t, stored[id], "accepted event %s is lost", id)
		case "settled":
			require.False(t, stored[id], "settled event %s returned", id)
		case "buried":
			require.True(t, letters[id] && !stored[id], "buried event %s: letter %t, record %t", id, letters[id], stored[id])
		}
	}
}
