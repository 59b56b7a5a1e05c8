//go:build !linux

package durable

import "os"

// fileSystem only checks that the directory exists. Other systems have no file system in memory by
// default.
func fileSystem(dir string) (name string, memory bool, err error) {
	_, err = os.Stat(dir)
	return "unknown", false, err
}
