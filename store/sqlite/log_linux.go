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
