package sqlite

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

var requireDisks = flag.Bool("require", false, "fail, instead of skipping, where TestPowerCut cannot mount a file system")

// tierTools are the programs of the tier, from e2fsprogs, mount and util-linux.
var tierTools = []string{"mkfs.ext4", "debugfs", "losetup", "mount", "umount", "fsfreeze"}

// needsDisks skips a test where no loop device can be mounted.
func needsDisks(t *testing.T) {
	t.Helper()
	why := ""
	if os.Getuid() != 0 {
		why = "it needs root"
	}
	for _, name := range tierTools {
		if toolPath(name) == "" {
			why = "there is no " + name
		}
	}
	if why == "" {
		if out, err := exec.CommandContext(t.Context(), toolPath("losetup"), "-f").CombinedOutput(); err != nil {
			why = fmt.Sprintf("there is no free loop device: %v: %s", err, out)
		}
	}
	switch {
	case why == "":
	case *requireDisks:
		t.Fatalf("mounting a file system on a loop device: %s", why)
	default:
		t.Skipf("SKIP: mounting a file system on a loop device: %s", why)
	}
}

// toolPath returns the path of a program, which may be in a directory that is not in PATH, or "".
func toolPath(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/sbin", "/usr/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return ""
}

func runTool(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also in cleanups
	defer cancel()
	out, err := exec.CommandContext(ctx, toolPath(name), args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// disk is an ext4 on a loop device. Its image is a sparse file on a tmpfs of its own.
type disk struct {
	t       testing.TB
	under   string // the tmpfs
	image   string
	device  string
	dir     string // where it is mounted
	options string
	mounted bool
}

func newDisk(t *testing.T, mib int, options string) *disk {
	t.Helper()
	needsDisks(t)
	d := &disk{t: t, under: t.TempDir(), dir: t.TempDir(), options: options}
	require.NoError(t, unix.Mount("tmpfs", d.under, "tmpfs", 0, fmt.Sprintf("size=%dm", mib*2+64)))
	t.Cleanup(func() { _ = unix.Unmount(d.under, unix.MNT_DETACH) })
	d.image = filepath.Join(d.under, "image")
	f, err := os.Create(d.image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(int64(mib)<<20))
	runTool(t, "mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", d.image)
	d.allocate(f)
	require.NoError(t, f.Close())
	d.device = runTool(t, "losetup", "-f", "--show", d.image)
	t.Cleanup(func() {
		if d.mounted {
			_ = unix.Unmount(d.dir, unix.MNT_DETACH)
		}
		_ = exec.CommandContext(context.Background(), toolPath("losetup"), "-d", d.device).Run() // deferred while it is in use
	})
	// The loop device reports a write as done of which only the first pages had space. Requests of one page cannot be cut.
	queue := filepath.Join("/sys/block", filepath.Base(d.device), "queue/max_sectors_kb")
	require.NoError(t, os.WriteFile(queue, []byte("4"), 0o600))
	d.mount()
	return d
}

// allocate gives the file system's own blocks and its journal their places in the image, so that exhaust fails only the
// writing of files.
func (d *disk) allocate(image *os.File) {
	d.t.Helper()
	const blockSize = 4096
	blocks := []string{}
	for block := range 1 << 20 / blockSize {
		blocks = append(blocks, strconv.Itoa(block))
	}
	const journal = "<8>"
	for _, field := range append(blocks, strings.Fields(runTool(d.t, "debugfs", "-R", "blocks "+journal, d.image))...) {
		if block, err := strconv.ParseInt(field, 10, 64); err == nil {
			require.NoError(d.t, unix.Fallocate(int(image.Fd()), 0, block*blockSize, blockSize))
		}
	}
}

func (d *disk) mount() {
	d.t.Helper()
	args := []string{"-t", "ext4", d.device, d.dir}
	if d.options != "" {
		args = append(args, "-o", d.options)
	}
	runTool(d.t, "mount", args...)
	d.mounted = true
}

func (d *disk) path() string { return filepath.Join(d.dir, "events.db") }

// restart unmounts the file system and mounts it again, as after a power cut. All processes on it have ended.
func (d *disk) restart() {
	d.t.Helper()
	runTool(d.t, "umount", d.dir)
	d.mounted = false
	d.mount()
}

// cut stops all writing to the device, without the blocks and the journal that it lacks: what only the page cache has
// is lost. It returns the instants before and after the cut.
func (d *disk) cut() (before, after time.Time) {
	d.t.Helper()
	f, err := os.Open(d.dir)
	require.NoError(d.t, err)
	defer f.Close()
	const ioctlShutdown, noLogFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN
	flags := uint32(noLogFlush)
	before = time.Now()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlShutdown, uintptr(unsafe.Pointer(&flags)))
	require.Zero(d.t, errno, errno.Error())
	return before, time.Now()
}

// exhaust fills the tmpfs below the image, except some bytes. A sync that needs a new block of the image then fails with
// EIO, as on a thin volume without space. Blocks that the image has remain writable.
func (d *disk) exhaust(room int64) {
	d.t.Helper()
	var st unix.Statfs_t
	ballast, err := os.Create(d.ballast())
	require.NoError(d.t, err)
	defer ballast.Close()
	for size := int64(0); ; {
		require.NoError(d.t, unix.Statfs(d.under, &st))
		n := min(int64(st.Bavail)*st.Bsize-room, 1<<20)
		if n <= 0 {
			return
		}
		if unix.Fallocate(int(ballast.Fd()), 0, size, n) == nil { // the store writes meanwhile
			size += n
		}
	}
}

// sync writes what the page cache has to the device.
func (d *disk) sync() {
	d.t.Helper()
	f, err := os.Open(d.dir)
	require.NoError(d.t, err)
	defer f.Close()
	_ = unix.Syncfs(int(f.Fd())) // it reports an error of an earlier write once
	require.NoError(d.t, unix.Syncfs(int(f.Fd())))
}

// release ends what exhaust has begun.
func (d *disk) release() { require.NoError(d.t, os.Remove(d.ballast())) }

func (d *disk) ballast() string { return filepath.Join(d.under, "ballast") }

// tierSpec is the work of a child process, which the tests of the tier pass in tierEnv.
type tierSpec struct {
	Work string // a key of tierWork
	Path string
	Seed uint64
	N    int  // publications; 0: without an end
	Stop bool // it ends at the first error

	Normal bool // WithNormalSync
}

const tierEnv = "EVENTBUS_SQLITE_TIER"

// TestTierChild is the child process.
func TestTierChild(t *testing.T) {
	text := os.Getenv(tierEnv)
	if text == "" {
		t.Skip("runs in a child process only")
	}
	var spec tierSpec
	require.NoError(t, json.Unmarshal([]byte(text), &spec))
	tierWork[spec.Work](t, spec)
}

var saying sync.Mutex

// say writes a line to the parent: a verb, the time in nanoseconds, and a text.
func say(verb string, text any) {
	saying.Lock()
	defer saying.Unlock()
	line := fmt.Sprintf("%s %d %v", verb, time.Now().UnixNano(), text)
	fmt.Println(strings.ReplaceAll(line, "\n", " ")) //nolint:forbidigo // the parent reads it
}

// said is a line of a child process.
type said struct {
	verb string
	at   time.Time
	text string
}

// tierChild is a running child process.
type tierChild struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	ended chan struct{} // closed after its last line

	mu     sync.Mutex // guards the following
	lines  []said
	others []string // what is no line of say: a panic
}

func startTierChild(t *testing.T, spec tierSpec) *tierChild {
	t.Helper()
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	c := &tierChild{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTierChild$"), ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), tierEnv+"="+string(text))
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.cmd.Stderr = c.cmd.Stdout
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() { c.kill() })
	go func() {
		defer close(c.ended)
		scanner := bufio.NewScanner(out)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			c.read(scanner.Text())
		}
	}()
	return c
}

func (c *tierChild) read(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	verb, rest, _ := strings.Cut(line, " ")
	nanos, text, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil {
		c.others = append(c.others, line)
		return
	}
	c.lines = append(c.lines, said{verb, time.Unix(0, n), text})
}

// said returns the lines with a verb.
func (c *tierChild) said(verb string) (found []said) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		if l.verb == verb {
			found = append(found, l)
		}
	}
	return found
}

// awaits waits for the first line with a verb, since an instant, that has a text.
func (c *tierChild) awaits(verb, text string, since time.Time) said {
	c.t.Helper()
	ended := false
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		for _, l := range c.said(verb) {
			if l.at.After(since) && strings.Contains(l.text, text) {
				return l
			}
		}
		if ended {
			break
		}
		select {
		case <-c.ended:
			ended = true
		case <-time.After(2 * time.Millisecond):
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var last strings.Builder
	for _, l := range c.lines[max(0, len(c.lines)-5):] {
		fmt.Fprintf(&last, "%s %s %s\n", l.verb, l.at.Format(time.StampMilli), l.text)
	}
	c.t.Fatalf("the child did not say %s %q since %s; its last lines:\n%s%s", verb, text, since.Format(time.StampMilli), last.String(), strings.Join(c.others, "\n"))
	return said{}
}

// does tells the child what to do, and waits until it is done.
func (c *tierChild) does(what string) {
	c.t.Helper()
	before := time.Now()
	_, err := fmt.Fprintln(c.in, what)
	require.NoError(c.t, err)
	c.awaits("done", what, before)
}

// kill ends the child, and waits for its last lines.
func (c *tierChild) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
	_ = c.cmd.Wait() // it was killed
}

// tierBooks is what the children have said about their events, by id.
type tierBooks struct {
	acknowledged, handled map[string]bool
	found                 int // of the acknowledged, in the store at the last look
}

func newTierBooks() *tierBooks {
	return &tierBooks{acknowledged: make(map[string]bool), handled: make(map[string]bool)}
}

// add adds what a child has said about acknowledgements before the cut, and about handlers before its end: a handler
// says it before the store records it.
func (b *tierBooks) add(c *tierChild, before, after time.Time) {
	for _, l := range c.said("accepted") {
		if l.at.Before(before) {
			b.acknowledged[l.text] = true
		}
	}
	for _, l := range c.said("handled") {
		if l.at.Before(after) {
			b.handled[l.text] = true
		}
	}
}

// lost opens the store, verifies it, and returns the acknowledged events that are neither a record nor a letter and were
// not handled.
func (b *tierBooks) lost(t *testing.T, path string) (lost []string) {
	t.Helper()
	ctx := context.Background()
	s, err := Open(ctx, path)
	require.NoError(t, err)
	defer closeStore(t, s)
	report, err := s.Verify(ctx, nil)
	require.NoError(t, err)
	for _, p := range report.Problems {
		t.Errorf("Verify: %v", p)
	}
	letters := make(map[string]bool)
	page, err := s.Letters(ctx, driver.LetterQuery{Limit: 100_000})
	require.NoError(t, err)
	require.Less(t, len(page.Letters), 100_000, "not all letters were listed")
	for _, l := range page.Letters {
		letters[l.Event.String()] = true
	}
	b.found = 0
	for text := range b.acknowledged {
		if letters[text] {
			b.found++
			continue
		}
		if b.handled[text] {
			continue
		}
		id, err := eventbus.ParseEventID(text)
		require.NoError(t, err)
		records, err := s.Lookup(ctx, driver.ID(id))
		require.NoError(t, err)
		incoming, err := s.Incoming(ctx, driver.IncomingQuery{Event: driver.ID(id), Limit: 1})
		require.NoError(t, err)
		if len(records)+len(incoming.Events) == 0 {
			lost = append(lost, text)
		} else {
			b.found++
		}
	}
	return lost
}
