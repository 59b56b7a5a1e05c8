//go:build unix

package stderr

import (
	"errors"
	"os"
	"syscall"
)

// write writes all of b, or gives up. It uses the descriptor: os.File.Write ends the process if nobody reads the pipe
// that is its standard error.
func write(f *os.File, b []byte) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) (done bool) {
		for len(b) > 0 {
			n, err := syscall.Write(int(fd), b)
			switch {
			case errors.Is(err, syscall.EINTR):
			case errors.Is(err, syscall.EAGAIN):
				return false
			case err != nil || n <= 0:
				return true
			}
			b = b[max(n, 0):]
		}
		return true
	})
}
