//go:build !linux

package sqlite

import "os"

// openDirect returns nil: only Linux is known to take a page for clean after its write has failed.
func openDirect(string) *os.File { return nil }

func alignedPiece(size int) (piece []byte, free func(), err error) {
	return make([]byte, size), func() {}, nil
}

func forgetPages(string) error { return nil }
