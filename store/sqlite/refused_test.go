package sqlite

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// killed returns the path of a store whose process was killed with n events in the log.
func killed(t *testing.T, n int, opts ...Option) string {
	t.Helper()
	s := openAt(t, testPath(t), opts...)
	closeStore(t, s) // the log begins with the next store
	s = openAt(t, s.path, opts...)
	for range n {
		accept(t, s, ready(""))
	}
	var copied string
	inside(t, s, func(*committer) error { // an idle store empties its log
		copied = copyFiles(t, s.path)
		return nil
	})
	crash(t, s)
	return copied
}

// flipMiddle flips a bit in the middle of a file.
func flipMiddle(t *testing.T, path string) {
	t.Helper()
	content := read(t, path)
	content[len(content)/2] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// read returns the content of a file, or nil if there is none.
func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	return content
}

func TestWALRefused_IsKeptBesideEarlierOnes(t *testing.T) {
	path := killed(t, 20)
	earlier := path + "-wal-refused"
	require.NoError(t, os.WriteFile(earlier, []byte("of an earlier incident"), 0o600))
	flipMiddle(t, path+"-wal")
	log := read(t, path+"-wal")
	for range 2 {
		_, err := Open(t.Context(), path)
		var corrupt *CorruptError
		require.ErrorAs(t, err, &corrupt)
		require.Equal(t, earlier+"-2", corrupt.Log)
		require.ErrorContains(t, err, "a copy of the -wal file is "+corrupt.Log)
		require.Equal(t, log, read(t, corrupt.Log))
		require.Equal(t, log, read(t, path+"-wal"), "the log is in its place as well")
	}
	require.Equal(t, "of an earlier incident", string(read(t, earlier)))
	require.NoFileExists(t, earlier+"-3", "a second attempt makes no second copy")

	require.NoError(t, os.Remove(path+leaseSuffix))
	closeStore(t, openAt(t, path)) // the operator accepts what is before the damage
	require.Equal(t, log, read(t, earlier+"-2"))
}

func TestWALRefused_StaysWhereItCannotBeCopied(t *testing.T) {
	from := killed(t, 20)
	// The name has room for the suffixes of SQLite, and none for that of a copy.
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 255-len(refusedSuffix)+1))
	for _, suffix := range []string{"", "-wal", leaseSuffix} {
		require.NoError(t, os.WriteFile(path+suffix, read(t, from+suffix), 0o600))
	}
	flipMiddle(t, path+"-wal")
	db, log := read(t, path), read(t, path+"-wal")
	for _, opts := range [][]Option{nil, {MustExist()}} {
		_, err := Open(t.Context(), path, opts...)
		var corrupt *CorruptError
		require.ErrorAs(t, err, &corrupt)
		require.Equal(t, path+"-wal", corrupt.Log)
		require.ErrorContains(t, err, "was left in its place")
		require.Equal(t, db, read(t, path))
		require.Equal(t, log, read(t, path+"-wal"))
	}
	require.NoError(t, os.Remove(path+leaseSuffix))
	_, err := Open(t.Context(), path)
	require.ErrorContains(t, err, "cannot be copied before it is overwritten")
	require.Equal(t, log, read(t, path+"-wal"))
}

// However Open and Reopen fail, the database and its log are as they were.
func TestWALRefused_AFailedOpenChangesNothing(t *testing.T) {
	overwriteAt := func(suffix string, at int64, text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path+suffix, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte(text), at)
			require.NoError(t, errors.Join(err, f.Close()))
		}
	}
	removed := func(suffix string) func(*testing.T, string) {
		return func(t *testing.T, path string) { require.NoError(t, os.Remove(path+suffix)) }
	}
	garbage := strings.Repeat("garbage!", 512)
	for name, c := range map[string]struct {
		damage func(*testing.T, string)
		reopen bool // only Reopen, which reads all pages, notices it
	}{
		"header":            {damage: func(t *testing.T, path string) { overwriteAt("", 0, garbage)(t, path); flipMiddle(t, path+"-wal") }},
		"page":              {func(t *testing.T, path string) { overwriteAt("", int64(len(read(t, path)))-4096, garbage)(t, path) }, true},
		"short":             {damage: func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 100)) }},
		"empty":             {damage: func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) }},
		"missing":           {damage: removed("")},
		"log missing":       {damage: removed("-wal")},
		"header of the log": {damage: overwriteAt("-wal", 0, garbage)},
		"bit of the log":    {damage: func(t *testing.T, path string) { flipMiddle(t, path+"-wal") }},
		"end of the log":    {damage: func(t *testing.T, path string) { require.NoError(t, os.Truncate(path+"-wal", 10*4096)) }},
		"another database": {damage: func(t *testing.T, path string) {
			other := openAt(t, testPath(t))
			closeStore(t, other)
			require.NoError(t, os.Remove(path+"-wal"))
			require.NoError(t, os.WriteFile(path, read(t, other.path), 0o600))
		}},
		"newer schema":  {damage: func(t *testing.T, path string) { execAt(t, path, "PRAGMA user_version = 99"); removedLog(t, path) }},
		"other program": {damage: func(t *testing.T, path string) { execAt(t, path, "PRAGMA application_id = 1"); removedLog(t, path) }},
	} {
		t.Run(name, func(t *testing.T) {
			sound := killed(t, 20)
			for mode, opts := range map[string][]Option{"full": nil, "normal": {WithNormalSync()}, "exists": {MustExist()}, "reopen": nil} {
				if c.reopen && mode != "reopen" {
					continue
				}
				path := copyFiles(t, sound)
				var s *Store
				if mode == "reopen" {
					// A store whose files change while it has failed.
					s = openAt(t, path)
					for range 20 {
						accept(t, s, ready(""))
					}
					inside(t, s, func(co *committer) error {
						_ = co.queue.Fail(errors.New("of the test"))
						return s.disconnect(true)
					})
				}
				c.damage(t, path)
				db, log := read(t, path), read(t, path+"-wal")
				for range 2 {
					var err error
					if s != nil {
						err = s.Reopen(t.Context())
					} else {
						_, err = Open(t.Context(), path, opts...)
					}
					require.Error(t, err, mode)
					require.True(t, bytes.Equal(db, read(t, path)), "%s: the database has changed after: %v", mode, err)
					require.True(t, bytes.Equal(log, read(t, path+"-wal")), "%s: the log has changed after: %v", mode, err)
				}
				if s != nil {
					_ = s.Close(t.Context())
					require.True(t, bytes.Equal(db, read(t, path)), "Close has changed the database")
					require.True(t, bytes.Equal(log, read(t, path+"-wal")), "Close has changed the log")
				}
			}
		})
	}
}

// removedLog removes a log that SQLite has left after a change of the test.
func removedLog(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(path+"-wal"))
}

// The log is damaged while the store runs. A store that has failed applies nothing of it to the database.
func TestWALRefused_IsNotAppliedByAStoreThatHasFailed(t *testing.T) {
	skipWindows(t)
	for _, end := range []string{"Reopen", "Close"} {
		t.Run(end, func(t *testing.T) {
			path := killed(t, 1)
			s := openAt(t, path)
			for range 20 {
				accept(t, s, ready(""))
			}
			flipMiddle(t, path+"-wal")
			db, log := read(t, path), read(t, path+"-wal")
			inside(t, s, func(c *committer) error {
				_ = c.queue.Fail(errors.New("of the test"))
				return nil
			})
			if end == "Reopen" {
				var corrupt *CorruptError
				require.ErrorAs(t, s.Reopen(t.Context()), &corrupt)
				require.Equal(t, log, read(t, corrupt.Log))
			} else {
				_ = s.Close(t.Context())
			}
			require.True(t, bytes.Equal(db, read(t, path)), "the database has changed")
			// Close has tried to end the lease.
			require.True(t, bytes.HasPrefix(read(t, path+"-wal"), log), "the log has changed")
		})
	}
}

func TestNormalSync_VerifiesWhatFullSyncNoted(t *testing.T) {
	path := killed(t, 20)
	flipMiddle(t, path+"-wal")
	log := read(t, path+"-wal")
	_, err := Open(t.Context(), path, WithNormalSync())
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Equal(t, log, read(t, corrupt.Log))
}

// runOf sets the run of the operating system.
func runOf(t *testing.T, id string) {
	t.Helper()
	was := bootID
	t.Cleanup(func() { bootID = was })
	bootID = func() string { return id }
}

const (
	oneRun   = "00000000-0000-0000-0000-000000000001"
	otherRun = "00000000-0000-0000-0000-000000000002"
)

func TestNormalSync_NotesItsCommits(t *testing.T) {
	runOf(t, oneRun)
	for name, damage := range map[string]func(*testing.T, string){
		"deleted":   func(t *testing.T, path string) { require.NoError(t, os.Remove(path+"-wal")) },
		"truncated": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path+"-wal", 10*4096)) },
		"bit":       func(t *testing.T, path string) { flipMiddle(t, path+"-wal") },
	} {
		t.Run(name, func(t *testing.T) {
			path := killed(t, 20, WithNormalSync())
			require.NoError(t, readAll(copyFiles(t, path)), "an intact copy")
			damage(t, path)
			log := read(t, path+"-wal")
			for _, opts := range [][]Option{nil, {WithNormalSync()}, {MustExist()}} {
				_, err := Open(t.Context(), path, opts...)
				var corrupt *CorruptError
				require.ErrorAs(t, err, &corrupt)
				require.True(t, bytes.Equal(log, read(t, path+"-wal")))
			}
		})
	}
}

// A power cut can take commits of WithNormalSync: what is left is opened, and a log with more in it is copied.
func TestNormalSync_APowerCutIsNotRefused(t *testing.T) {
	runOf(t, oneRun)
	path := killed(t, 20, WithNormalSync())
	torn := copyFiles(t, path)
	flipMiddle(t, torn+"-wal")
	log := read(t, torn+"-wal")
	require.NoError(t, os.Truncate(path+"-wal", 10*4096))
	runOf(t, otherRun)
	closeStore(t, openAt(t, path, WithNormalSync()))
	require.NoFileExists(t, path+"-wal-refused", "there was nothing behind the end")

	core, logs := observer.New(zapcore.WarnLevel)
	closeStore(t, openAt(t, torn, WithNormalSync(), WithLogger(zap.New(core))))
	require.Equal(t, log, read(t, torn+"-wal-refused"))
	require.Equal(t, 1, logs.FilterMessageSnippet("it was copied, and only the commits before").Len())
}

// What full sync has noted holds after a power cut as well, and so does what it notes later.
func TestNormalSync_APowerCutTakesNoSyncedCommit(t *testing.T) {
	runOf(t, oneRun)
	path := killed(t, 20)
	s := openAt(t, path, WithNormalSync())
	for range 20 {
		accept(t, s, ready(""))
	}
	copied := copyFiles(t, path)
	runOf(t, otherRun)
	require.NoError(t, os.Truncate(copied+"-wal", 10*4096))
	_, err := Open(t.Context(), copied, WithNormalSync())
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Contains(t, corrupt.Detail, "commits, and 23 were made")
}

func TestNormalSync_NotesAreReadByOtherVersions(t *testing.T) {
	runOf(t, oneRun)
	path := killed(t, 20, WithNormalSync())
	note := read(t, path+leaseSuffix)
	require.Len(t, note, leaseFileEnd)
	// The version before reads the holder and one line, and requires its number of commits.
	line := string(note[holderSize : holderSize+witnessSize])
	require.Equal(t, " 00000000000000000000\n", line[2*len(storeID{}):], "no commit was synced")
	_, err := hex.DecodeString(line[:2*len(storeID{})])
	require.NoError(t, err)

	full := killed(t, 20)
	require.NoError(t, os.Truncate(full+leaseSuffix, holderSize+witnessSize)) // as that version writes it
	noted, known := readWitness(full)
	require.True(t, known && noted.isBinding())
	require.EqualValues(t, 23, noted.required())
	closeStore(t, openAt(t, full, WithNormalSync()))
}

func skipWindows(t *testing.T) {
	t.Helper()
	if os.PathSeparator == '\\' {
		t.Skip("SKIP: Windows does not change open files")
	}
}

// A process that ended while SQLite made the file has left a rollback journal: the next one undoes it, and makes the
// file.
func TestWALRefused_AHalfMadeFileIsMadeAgain(t *testing.T) {
	made := testPath(t)
	w, err := sqlite3.OpenConn(made, sqlite3.OpenReadWrite|sqlite3.OpenCreate)
	require.NoError(t, err)
	defer w.Close()
	for _, text := range []string{"PRAGMA cache_size = 1", "BEGIN", "CREATE TABLE t (x)", "INSERT INTO t VALUES (randomblob(100000))"} {
		require.NoError(t, query(w, text, nil), text)
	}
	path := testPath(t)
	for _, suffix := range []string{"", "-journal"} {
		require.NoError(t, os.WriteFile(path+suffix, read(t, made+suffix), 0o600))
	}
	require.NotEmpty(t, read(t, path))
	s := openAt(t, path)
	accept(t, s, ready(""))
	closeStore(t, s)
	require.Len(t, claim(t, openAt(t, path), driver.ClaimQuery{}).Records, 1)
}
