//go:build unix

package retryspec_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/retryspec"
)

// Opening a pipe waits for a writer, and reading one for its end.
func TestOpen_APipeDoesNotBlock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "retry.json")
	require.NoError(t, syscall.Mkfifo(name, 0o600))
	_, err := retryspec.Open(name, retryspec.Parse)
	var refused *retryspec.FileError
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "is a pipe, not a regular file")

	require.NoError(t, os.Remove(name))
	write(t, name, "{}")
	f, err := retryspec.Open(name, retryspec.Parse)
	require.NoError(t, err)
	require.NoError(t, os.Remove(name))
	require.NoError(t, syscall.Mkfifo(name, 0o600))
	require.ErrorAs(t, f.Reload(), &refused)
	require.ErrorAs(t, f.Err(), &refused)
}
