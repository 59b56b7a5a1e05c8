//go:build unix

package retryspec

import "syscall"

// nonblocking opens a pipe without a writer at once. Regular files do not differ.
const nonblocking = syscall.O_NONBLOCK
