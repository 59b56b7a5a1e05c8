//go:build unix

package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

var errWouldBlock = unix.EWOULDBLOCK

// lockFile locks a file without waiting. The lock belongs to the open file, so a second store in the
// same process does not get it either.
func lockFile(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// noRoom reports whether the file system of the database has no free block.
func (s *Store) noRoom() bool {
	var st unix.Statfs_t
	return unix.Statfs(s.path, &st) == nil && st.Bavail <= 16
}

// hardLinks returns the number of names of a file.
func hardLinks(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}
