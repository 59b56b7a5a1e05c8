//go:build !unix

package stderr

import "os"

// write writes all of b, or gives up.
func write(f *os.File, b []byte) { _, _ = f.Write(b) }
