//go:build !race

// Package race says whether the race detector is on, for tests that are too slow with it.
package race

// Enabled reports whether the race detector is on.
const Enabled = false
