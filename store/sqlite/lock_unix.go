//go:build unix

package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

var errWouldBlock = unix.EWOULDBLOCK

// lockFile locks a file without waiting. The lock belongs to the open file, so a second store in the
// same process does not get it either.
func lockFile(f *os.File) error { return flock(f, unix.LOCK_EX) }

// shareFile is lockFile for a lock that others may share.
func shareFile(f *os.File) error { return flock(f, unix.LOCK_SH) }

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// noRoom reports whether the file system of the database has no free block, or a file of the
// database has reached the process's limit on the size of files.
func (s *Store) noRoom() bool {
	var st unix.Statfs_t
	if unix.Statfs(s.path, &st) == nil && st.Bavail <= 16 {
		return true
	}
	const slack = 64 << 10 // larger than a write
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) != nil {
		return false
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if info, err := os.Stat(s.path + suffix); err == nil && uint64(info.Size())+slack > uint64(limit.Cur) { //nolint:unconvert // it is signed on some systems
			return true
		}
	}
	return false
}

// notWritable returns why the process cannot write to the file, or make files beside it, or nil.
func (s *Store) notWritable() error {
	for _, path := range []string{s.path, filepath.Dir(s.path)} {
		if err := unix.Access(path, unix.W_OK); err != nil {
			return &fs.PathError{Op: "write", Path: path, Err: err}
		}
	}
	return nil
}

// hardLinks returns the number of names of a file.
func hardLinks(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}
