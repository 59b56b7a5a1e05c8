package sqlite

// failpoint is called with the name of each place where a crash would leave a different state behind.
// It is nil, except in the processes that TestCrash kills at such a place. Set it before Open.
var failpoint func(name string)

func reach(name string) {
	if failpoint != nil {
		failpoint(name)
	}
}
