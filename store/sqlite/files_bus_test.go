package sqlite_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// skipOnWindows skips a test that changes files while they are open.
func skipOnWindows(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("SKIP: Windows does not replace open files")
	}
}

// failure returns the error of the store that made the bus restart.
func (p *process) failure() error {
	p.t.Helper()
	p.logged("store failed: the bus restarts")
	return errorOf(p.logs.FilterMessage("store failed: the bus restarts").All()[0].Context)
}

// reopenFailure returns the last error of reopening the store, after at least one.
func (p *process) reopenFailure() error {
	p.t.Helper()
	p.logged("store does not reopen")
	all := p.logs.FilterMessage("store does not reopen").All()
	return errorOf(all[len(all)-1].Context)
}

func errorOf(fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok {
			return err
		}
	}
	return errors.New("no error was logged")
}

// A damaged file is refused before there is a bus, and is not changed. When it is restored, nothing
// is lost.
func TestRow73_DamagedAtOpen(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"garbage": func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("garbage "), 2000), 0o600))
		},
		"truncated": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 8192)) },
		"empty":     func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"deleted":   func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"swapped": func(t *testing.T, path string) {
			other := newPath(t)
			withLetters(t, other, 1)
			require.NoError(t, os.Rename(other, path))
		},
		"old copy": func(t *testing.T, path string) {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			p := begin(t, path)
			p.handles("mail", nil)
			p.publish("newer", eventbus.After(time.Hour))
			p.end()
			require.NoError(t, os.WriteFile(path, content, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			p := begin(t, path)
			p.handles("mail", nil)
			p.publish("kept")
			p.end()
			intact, err := os.ReadFile(path)
			require.NoError(t, err)
			damage(t, path)
			damaged, _ := os.ReadFile(path)
			for range 2 {
				_, err = sqlite.Open(t.Context(), path)
				var corrupt *sqlite.CorruptError
				require.ErrorAs(t, err, &corrupt)
			}
			left, _ := os.ReadFile(path)
			require.Equal(t, damaged, left)
			if name == "old copy" {
				return
			}
			require.NoError(t, os.WriteFile(path, intact, 0o600))
			p = begin(t, path)
			p.handles("mail", nil)
			p.start()
			p.waitCalls("mail kept")
			p.settled().end()
		})
	}
}

// The file is damaged while the bus runs: the bus stops safely. An operator restores a copy, accepts
// with the removal of the lease file that it lacks the last commits, and the bus goes on.
func TestRow73_DamagedWhileOpen(t *testing.T) {
	t.Parallel()
	skipOnWindows(t)
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil, eventbus.Concurrency(1))
	p.start()
	p.publish("scheduled", eventbus.After(3*time.Second))
	p.waitIdle(path)
	intact, err := os.ReadFile(path)
	require.NoError(t, err)
	overwrite(t, path, bytes.Repeat([]byte{0x5a}, len(intact)))
	p.refuses("x")
	require.Error(t, p.failure())
	var corrupt *sqlite.CorruptError
	require.ErrorAs(t, p.reopenFailure(), &corrupt)
	require.NoError(t, os.RemoveAll(path+"-wal"))
	overwrite(t, path, intact)
	require.NoError(t, os.Remove(path+"-lease"))
	p.logged("store reopened")
	p.publish("after")
	p.waitCalls("mail after", "mail scheduled")
	p.settled().end()
}

// waitIdle waits until the store has emptied its write-ahead log.
func (p *process) waitIdle(path string) {
	p.t.Helper()
	p.eventually("an empty log", func() bool {
		info, err := os.Stat(path + "-wal")
		return err == nil && info.Size() == 0
	})
}

// overwrite changes the content of a file, which keeps its identity.
func overwrite(t *testing.T, path string, content []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(content, 0)
	require.NoError(t, errors.Join(err, f.Close()))
}

// The file is renamed while the bus runs. The bus stops safely, and goes on when the file is back.
func TestRow74_RenamedWhileOpen(t *testing.T) {
	skipOnWindows(t)
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	p.publish("before")
	p.waitCalls("mail before")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		require.NoError(t, os.Rename(path+suffix, path+".old"+suffix))
	}
	accepted := p.refuses("x")
	require.ErrorIs(t, p.failure(), sqlite.ErrReplaced)
	var corrupt *sqlite.CorruptError
	require.ErrorAs(t, p.reopenFailure(), &corrupt, "the file is not made again")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if _, err := os.Stat(path + ".old" + suffix); err == nil {
			require.NoError(t, os.Rename(path+".old"+suffix, path+suffix))
		}
	}
	p.logged("store reopened")
	p.publish("after")
	p.waitCalls("mail after")
	for _, payload := range accepted {
		p.waitCalls("mail " + payload)
	}
	p.settled().end()
}

// The file is deleted while the bus runs: it does not come back as an empty one, not even for the
// next process.
func TestRow74_DeletedWhileOpen(t *testing.T) {
	skipOnWindows(t)
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	p.publish("before")
	p.waitCalls("mail before")
	require.NoError(t, os.Remove(path))
	p.refuses("x")
	require.ErrorIs(t, p.failure(), sqlite.ErrReplaced)
	_ = p.reopenFailure()
	_ = p.Shutdown(t.Context())
	require.NoFileExists(t, path)
	_, err := sqlite.Open(t.Context(), path)
	var corrupt *sqlite.CorruptError
	require.ErrorAs(t, err, &corrupt)
}

func TestS3_OrphansAreCountedApart(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("old", nil)
	p.handles("mail", nil)
	for i := range 3 {
		p.publish(fmt.Sprint(i))
	}
	p.crash()
	for range 2 { // the second process finds them parked
		p = begin(t, path)
		require.NoError(t, p.handles("mail", nil).Pause())
		p.start()
		p.eventually("all are parked", func() bool { return p.Metrics().Store.Parked == 6 })
		m := p.Metrics()
		require.Equal(t, map[string]int64{"old": 3}, m.Orphaned)
		require.Empty(t, m.StoreError)
		p.end()
	}
}
