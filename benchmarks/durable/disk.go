package durable

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// FileSystem returns the name of the file system of a directory. It returns an error if the file
// system keeps its files in memory, where a flush costs nothing and durable means nothing.
func FileSystem(dir string) (string, error) {
	name, memory, err := fileSystem(dir)
	if err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	if memory {
		return "", fmt.Errorf("%s is on %s, which keeps files in memory; set %s to a directory on a disk", dir, name, DirVariable)
	}
	return name, nil
}

// FlushTime returns the median time to append 4 kB to a file in the directory and to flush it.
func FlushTime(dir string) (median time.Duration, err error) {
	file, err := os.CreateTemp(dir, TempPattern)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	page := make([]byte, 4096)
	times := make([]time.Duration, 51)
	for i := range times {
		begin := time.Now()
		if _, err := file.Write(page); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
