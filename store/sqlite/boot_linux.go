package sqlite

import (
	"bytes"
	"os"
	"sync"
)

// bootID identifies the run of the operating system, or is empty if it is unknown. What a process has
// written survives the process in the same run, and perhaps not until the next one.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if id = bytes.TrimSpace(id); err != nil || len(id) != bootSize {
		return ""
	}
	return string(id)
})
