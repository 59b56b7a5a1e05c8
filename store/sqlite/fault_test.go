package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// filled makes a store with records and letters, closes it, and returns its path.
func filled(t *testing.T) string {
	t.Helper()
	path := testPath(t)
	s := openAt(t, path)
	for i := range 200 {
		accept(t, s, with(ready(""), func(r *driver.Record) { r.Payload = []byte(strings.Repeat("p", 100+i)) }))
	}
	for i := range 50 {
		bury(t, s, letterFor(fmt.Sprint("s", i%3), eventbus.ReasonExhausted, strings.Repeat("e", 300)))
	}
	closeStore(t, s)
	return path
}

// readAll reads everything of a file, and ends with its first error.
func readAll(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	if _, err := s.Acquire(ctx, driver.AcquireQuery{}); err != nil {
		return err
	}
	for more := true; more; {
		c, err := s.Claim(ctx, driver.ClaimQuery{Limit: 100})
		if err != nil {
			return err
		}
		more = c.More
	}
	if _, err := s.Letters(ctx, driver.LetterQuery{Limit: 1000}); err != nil {
		return err
	}
	if err := s.Groups(ctx, driver.LetterQuery{}, func(*driver.Group) error { return nil }); err != nil {
		return err
	}
	_, err = s.Stats(ctx)
	return err
}

func TestStore_ReportsFlippedBits(t *testing.T) {
	t.Parallel()
	path := filled(t)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	places := []int{3, 700, 2000, 4000}
	caught, pages := 0, len(content)/4096
	if !*search {
		places = places[:1]
	}
	for page := range pages {
		for _, at := range places {
			copied := testPath(t)
			flipped := append([]byte(nil), content...)
			flipped[page*4096+at] ^= 0x10
			require.NoError(t, os.WriteFile(copied, flipped, 0o600))
			if err := readAll(copied); err != nil {
				caught++
				var corrupt *CorruptError
				if !errors.As(err, &corrupt) {
					t.Errorf("page %d, byte %d: %v", page, at, err)
				}
			}
		}
	}
	t.Logf("%d of %d flipped bits were reported; the others are in free space or unused indexes", caught, len(places)*pages)
	require.Greater(t, caught, len(places)*pages/4)
}

func TestStore_RefusesDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, path string){
		"garbage": func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("garbage ", 1000)), 0o600))
		},
		"short garbage": func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("x"), 0o600)) },
		"truncated":     func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 3*4096)) },
		"empty":         func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"missing":       func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"other store": func(t *testing.T, path string) {
			content, err := os.ReadFile(filled(t))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, content, 0o600))
		},
		"other program": func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			c, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite|sqlite3.OpenCreate)
			require.NoError(t, err)
			require.NoError(t, query(c, "CREATE TABLE x (y)", nil))
			require.NoError(t, c.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			damage(t, path)
			before, _ := os.ReadFile(path)
			var corrupt *CorruptError
			require.ErrorAs(t, readAll(path), &corrupt)
			require.Equal(t, path, corrupt.Path)
			after, _ := os.ReadFile(path)
			require.Equal(t, before, after, "the file was changed")
		})
	}
}

// copyFiles copies a database and its side files while the store is open, as they are after SIGKILL.
func copyFiles(t *testing.T, path string) (copied string) {
	t.Helper()
	copied = testPath(t)
	for _, suffix := range []string{"", "-wal", leaseSuffix} {
		content, err := os.ReadFile(path + suffix)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(copied+suffix, content, 0o600))
	}
	return copied
}

func TestStore_ReportsALostLog(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	for range 20 {
		accept(t, s, ready(""))
	}
	path = copyFiles(t, path) // an idle store empties its log
	require.NoError(t, readAll(copyFiles(t, path)), "an intact copy")
	for name, damage := range map[string]func(wal string) error{
		"deleted":   os.Remove,
		"garbage":   func(wal string) error { return os.WriteFile(wal, []byte(strings.Repeat("garbage ", 10_000)), 0o600) },
		"truncated": func(wal string) error { return os.Truncate(wal, 10*4096) },
		"bit": func(wal string) error {
			content, err := os.ReadFile(wal)
			content[len(content)/2] ^= 1
			return errors.Join(err, os.WriteFile(wal, content, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			copied := copyFiles(t, path)
			require.NoError(t, damage(copied+"-wal"))
			var corrupt *CorruptError
			require.ErrorAs(t, readAll(copied), &corrupt)
			require.ErrorAs(t, readAll(copied), &corrupt, "again")
			kept, err := os.ReadFile(copied + "-wal-refused")
			if name != "deleted" {
				require.NoError(t, err)
				require.NotEmpty(t, kept)
			}
			require.NoError(t, os.Remove(copied+leaseSuffix))
			require.NoError(t, readAll(copied), "the operator accepts the loss")
		})
	}
}

func TestStore_RefusesPaths(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	var wrong *PathError
	_, err := Open(ctx, "")
	require.ErrorAs(t, err, &wrong)
	_, err = Open(ctx, dir)
	require.ErrorAs(t, err, &wrong)
	dangling := filepath.Join(dir, "dangling")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nothing"), dangling))
	_, err = Open(ctx, dangling)
	require.ErrorAs(t, err, &wrong)
	_, err = Open(ctx, filepath.Join(dir, "none", "x.db"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Open(ctx, filepath.Join(dir, "x.db"), MustExist())
	require.ErrorIs(t, err, fs.ErrNotExist)
	path := filled(t)
	require.NoError(t, os.Link(path, path+"2"))
	_, err = Open(ctx, path)
	require.ErrorAs(t, err, &wrong)
	require.NoError(t, os.Remove(path+"2"))

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(path, link))
	openAt(t, path)
	require.ErrorIs(t, openErr(ctx, link), ErrLocked, "two names of a file have one lease")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty.db"), nil, 0o600))
	openAt(t, filepath.Join(dir, "empty.db"))
}

func TestStore_CreatesPrivateFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no permissions of this kind")
	}
	path := testPath(t)
	accept(t, openAt(t, path), ready(""))
	for _, suffix := range []string{"", "-wal", "-shm", leaseSuffix} {
		info, err := os.Stat(path + suffix)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), suffix)
	}
}

func TestStore_RefusesVersions(t *testing.T) {
	path := filled(t)
	s := openAt(t, path)
	inside(t, s, func(c *committer) error {
		_, err := c.w.pragma("user_version = 99")
		return err
	})
	closeStore(t, s)
	_, err := Open(context.Background(), path)
	require.ErrorIs(t, err, ErrSchemaTooNew)

	defer func(v int) { linkedVersion = v }(linkedVersion)
	linkedVersion = 3_051_002
	_, err = Open(context.Background(), testPath(t))
	require.ErrorIs(t, err, ErrUnsafeSQLite)
}

func TestStore_SyncsFully(t *testing.T) {
	for want, opts := range map[string][]Option{"2": nil, "1": {WithNormalSync()}} {
		s := openAt(t, testPath(t), opts...)
		inside(t, s, func(c *committer) error {
			got, err := c.w.pragma("synchronous")
			require.Equal(t, want, got)
			return err
		})
	}
	_, err := Open(context.Background(), testPath(t), WithLockWait(0))
	var wrong *OptionError
	require.ErrorAs(t, err, &wrong)
}

func TestStore_WaitsForALock(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path, WithLockWait(300*time.Millisecond), WithLogger(zap.NewNop()))
	accept(t, s, ready(""))
	c, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, query(c, "BEGIN IMMEDIATE", nil))
	done := make(chan error, 1)
	s.Submit(&driver.Batch{Now: t0, Epoch: s.Lease().Epoch, New: []*driver.Record{ready("")}}, func(err error) { done <- err })
	_, err = s.Stats(context.Background())
	require.NoError(t, err, "reads do not wait")
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, query(c, "ROLLBACK", nil))
	require.NoError(t, <-done, "a short lock is waited out")

	require.Len(t, refsOf(lookupAll(t, s)), 2)
}

// A commit waits for a foreign lock as long as it takes, and the store says what it waits for.
func TestT5_AForeignLockDoesNotMakeTheStoreFail(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path, WithLockWait(20*time.Millisecond))
	require.Equal(t, time.Second, s.Patience())
	tx := beginTx(t, path)
	require.NoError(t, s.SubmitTx(t.Context(), tx, []*driver.Incoming{waiting()}))
	require.True(t, s.HoldsLock(tx))
	done := make(chan error, 1)
	s.Submit(&driver.Batch{Now: t0, Epoch: s.Lease().Epoch, New: []*driver.Record{ready("")}}, func(err error) { done <- err })
	require.NoError(t, s.Blocked(), "it waits for a moment only")
	var why error
	require.Eventually(t, func() bool { why = s.Blocked(); return why != nil }, 20*time.Second, 10*time.Millisecond)
	require.ErrorIs(t, why, ErrBusy)
	require.ErrorContains(t, why, path)
	require.ErrorContains(t, why, "a transaction of another program")
	require.Empty(t, done)
	_, err := s.Stats(t.Context())
	require.NoError(t, err, "reads do not wait, and it has not failed")
	require.NoError(t, tx.Commit())
	require.NoError(t, <-done)
	require.NoError(t, s.Blocked())
	require.False(t, s.HoldsLock(tx))
	takeIn(t, s)
	require.Len(t, lookupAll(t, s), 2)
}

// Close does not wait for a foreign lock for longer than WithLockWait says.
func TestT5_CloseGivesUpWaiting(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path, WithLockWait(20*time.Millisecond))
	tx := beginTx(t, path)
	done := make(chan error, 1)
	s.Submit(&driver.Batch{Now: t0, Epoch: s.Lease().Epoch, New: []*driver.Record{ready("")}}, func(err error) { done <- err })
	require.ErrorIs(t, s.Close(t.Context()), ErrBusy)
	require.ErrorIs(t, <-done, ErrBusy)
	require.NoError(t, tx.Rollback())
	require.Empty(t, lookupAll(t, openAt(t, path)))
}

// What has no lock does not hold it.
func TestT5_HoldsLock(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	tx, err := openDB(t, path).BeginTx(ctx, nil)
	require.NoError(t, err)
	require.True(t, s.HoldsLock(tx))
	rows, err := tx.QueryContext(t.Context(), "SELECT 1")
	require.NoError(t, err)
	require.True(t, s.HoldsLock(tx))
	require.NoError(t, rows.Close())
	cancel() // which rolls back
	require.Eventually(t, func() bool { return !s.HoldsLock(tx) }, 20*time.Second, time.Millisecond)
	for _, tx := range []any{nil, 7, (*sql.Tx)(nil)} {
		require.False(t, s.HoldsLock(tx))
	}
}

func lookupAll(t *testing.T, s *Store) []*driver.Record {
	t.Helper()
	page, err := s.Records(t.Context(), driver.RecordQuery{Limit: 1000})
	require.NoError(t, err)
	return page.Records
}

func TestStore_FailsIfTheFileIsReplaced(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	require.NoError(t, os.Rename(path, path+".old"))
	inside(t, s, func(c *committer) error {
		c.lookedAt = time.Time{}
		return nil
	})
	err := submit(s, &driver.Batch{New: []*driver.Record{ready("")}})
	require.ErrorIs(t, err, ErrReplaced)
	require.ErrorIs(t, err, driver.ErrFailed)
	var corrupt *CorruptError
	require.ErrorAs(t, s.Reopen(context.Background()), &corrupt, "the file is missing")
	require.NoError(t, os.Rename(path+".old", path))
	require.NoError(t, s.Reopen(context.Background()))
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 1)
}

func TestStore_ReadOnlyDirectory(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("SKIP: root writes into read-only directories")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500)) //nolint:gosec // a directory needs the bit
	_, err := Open(context.Background(), filepath.Join(dir, "x.db"))
	require.ErrorIs(t, err, fs.ErrPermission)
}

func TestStore_EmptiesTheLog(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	require.Eventually(t, func() bool {
		info, err := os.Stat(path + "-wal")
		return err == nil && info.Size() == 0
	}, 10*time.Second, 50*time.Millisecond)
	inside(t, s, func(*committer) error {
		s.cfg.checkpointAt = 50
		return nil
	})
	for range 300 {
		accept(t, s, ready(""))
	}
	info, err := os.Stat(path + "-wal")
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(150*4200), "a checkpoint lets the log begin again")
}
