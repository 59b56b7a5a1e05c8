package sqlite

import "sync/atomic"

// failpoint is called with the name of each place where a crash would leave a different state behind.
// It is nil, except in the processes that TestCrash kills at such a place, and in a few tests.
var failpoint atomic.Pointer[func(name string)]

func reach(name string) {
	if at := failpoint.Load(); at != nil {
		(*at)(name)
	}
}
