package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// Backend is the data of a store under test, empty at first. Its functions fail the test if they
// cannot do their work.
type Backend struct {
	// Open opens the data with the lease. The suite calls it again after it has closed or crashed the
	// store.
	Open func(t *testing.T) driver.Store
	// Beside opens the data without the lease, as another process does, while the store of Open may
	// be open. If it is nil, the tests of two processes are skipped.
	Beside func(t *testing.T) driver.Store
	// Crash ends a store that Open returned without Close, as a killed process does: the lease ends, and its
	// lock with it, and the data stays as it is. No batch is in progress. Stores of Beside may be open. A store
	// on disk may abandon its files and let Open continue with a copy of them. If Crash is nil, the tests of
	// crashes are skipped.
	//
	// Afterwards the suite calls only Close on the store, at the end of the test, and ignores its error. Close
	// must not touch the data. The goroutines of the store end with Crash or with that Close.
	Crash func(t *testing.T, store driver.Store)
	// Fail makes the commit of the next batch fail, for a store of Open or Beside, as a fault of the
	// storage does. No batch is in progress. The batch may be durable or not. Later the storage works, so
	// that Reopen and Close succeed. If Fail is nil, the tests of failures are skipped.
	Fail func(t *testing.T, store driver.Store)
}

// Run checks that a store keeps every rule of driver.Store. Each subtest calls newBackend for data
// of its own. Run the tests with -race, and check for leaked goroutines. Run does not work inside a
// testing/synctest bubble. With -short, it skips the tests with more than 10,000 letters or audit entries.
func Run(t *testing.T, newBackend func(t *testing.T) Backend) {
	for _, part := range []struct {
		name  string
		tests []conformanceTest
	}{
		{"Submit", submitTests},
		{"Batch", batchTests},
		{"Remember", rememberTests},
		{"Cancel", cancelTests},
		{"Record", recordTests},
		{"Claim", claimTests},
		{"Lease", leaseTests},
		{"Crash", crashTests},
		{"Failure", failureTests},
		{"Letters", letterTests},
		{"Groups", groupTests},
		{"Directives", directiveTests},
		{"Audit", auditTests},
		{"Catalog", catalogTests},
		{"Close", closeTests},
		{"Watch", watchTests},
		{"Concurrent", concurrentTests},
		{"Random", randomTests},
	} {
		t.Run(part.name, func(t *testing.T) {
			for _, test := range part.tests {
				t.Run(test.name, func(t *testing.T) {
					b := newBackend(t)
					require.NotNil(t, b.Open, "Backend.Open")
					if test.needs&needsBeside != 0 && b.Beside == nil {
						t.Skip("Backend.Beside is nil: two processes are not tested")
					}
					if test.needs&needsCrash != 0 && b.Crash == nil {
						t.Skip("Backend.Crash is nil: crashes are not tested")
					}
					if test.needs&needsFail != 0 && b.Fail == nil {
						t.Skip("Backend.Fail is nil: failures are not tested")
					}
					test.run(t, &rig{Backend: b})
				})
			}
		})
	}
}

// conformanceTest is one rule of driver.Store.
type conformanceTest struct {
	name  string
	needs needs
	run   func(t *testing.T, r *rig)
}

// needs names the optional functions of a Backend that a test calls.
type needs uint8

const (
	needsBeside needs = 1 << iota
	needsCrash
	needsFail
)
