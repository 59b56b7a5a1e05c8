package sqlite

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

func TestBackup_IsAStore(t *testing.T) {
	path, copied := filled(t), testPath(t)
	s := openAt(t, path)
	claimed, err := s.Claim(t.Context(), driver.ClaimQuery{Limit: 1000})
	require.NoError(t, err)
	require.Len(t, claimed.Records, 200)
	require.NoError(t, s.Backup(t.Context(), copied))
	bury(t, s, letterFor("later", eventbus.ReasonCrash, "e"))
	require.Empty(t, problems(verifyAt(t, path)))
	if runtime.GOOS != "windows" {
		info, err := os.Stat(copied)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
	}

	before, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Empty(t, problems(verifyAt(t, copied)))
	after, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Equal(t, before, after, "verifying has changed the file")
	require.NoFileExists(t, copied+"-wal")

	b := openAt(t, copied)
	report, err := b.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, VerifyReport{Records: 200, Letters: 50}, report)
	claimed, err = b.Claim(t.Context(), driver.ClaimQuery{Limit: 1000})
	require.NoError(t, err)
	require.Len(t, claimed.Records, 200)
	for _, r := range claimed.Records {
		require.Zero(t, r.Crashes, "the bus of the backup did not crash")
	}
}

func TestBackup_OverwritesNothing(t *testing.T) {
	s := openAt(t, filled(t))
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("file"), []byte("mine"), 0o600))
	require.NoError(t, os.WriteFile(at("new-lease"), []byte("mine"), 0o600))
	paths := []string{"", at("file"), at("new"), dir}
	if os.Symlink(at("target"), at("link")) == nil {
		paths = append(paths, at("link"))
	}
	for _, path := range paths {
		var refused *PathError
		require.ErrorAs(t, s.Backup(t.Context(), path), &refused, path)
	}
	require.ErrorIs(t, s.Backup(t.Context(), at("missing/file")), fs.ErrNotExist)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Backup(ctx, at("cancelled")), context.Canceled)
	content, err := os.ReadFile(at("file"))
	require.NoError(t, err)
	require.Equal(t, "mine", string(content))
	for _, name := range []string{"target", "new", "cancelled"} {
		_, err := os.Lstat(at(name))
		require.ErrorIs(t, err, fs.ErrNotExist, name)
	}
	closeStore(t, s)
	require.ErrorIs(t, s.Backup(t.Context(), at("closed")), driver.ErrClosed)
}

// An error of the disk is an error of the backup, also if it comes after the copy was written.
func TestFailedSync_OfABackup(t *testing.T) {
	s := openAt(t, filled(t), WithLockWait(10*time.Millisecond))
	before := syncOpenDir
	defer func() { syncOpenDir = before }()
	cause := error(syscall.EIO)
	syncOpenDir = func(*os.File) error { return cause }
	path := testPath(t)
	if runtime.GOOS != "windows" {
		require.ErrorIs(t, s.Backup(t.Context(), path), syscall.EIO)
		require.NoFileExists(t, path)
	}
	cause = syscall.EINVAL // there is no sync of a directory
	require.NoError(t, s.Backup(t.Context(), path))

	// The log of the copy cannot be emptied.
	w, err := openWriter(t.Context(), &Store{path: path, cfg: s.cfg})
	require.NoError(t, err)
	require.NoError(t, w.transaction(func() error {
		stmt, err := w.stmt(metaQuery)
		require.NoError(t, err)
		m, err := readMeta(stmt, path)
		require.NoError(t, err)
		m.held = true
		return m.update(w)
	}))
	require.NoError(t, query(w.conn, "BEGIN", nil))
	_, err = queryInt(w.conn, "SELECT count(*) FROM eventbus_record")
	require.NoError(t, err)
	err = s.endLeaseOf(t.Context(), path)
	require.Equal(t, sqlite3.ResultBusy, sqlite3.ErrCode(err), "%v", err)
	require.NoError(t, w.close())
}
