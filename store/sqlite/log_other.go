//go:build !linux

package sqlite

import "os"

// openDirect returns nil: only Linux is known to take a page for clean after its write has failed.
func openDirect(string) *os.File { return nil }

func forgetPages(string) error { return nil }
