//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// foreignOwner returns the owner of a file, and whether it is another user than that of the process.
func foreignOwner(info fs.FileInfo) (owner int, other bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), int(st.Uid) != os.Geteuid()
}
