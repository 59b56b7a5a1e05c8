package sqlite

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/surebus/eventbus"
)

// tierFaults are the subtests of TestPowerCut.
var tierFaults = map[string]func(*testing.T){
	"an fsync that fails once":        faultFailedSync,
	"a full disk that comes back":     faultFullDisk,
	"a limit on the size of files":    faultFileSize,
	"a file system that is read-only": faultReadOnly,
	"a frozen file system":            faultFrozen,
	"errors on reads":                 faultReads,
}

func init() { tierWork["serve"] = serveAtTier }

// serveAtTier publishes and handles events.
func serveAtTier(t *testing.T, spec tierSpec) {
	bus, err := eventbus.New(eventbus.WithStore(openAt(t, spec.Path)), eventbus.WithLogger(logOfChild()))
	require.NoError(t, err)
	_, err = bus.Subscribe("*", func(_ context.Context, e eventbus.Event) error {
		say("handled", e.ID)
		return nil
	}, eventbus.Named("serves"))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	publishTo(bus, spec)
}

// whileServing begins a fault while a bus works, waits for a refused publication and a cause, or for neither if the cause
// is empty, and ends the fault. The bus then goes on in the same process. The power is cut at last: nothing is lost.
func whileServing(t *testing.T, d *disk, cause string, begin func(c *tierChild), end func(c *tierChild)) {
	t.Helper()
	c := startTierChild(t, tierSpec{Work: "serve", Path: d.path()})
	c.awaits("accepted", "", time.Time{})
	since := time.Now()
	begin(c)
	if cause == "" {
		time.Sleep(time.Second)
	} else {
		c.awaits("refused", eventbus.ErrStoreFailed.Error(), since)
		t.Log("the store has failed: ", c.awaits("log", cause, since).text) // another batch than a publication may fail first
		time.Sleep(300 * time.Millisecond)                                  // the bus tries to reopen the store
	}
	end(c)
	again := c.awaits("accepted", "", time.Now())
	handled := c.awaits("handled", "", again.at)
	c.awaits("accepted", "", handled.at)
	books := newTierBooks()
	books.cut(t, d, c)
}

func faultFailedSync(t *testing.T) {
	d := newDisk(t, 64, "")
	whileServing(t, d, "disk I/O error", func(*tierChild) { d.exhaust(256 << 10) }, func(*tierChild) { d.release() })
}

func faultFullDisk(t *testing.T) {
	d := newDisk(t, 64, "")
	ballast := filepath.Join(d.dir, "ballast")
	fill := func(*tierChild) {
		f, err := os.Create(ballast)
		require.NoError(t, err)
		defer f.Close()
		for size, piece := int64(0), int64(1<<20); piece >= 4096; {
			if unix.Fallocate(int(f.Fd()), 0, size, piece) == nil {
				size += piece
			} else {
				piece /= 2
			}
		}
	}
	whileServing(t, d, ErrFull.Error(), fill, func(*tierChild) { require.NoError(t, os.Remove(ballast)) })
}

func faultFileSize(t *testing.T) {
	d := newDisk(t, 64, "")
	limit := func(bytes uint64) func(*tierChild) {
		return func(c *tierChild) {
			require.NoError(t, unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: math.MaxUint64}, nil))
		}
	}
	whileServing(t, d, ErrFull.Error(), limit(1<<20), limit(math.MaxUint64))
}

// ext4 makes itself read-only at an error. It becomes writable only when it is mounted again, so the process ends.
func faultReadOnly(t *testing.T) {
	d := newDisk(t, 64, "errors=remount-ro")
	books := newTierBooks()
	c := startTierChild(t, tierSpec{Work: "serve", Path: d.path()})
	c.awaits("accepted", "", time.Time{})
	since := time.Now()
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(d.device), "trigger_fs_error")
	require.NoError(t, os.WriteFile(trigger, []byte("a test of the event bus"), 0o600))
	refused := c.awaits("refused", eventbus.ErrStoreFailed.Error(), since)
	t.Log("refused: ", refused.text)
	c.kill()
	books.add(c, time.Now(), time.Now())
	_, err := Open(t.Context(), d.path())
	require.ErrorIs(t, err, unix.EROFS)
	d.restart()
	c = startTierChild(t, tierSpec{Work: "serve", Path: d.path()})
	c.awaits("accepted", "", time.Time{})
	books.cut(t, d, c)
}

func faultFrozen(t *testing.T) {
	d := newDisk(t, 64, "")
	thaw := func(*tierChild) { runTool(t, "fsfreeze", "-u", d.dir) }
	frozen := false
	t.Cleanup(func() {
		if frozen {
			thaw(nil)
		}
	})
	whileServing(t, d, "", func(*tierChild) {
		runTool(t, "fsfreeze", "-f", d.dir)
		frozen = true
	}, func(c *tierChild) {
		frozen = false
		thaw(c)
	})
}

// A loop device reports an error where its image has ended. The store does not open then, and opens when the image is
// whole again.
func faultReads(t *testing.T) {
	d := newDisk(t, 64, "commit=1000,noatime")
	c := startTierChild(t, tierSpec{Work: "publish", Path: d.path(), N: 100})
	c.awaits("done", "", time.Time{})
	c.kill()
	books := newTierBooks()
	books.add(c, time.Now(), time.Now())
	d.restart() // nothing is cached
	image, err := os.ReadFile(d.image)
	require.NoError(t, err)
	_, err = os.Stat(d.path())
	require.NoError(t, err)
	require.NoError(t, os.Truncate(d.image, 4<<20)) // the file system's own blocks stay
	_, err = Open(t.Context(), d.path(), WithLogger(zap.NewNop()))
	t.Log("Open: ", err)
	f, openErr := os.OpenFile(d.image, os.O_RDWR, 0)
	require.NoError(t, openErr)
	_, writeErr := f.WriteAt(image[4<<20:], 4<<20)
	require.NoError(t, writeErr)
	require.NoError(t, f.Close())
	require.Error(t, err)
	require.Regexp(t, "disk I/O error|input/output error", err.Error()) // SQLite's, or that of the lease file
	require.NotErrorIs(t, err, ErrFull)
	c = startTierChild(t, tierSpec{Work: "publish", Path: d.path(), N: 10})
	books.powerCutWhile(t, d, c)
}
