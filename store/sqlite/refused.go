package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	sqlite3 "zombiezen.com/go/sqlite"
)

// refusedSuffix names the copy of a write-ahead log that SQLite would destroy.
const refusedSuffix = "-wal-refused"

// openGuard opens a read-only connection. When SQLite closes the last connection that can write, it copies the log
// into the database and deletes it, with all frames behind a damaged one. A read-only connection that is open prevents
// that, and does not do it when it is closed. A store that has failed, or was refused, closes the guard last.
//
// A process that ended while SQLite made the file has left a rollback journal, which only a connection that can
// write undoes. There is no log yet.
func (s *Store) openGuard() error {
	err := s.openReadOnly()
	if sqlite3.ErrCode(err) != sqlite3.ResultReadOnlyRollback {
		return err
	}
	w, err := s.openConn(sqlite3.OpenReadWrite)
	if err != nil {
		return errors.Join(err, s.closeGuard())
	}
	w.SetBusyTimeout(s.cfg.lockWait)
	if err := errors.Join(s.closeGuard(), query(w, "PRAGMA schema_version", nil), w.Close()); err != nil {
		return err
	}
	return s.openReadOnly()
}

func (s *Store) openReadOnly() error {
	c, err := sqlite3.OpenConn(s.path, sqlite3.OpenReadOnly)
	if err != nil {
		return err
	}
	s.guard = c
	c.SetBusyTimeout(s.cfg.lockWait)
	return query(c, "PRAGMA schema_version", nil) // takes the lock, even if the page is damaged
}

func (s *Store) closeGuard() error {
	c := s.guard
	s.guard = nil
	if c == nil {
		return nil
	}
	return c.Close()
}

// inspect verifies the file before a connection is opened that can change it. The guard stays open.
func (s *Store) inspect(ctx context.Context, why occasion, noted witness, known bool) error {
	if info, err := os.Stat(s.path); err != nil || info.Size() == 0 {
		return err // prepareFile has decided that an empty file becomes a store
	}
	if err := s.openGuard(); err != nil {
		return err
	}
	m, err := s.inspectCommit(ctx, why, known)
	if err != nil {
		return err
	}
	if known {
		if err := noted.verify(s.path, &m); err != nil {
			return s.keepRefused(err)
		}
	}
	if known && noted.isBinding() {
		return nil
	}
	return s.keepUnread()
}

// inspectCommit returns the row of meta. It reads one commit: another process may migrate the file after the version is
// read.
func (s *Store) inspectCommit(ctx context.Context, why occasion, known bool) (m meta, err error) {
	r := &writer{conn: s.guard, stmts: make(map[string]*sqlite3.Stmt), lockWait: s.cfg.lockWait}
	s.guard.SetInterrupt(ctx.Done())
	defer func() {
		s.guard.SetInterrupt(nil) // before the transaction ends
		r.rollback()
	}()
	if _, err := r.exec("BEGIN"); err != nil {
		return m, err
	}
	version, err := r.version(s)
	if known && errors.Is(err, ErrOtherProgram) { // it may be the store, with a damaged header
		return m, &CorruptError{Path: s.path, Detail: "its header is that of another program's database, and its lease file has commits of a store; restore the file"}
	}
	if err != nil {
		return m, err
	}
	if why == reopening {
		if err := r.quickCheck(); err != nil {
			return m, err
		}
	}
	reach("open: version read")
	if version == 0 {
		return m, nil
	}
	return r.readMetaOf(version, s.path)
}

// keepRefused copies the log of a refused database, and adds the place of the copy to its error: an operator
// who accepts the database as it is would lose the log.
func (s *Store) keepRefused(refusal error) error {
	c := (*CorruptError)(nil)
	if info, err := os.Stat(s.path + "-wal"); err != nil || info.Size() == 0 || !errors.As(refusal, &c) {
		return refusal
	}
	kept, err := keepLog(s.path)
	if err == nil {
		c.Log = kept
		c.Detail += "; a copy of the -wal file is " + kept
		return c
	}
	c.Log = s.path + "-wal"
	c.Detail += fmt.Sprintf("; the -wal file was left in its place, because it cannot be copied (%v): copy it before anything else", err)
	return c
}

// keepUnread copies a log with frames that SQLite does not read and would overwrite, where no note says
// whether they belong to commits.
func (s *Store) keepUnread() error {
	if s.lock.Load() == nil && leaseIsHeld(s.path) {
		return nil // the log is in use, and its last frames may be incomplete
	}
	// A store without the lease may be writing a frame: the next look finds it complete.
	for look := 1; ; look++ {
		unread, err := hasUnread(s.path + "-wal")
		if err != nil || !unread {
			return err
		}
		if look == shortLooks {
			break
		}
		time.Sleep(shortLook)
	}
	kept, err := keepLog(s.path)
	if err != nil {
		return fmt.Errorf("sqlite: %s-wal is damaged, and cannot be copied before it is overwritten: %w", s.path, err)
	}
	s.cfg.logger.Warn("write-ahead log ends in a damaged or an interrupted commit: it was copied, and only the commits before are read",
		zap.String("path", s.path), zap.String("copy", kept))
	return nil
}

// keepLog copies the write-ahead log of a database to a file with a free name, and syncs it. If there is such
// a copy, keepLog makes no other one.
func keepLog(path string) (kept string, err error) {
	from, err := os.Open(path + "-wal")
	if err != nil {
		return "", err
	}
	defer from.Close() //nolint:errcheck // nothing was written
	for n := 1; ; n++ {
		kept = path + refusedSuffix
		if n > 1 {
			kept += fmt.Sprint("-", n)
		}
		to, err := os.OpenFile(kept, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			_, err = io.Copy(to, from)
			if err = errors.Join(err, to.Sync(), to.Close(), syncDir(filepath.Dir(kept))); err != nil {
				return "", errors.Join(err, os.Remove(kept))
			}
			return kept, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		if sameContent(from, kept) {
			return kept, nil
		}
	}
}

// sameContent reports whether a file has the content of another one, whose position it does not move.
func sameContent(f *os.File, name string) bool {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	was, err := f.Stat()
	if err != nil || was.Size() != info.Size() || os.SameFile(was, info) {
		return false // another name of the log is no copy
	}
	other, err := os.Open(name)
	if err != nil {
		return false
	}
	defer other.Close() //nolint:errcheck // nothing was written
	const part = 1 << 16
	a, b := make([]byte, part), make([]byte, part)
	for at := int64(0); at < was.Size(); at += part {
		n := int(min(part, was.Size()-at))
		if _, err := f.ReadAt(a[:n], at); err != nil {
			return false
		}
		if _, err := other.ReadAt(b[:n], at); err != nil || !bytes.Equal(a[:n], b[:n]) {
			return false
		}
	}
	return true
}

// Sizes of the parts of a write-ahead log.
const (
	logHeader   = 32
	frameHeader = 24
)

// hasUnread reports whether a log has a frame that SQLite ignores although it belongs to the log: it is damaged,
// or is behind a damaged one. SQLite overwrites such frames.
func hasUnread(wal string) (bool, error) {
	f, err := os.Open(wal)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	in := bufio.NewReaderSize(f, 1<<18)
	var header [logHeader]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return false, untilEnd(err)
	}
	if header == [logHeader]byte{} {
		return false, nil // it was made longer, and never written
	}
	magic, size := binary.BigEndian.Uint32(header[:]), binary.BigEndian.Uint32(header[8:])
	const littleEndian, largestPage = 0x377f0682, 1 << 16
	order := binary.ByteOrder(binary.LittleEndian)
	if magic&1 != 0 {
		order = binary.BigEndian
	}
	var sum logSum
	sum.add(order, header[:24])
	if magic&^1 != littleEndian || size > largestPage || size < 512 || !sum.matches(header[24:]) {
		return true, nil
	}
	frame := make([]byte, frameHeader+size)
	for intact := true; ; {
		if _, err := io.ReadFull(in, frame); err != nil {
			return false, untilEnd(err)
		}
		if !bytes.Equal(frame[8:16], header[16:24]) {
			intact = false // damaged, or of the log before this one, whose place this one has taken
			continue
		}
		if !intact {
			return true, nil
		}
		sum.add(order, frame[:8])
		sum.add(order, frame[frameHeader:])
		if !sum.matches(frame[16:24]) {
			return true, nil
		}
	}
}

func untilEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// logSum is the checksum of a write-ahead log up to a frame.
type logSum [2]uint32

func (s *logSum) add(order binary.ByteOrder, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		s[0] += order.Uint32(b) + s[1]
		s[1] += order.Uint32(b[4:]) + s[0]
	}
}

func (s *logSum) matches(b []byte) bool {
	return s[0] == binary.BigEndian.Uint32(b) && s[1] == binary.BigEndian.Uint32(b[4:])
}
