package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// openDirect opens a file for writing past the page cache. It returns nil if the file system does not have that.
func openDirect(path string) *os.File {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return f
}

// alignedPiece returns a buffer that begins on a page of memory, as a direct write needs it.
func alignedPiece(size int) (piece []byte, free func(), err error) {
	piece, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return piece, func() { _ = unix.Munmap(piece) }, err
}

// forgetPages lets the page cache forget the pages of a file. Pages that are not on the disk yet are written first.
func forgetPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_ = f.Sync() // an error is that of an earlier write, and the log has what it was
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	return f.Close()
}
