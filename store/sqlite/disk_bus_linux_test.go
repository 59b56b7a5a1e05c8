package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// mountSmall mounts a file system in memory of a size.
func mountSmall(t *testing.T, size string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIP: mounting a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill publishes large payloads until the bus refuses them, and returns the accepted ones.
func (p *process) fill() (accepted []string) {
	p.t.Helper()
	large := strings.Repeat("x", 5000)
	for i := 0; ; i++ {
		payload := fmt.Sprint(i, " ", large)
		_, err := p.Publish(p.t.Context(), "order.placed", payload, eventbus.After(time.Hour))
		if err != nil {
			require.ErrorIs(p.t, err, eventbus.ErrStoreFailed)
			return accepted
		}
		accepted = append(accepted, payload)
	}
}

// The disk is full: the bus refuses publications. When there is room again, it goes on by itself,
// and everything that it accepted is there.
func TestRow65_FullDisk(t *testing.T) {
	dir := mountSmall(t, "2m")
	p := begin(t, filepath.Join(dir, "events.db"))
	later := func(string) error { return errors.New("later") }
	p.handles("mail", later, eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited)))
	p.start()
	p.publish("retried")
	p.waitCalls("mail retried")
	accepted := p.fill()
	require.NotEmpty(t, accepted)
	require.ErrorIs(t, p.failure(), sqlite.ErrFull)
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"))
	p.eventually("the bus accepts again", func() bool {
		_, err := p.Publish(t.Context(), "order.placed", "after", eventbus.After(time.Hour))
		return err == nil
	})
	stats, err := p.store.Stats(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, int(stats.Scheduled), len(accepted)+1)
	require.EqualValues(t, 1, stats.Unsettled()-stats.Scheduled, "the retried event")
	t.Logf("%d events accepted before the disk was full", len(accepted))
	p.end()
}

// Media that are read-only are refused before there is a bus.
func TestRow70_ReadOnlyMedia(t *testing.T) {
	dir := mountSmall(t, "4m")
	path := filepath.Join(dir, "events.db")
	p := begin(t, path)
	p.handles("mail", nil)
	p.publish("kept")
	p.end()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, opts := range [][]sqlite.Option{nil, {sqlite.MustExist()}} {
		_, err := sqlite.Open(t.Context(), path, opts...)
		require.ErrorIs(t, err, unix.EROFS)
	}
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, ""))
	p = begin(t, path)
	p.handles("mail", nil)
	p.start()
	p.waitCalls("mail kept")
	p.settled().end()
}

const limitedPath = "EVENTBUS_SQLITE_LIMITED"

// TestLimitedChild is the child of TestRow69_LimitedFileSize.
func TestLimitedChild(t *testing.T) {
	path := os.Getenv(limitedPath)
	if path == "" {
		t.Skip("runs in a child process only")
	}
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &was))
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: was.Max}))
	accepted := p.fill()
	failure := p.failure()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &was))
	require.ErrorIs(t, failure, sqlite.ErrFull)
	require.NotEmpty(t, accepted)
	p.logged("store reopened")
	stats, err := p.store.Stats(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, int(stats.Scheduled), len(accepted))
	p.end()
}

// A limit on the size of files is as a full disk.
func TestRow69_LimitedFileSize(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestLimitedChild$", "-test.v=true")
	cmd.Env = append(os.Environ(), limitedPath+"="+newPath(t))
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "--- PASS: TestLimitedChild")
}

// A named pipe or a device is no database.
func TestRow73_SpecialFiles(t *testing.T) {
	path := newPath(t)
	require.NoError(t, unix.Mkfifo(path, 0o600))
	for _, name := range []string{path, "/dev/null", t.TempDir()} {
		_, err := sqlite.Open(t.Context(), name)
		var bad *sqlite.PathError
		if !errors.As(err, &bad) {
			require.ErrorIs(t, err, fs.ErrPermission)
		}
	}
}
