package proxy

import (
	"syscall"
	"time"
)

// sleep sleeps in the kernel. The timers of the runtime have a grain of 1 ms while the process is idle.
func sleep(d time.Duration) {
	if d > 0 {
		left := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&left, nil) // a signal may end it early
	}
}
