//go:build !linux

package sqlite

// bootID is empty: the run of the operating system is unknown.
var bootID = func() string { return "" }
