package sqlite

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

var errWouldBlock error = windows.ERROR_LOCK_VIOLATION

// lockFile locks a byte far behind the content, so that other processes can read the holder.
func lockFile(f *os.File) error { return lockByte(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// shareFile is lockFile for a lock that others may share.
func shareFile(f *os.File) error { return lockByte(f, 0) }

func lockByte(f *os.File, how uint32) error {
	at := &windows.Overlapped{Offset: leaseLockAt}
	return windows.LockFileEx(windows.Handle(f.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, at)
}

func (s *Store) noRoom() bool {
	var free uint64
	dir, err := windows.UTF16PtrFromString(filepath.Dir(s.path))
	return err == nil && windows.GetDiskFreeSpaceEx(dir, &free, nil, nil) == nil && free < 64<<10
}

// notWritable returns nil: Windows reports the reason when the lease file is opened.
func (s *Store) notWritable() error { return nil }

// hardLinks returns 1: the number is not known without opening the file.
func hardLinks(fs.FileInfo) int { return 1 }
