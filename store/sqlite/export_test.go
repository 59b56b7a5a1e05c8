package sqlite

import "testing"

// Crash ends a store as SIGKILL does. See crash.
func Crash(t testing.TB, s *Store) {
	t.Helper()
	crash(t, s)
}
