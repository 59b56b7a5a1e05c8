package sqlite

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// tierWork is what child processes do, by tierSpec.Work.
var tierWork = map[string]func(*testing.T, tierSpec){
	"publish": publishAtTier,
	"beside":  publishBeside,
	"obey":    checkpointAtTier,
}

var tierPayload = strings.Repeat("x", 3000)

// publishAtTier publishes events that no handler takes.
func publishAtTier(t *testing.T, spec tierSpec) {
	bus := pausedBus(t, openAt(t, spec.Path), true)
	require.NoError(t, bus.Start(t.Context()))
	publishTo(bus, spec)
	time.Sleep(time.Hour)
}

// publishBeside does the same beside the process with the lease.
func publishBeside(t *testing.T, spec tierSpec) {
	publishTo(pausedBus(t, openOnly(t, spec.Path), false), spec)
	time.Sleep(time.Hour)
}

// pausedBus returns a bus with a subscription, which the bus with the lease has paused.
func pausedBus(t *testing.T, s *Store, pause bool) *eventbus.Bus {
	bus, err := eventbus.New(eventbus.WithStore(s), eventbus.WithLogger(logOfChild()))
	require.NoError(t, err)
	sub, err := bus.Subscribe("*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("paused"))
	require.NoError(t, err)
	if pause {
		require.NoError(t, sub.Pause())
	}
	return bus
}

func publishTo(bus *eventbus.Bus, spec tierSpec) {
	for i := 0; spec.N == 0 || i < spec.N; i++ {
		id, err := bus.Publish(context.Background(), "order", tierPayload)
		if err == nil {
			say("accepted", id)
			continue
		}
		if say("refused", err); spec.Stop {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	say("done", "")
}

// checkpointAtTier works on a store, and does what the parent tells it.
func checkpointAtTier(t *testing.T, spec tierSpec) {
	opts := []Option{WithLogger(logOfChild())}
	if spec.Normal {
		opts = append(opts, WithNormalSync())
	}
	s := openAt(t, spec.Path, opts...)
	s.cfg.checkpointAt = 1 << 30
	vanished := false
	change := func(b *driver.Batch) {
		for !vanished && submit(s, b) != nil {
			b.Epoch = 0                  // that of the next lease
			err := s.Reopen(t.Context()) // as a bus does
			var corrupt *CorruptError
			if vanished = spec.Normal && errors.As(err, &corrupt); vanished {
				say("vanished", err)
				return
			}
			require.NoError(t, err)
		}
	}
	var first []*driver.Record
	for told := bufio.NewScanner(os.Stdin); told.Scan(); {
		switch told.Text() {
		case "accept":
			for range spec.N {
				r := with(ready(""), func(r *driver.Record) { r.Payload = []byte(tierPayload) })
				change(&driver.Batch{New: []*driver.Record{r}})
				first = append(first, r)
			}
		case "settle":
			for _, r := range first {
				change(&driver.Batch{Delete: []driver.Ref{r.Ref}})
			}
			first = nil
		case "empty the log":
			inside(t, s, func(c *committer) error { return c.checkpoint(truncate) })
		case "checkpoint":
			inside(t, s, func(c *committer) error {
				_ = c.tryCheckpoint(passive)
				return nil
			})
		}
		say("done", told.Text())
	}
}

// logOfChild passes warnings and errors to the parent.
func logOfChild() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), logToParent{}, zap.WarnLevel))
}

type logToParent struct{}

func (logToParent) Write(b []byte) (int, error) { say("log", string(b)); return len(b), nil }
func (logToParent) Sync() error                 { return nil }

// failSync publishes until a sync fails because the disk has no space, and ends the process. It returns the books of
// all that was acknowledged, with the disk in order again.
func failSync(t *testing.T, d *disk) *tierBooks {
	t.Helper()
	books := newTierBooks()
	first := startTierChild(t, tierSpec{Work: "publish", Path: d.path(), N: 40})
	first.awaits("done", "", time.Time{})
	first.kill()
	d.exhaust(256 << 10)
	second := startTierChild(t, tierSpec{Work: "publish", Path: d.path(), Stop: true})
	t.Log("the first error: ", second.awaits("refused", eventbus.ErrStoreFailed.Error(), time.Time{}).text)
	second.awaits("log", "disk I/O error", time.Time{})
	second.kill()
	d.release()
	for _, c := range []*tierChild{first, second} {
		books.add(c, time.Now(), time.Now())
	}
	return books
}

// powerCutWhile lets a child publish, cuts the power, and requires that nothing acknowledged is lost.
func (b *tierBooks) powerCutWhile(t *testing.T, d *disk, c *tierChild) {
	t.Helper()
	c.awaits("done", "", time.Time{})
	b.cut(t, d, c)
}

func (b *tierBooks) cut(t *testing.T, d *disk, c *tierChild) {
	t.Helper()
	before, after := d.cut()
	c.kill()
	b.add(c, before, after)
	d.restart()
	lost := b.lost(t, d.path())
	require.Empty(t, lost, "%d of %d acknowledged events are lost", len(lost), len(b.acknowledged))
	t.Logf("%d acknowledged, 0 lost", len(b.acknowledged))
}

// A supervisor starts the process again while the page cache has frames of the log that the disk lacks.
func TestFailedSync_RestartOfTheProcess(t *testing.T) {
	d := newDisk(t, 64, "")
	books := failSync(t, d)
	books.powerCutWhile(t, d, startTierChild(t, tierSpec{Work: "publish", Path: d.path(), N: 30}))
}

// The first process that reads the log has no lease, and acknowledges as well.
func TestFailedSync_ProcessBesideFirst(t *testing.T) {
	d := newDisk(t, 64, "")
	books := failSync(t, d)
	books.powerCutWhile(t, d, startTierChild(t, tierSpec{Work: "beside", Path: d.path(), N: 30}))
}

// The bus reopens the store in the same process.
func TestFailedSync_ReopenInPlace(t *testing.T) {
	d := newDisk(t, 64, "")
	c := startTierChild(t, tierSpec{Work: "publish", Path: d.path()})
	c.awaits("accepted", "", time.Time{})
	d.exhaust(256 << 10)
	failed := c.awaits("refused", "", time.Time{})
	t.Log("the first error: ", failed.text)
	time.Sleep(time.Second) // the bus tries to reopen the store
	d.release()
	again := c.awaits("accepted", "", time.Now())
	c.awaits("accepted", "", again.at.Add(100*time.Millisecond))
	newTierBooks().cut(t, d, c)
}

// Without syncs of commits, a checkpoint is the first to sync the log. If that fails once, the next one must not copy
// what the disk lacks into the database: after a power cut, it would have pages of different commits.
func TestFailedSync_CheckpointWithNormalSync(t *testing.T) {
	for range 10 {
		if checkpointWithNormalSync(t) {
			return
		}
		t.Log("the kernel has dropped what it could not write, and the store refuses the rest: once more")
	}
	t.Fatal("the store was never reopened")
}

// checkpointWithNormalSync reports whether the store had its commits after the failure. Without syncs of commits, the
// kernel may drop them when it cannot write them.
func checkpointWithNormalSync(t *testing.T) (reopened bool) {
	d := newDisk(t, 64, "discard") // the blocks of the first log need space again
	c := startTierChild(t, tierSpec{Work: "obey", Path: d.path(), N: 100, Normal: true})
	c.does("accept")
	c.does("empty the log")
	d.sync()
	c.does("accept")
	d.sync()
	d.exhaust(16 << 10)
	c.does("settle")
	before := time.Now()
	c.does("checkpoint")
	t.Log(c.awaits("log", "disk I/O error", before).text)
	d.release()
	c.does("accept")
	if len(c.said("vanished")) > 0 {
		c.kill()
		return false
	}
	c.does("checkpoint")
	d.cut()
	c.kill()
	d.restart()
	newTierBooks().lost(t, d.path()) // it verifies the store
	return true
}

// The sync of the database fails in a checkpoint. The next checkpoint must write the same pages to the disk.
func TestFailedSync_OfTheDatabase(t *testing.T) {
	d := newDisk(t, 64, "")
	c := startTierChild(t, tierSpec{Work: "obey", Path: d.path(), N: 100})
	c.does("accept")
	d.exhaust(16 << 10)
	before := time.Now()
	c.does("checkpoint")
	t.Log(c.awaits("log", "disk I/O error", before).text)
	d.release()
	c.does("accept")
	c.does("empty the log")
	d.sync()
	d.cut()
	c.kill()
	d.restart()
	newTierBooks().lost(t, d.path()) // it verifies the store
}

// Before the store copies anything into the database, the page cache forgets the pages of the database.
func TestFailedSync_TheCacheForgetsTheDatabase(t *testing.T) {
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(t.TempDir(), &st))
	if st.Type == unix.TMPFS_MAGIC {
		t.Skip("SKIP: a file system in memory has no other place for its pages")
	}
	path := filled(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	copied := copyFiles(t, path)
	closeStore(t, s)
	resident := -1
	setFailpoint(func(name string) {
		if name == "lease: log synced" {
			resident = residentPages(t, copied)
		}
	})
	defer func() { setFailpoint(nil) }()
	require.NotZero(t, residentPages(t, copied))
	closeStore(t, openAt(t, copied))
	require.Zero(t, resident)
}

// residentPages returns the number of pages of a file in the page cache.
func residentPages(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mapped)) }()
	pages := make([]byte, (len(mapped)+os.Getpagesize()-1)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), uintptr(len(mapped)), uintptr(unsafe.Pointer(&pages[0])))
	require.Zero(t, errno, errno.Error())
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}
