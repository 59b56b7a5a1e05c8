package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// tool runs a program of the system, and returns its output.
func tool(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput() //nolint:noctx // it takes milliseconds
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// freezable mounts an ext4 file system of its own.
func freezable(t *testing.T) (dir string) {
	t.Helper()
	under, dir := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", under, "tmpfs", 0, "size=100m"); err != nil {
		t.Skipf("SKIP: mounting a file system to freeze needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(under, unix.MNT_DETACH) })
	image := filepath.Join(under, "image")
	f, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Truncate(64<<20), f.Close()))
	if _, err := tool("mkfs.ext4", "-q", "-F", image); err != nil {
		t.Skipf("SKIP: no ext4 to freeze: %v", err)
	}
	device, err := tool("losetup", "-f", "--show", image)
	if err != nil {
		t.Skipf("SKIP: no loop device to freeze: %v", err)
	}
	t.Cleanup(func() {
		_, err := tool("losetup", "-d", device)
		require.NoError(t, err)
	})
	require.NoError(t, unix.Mount(device, dir, "ext4", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}

// monolith is a child process with a bus, and with work that has nothing to do with it.
type monolith struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}

	mu    sync.Mutex
	lines []string
}

func startMonolith(t *testing.T, path string) *monolith {
	t.Helper()
	m := &monolith{ended: make(chan struct{})}
	m.cmd = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStalledChild$", "-test.v=false")
	m.cmd.Env = append(os.Environ(), childMode+"=stalled", childPath+"="+path)
	out, err := m.cmd.StdoutPipe()
	require.NoError(t, err)
	m.in, err = m.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, m.cmd.Start())
	go func() {
		defer close(m.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			m.mu.Lock()
			m.lines = append(m.lines, lines.Text())
			m.mu.Unlock()
		}
	}()
	t.Cleanup(m.kill)
	return m
}

func (m *monolith) kill() {
	_ = m.cmd.Process.Kill() // it may have ended
	<-m.ended
	_ = m.cmd.Wait() // it was killed
}

// said returns the rest of each line that begins with a prefix.
func (m *monolith) said(prefix string) (rest []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.lines {
		if text, ok := strings.CutPrefix(line, prefix+" "); ok {
			rest = append(rest, text)
		}
	}
	return rest
}

func (m *monolith) await(t *testing.T, prefix string, n int, within time.Duration) []string {
	t.Helper()
	require.Eventually(t, func() bool { return len(m.said(prefix)) >= n }, within, 10*time.Millisecond, "%d lines %q", n, prefix)
	return m.said(prefix)
}

// freeze freezes a file system until thaw is called or the test ends.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	thaw = sync.OnceFunc(func() { _, _ = tool("fsfreeze", "-u", dir) })
	t.Cleanup(thaw)
	_, err := tool("fsfreeze", "-f", dir)
	require.NoError(t, err)
	return thaw
}

// requireStored opens the store of a killed process, and looks for what it has acknowledged.
func requireStored(t *testing.T, path string, ids []string) {
	t.Helper()
	require.NotEmpty(t, ids)
	s := openAt(t, path, WithExclusive())
	defer closeStore(t, s)
	for _, text := range ids {
		id, err := eventbus.ParseEventID(text)
		require.NoError(t, err)
		records, err := s.Lookup(t.Context(), driver.ID(id))
		require.NoError(t, err)
		require.Len(t, records, 1, "event %s was acknowledged", text)
	}
	report, err := s.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, problems(report))
}

// While the file system is frozen, goroutines that have nothing to do with the bus go on.
func TestStalled_TheProcessGoesOn(t *testing.T) {
	t.Parallel()
	dir := freezable(t)
	rounds := 1
	if *search {
		rounds = 3
	}
	for round := range rounds {
		path := filepath.Join(dir, fmt.Sprintf("bus%d.db", round))
		m := startMonolith(t, path)
		m.await(t, "accepted", 20, 30*time.Second)
		thaw := freeze(t, dir)
		time.Sleep(500 * time.Millisecond)
		before, accepted := len(m.said("tick")), len(m.said("accepted"))
		m.await(t, "tick", before+50, 15*time.Second)
		require.Len(t, m.said("accepted"), accepted, "nothing is accepted while the disk is frozen")
		thaw()
		m.await(t, "accepted", accepted+20, 30*time.Second)
		m.kill()
		requireStored(t, path, m.said("accepted"))
	}
}

// Shutdown returns while the file system is frozen.
func TestStalled_ShutdownReturns(t *testing.T) {
	t.Parallel()
	dir := freezable(t)
	path := filepath.Join(dir, "bus.db")
	m := startMonolith(t, path)
	m.await(t, "accepted", 20, 30*time.Second)
	thaw := freeze(t, dir)
	time.Sleep(500 * time.Millisecond)
	_, err := io.WriteString(m.in, "shutdown\n")
	require.NoError(t, err)
	fields := strings.Fields(m.await(t, "shutdown", 1, 30*time.Second)[0])
	took, err := time.ParseDuration(fields[0])
	require.NoError(t, err)
	require.Less(t, took, 3500*time.Millisecond)
	require.Equal(t, "true", fields[1], "an *UnconfirmedError: %v", fields)
	thaw()
	m.kill()
	requireStored(t, path, m.said("accepted"))
}

// TestStalledChild is the child process of the tests above.
func TestStalledChild(t *testing.T) {
	if os.Getenv(childMode) != "stalled" {
		t.Skip("runs in a child process only")
	}
	s, err := Open(context.Background(), os.Getenv(childPath), WithExclusive())
	require.NoError(t, err)
	b, err := eventbus.New(eventbus.WithStore(s))
	require.NoError(t, err)
	_, err = b.Subscribe("t.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("s"))
	require.NoError(t, err)
	require.NoError(t, b.Start(context.Background()))
	var printing sync.Mutex
	say := func(line ...any) {
		printing.Lock()
		defer printing.Unlock()
		fmt.Println(line...) //nolint:forbidigo // the parent reads it
	}
	publish := func(pause time.Duration, accepted func(eventbus.EventID), opts ...eventbus.PublishOption) {
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			if id, err := b.Publish(ctx, "t.x", 1, opts...); err == nil {
				accepted(id)
			}
			cancel()
			time.Sleep(pause)
		}
	}
	go publish(50*time.Millisecond, func(eventbus.EventID) {}) // they are handled, and leave the store
	go publish(70*time.Millisecond, func(id eventbus.EventID) { say("accepted", id) }, eventbus.After(time.Hour))
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			began := time.Now()
			err := b.Shutdown(ctx)
			took := time.Since(began)
			cancel()
			var unconfirmed *eventbus.UnconfirmedError
			say("shutdown", took, errors.As(err, &unconfirmed), err)
		}
	}()
	var keep [][]byte
	for { // the rest of the program: the garbage collector stops all its threads
		if keep = append(keep, make([]byte, 1<<20)); len(keep) > 10 {
			keep = nil
			runtime.GC()
		}
		say("tick", len(keep))
		time.Sleep(20 * time.Millisecond)
	}
}
