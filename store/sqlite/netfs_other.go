//go:build !linux && !darwin && !windows

package sqlite

// networkFileSystem knows no types on this system.
func networkFileSystem(string) string { return "" }
