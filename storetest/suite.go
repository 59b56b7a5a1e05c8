package storetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// Backend is the data of a store under test, empty at first. Its functions fail the test after an error. The suite
// skips the tests that need a function which is nil.
type Backend struct {
	// Open opens the data as another process does. The store has no lease. Several stores are open at
	// once.
	Open func(t *testing.T) driver.Store
	// Crash ends a store of Open without Close, as a killed process does: its lease and its lock end, and the data does
	// not change. No batch is in progress, but Acquire may be. Other stores may be open. A store on disk may abandon
	// its files and let Open continue with a copy of them, if no other store is open.
	//
	// Afterwards the suite calls only Close on the store, at the end of the test, and ignores its error. Close
	// must not touch the data. The goroutines of the store end with Crash or with that Close.
	Crash func(t *testing.T, store driver.Store)
	// Fail makes the commit of the next batch of a store fail, as a fault of the storage does. No batch is
	// in progress. The batch may be durable or not. Later the storage works, so that Reopen and Close succeed.
	Fail func(t *testing.T, store driver.Store)
	// LoseLease takes the lease away from a store that has it, without a crash of its process, as if its time
	// had run out. No batch is in progress. The store may count it as a crash.
	LoseLease func(t *testing.T, store driver.Store)
	// Deny makes a store deny the wish Leased of the records of its next batch.
	Deny func(t *testing.T, store driver.Store)
	// Begin begins a transaction that SubmitTx of the stores accepts. It is nil if the stores are not driver.TxStores.
	Begin func(t *testing.T) (tx any, commit, rollback func() error)
	// TxBlocks is set if a transaction that has submitted events blocks the commits of the stores until it ends.
	TxBlocks bool
	// TxFrom returns the transaction of RunOnce, for SubmitTx, from the context of its function. It is nil if the
	// stores are not driver.OnceStores.
	TxFrom func(ctx context.Context) (tx any)
	// Slots is the number of slots; 0 means 1. With 1, Run leaves out the tests of several slots.
	Slots int
	// RandomSteps is the length of each random test: 0 means 400, or 100 with -short.
	RandomSteps int
}

// Run checks that a store keeps every rule of driver.Store. Each subtest calls newBackend for data
// of its own. Run the tests with -race, and check for leaked goroutines. Run does not work inside a
// testing/synctest bubble. With -short, it skips the tests with more than 10,000 letters or audit entries.
//
// With names of parts, such as "Submit", Run runs only these parts, for example for a second way to reach a store that
// passes all.
func Run(t *testing.T, newBackend func(t *testing.T) Backend, parts ...string) {
	runs := make(map[string]bool)
	for _, part := range parts {
		runs[part] = true
	}
	for _, part := range conformanceParts {
		if len(parts) > 0 && !runs[part.name] || part.tests[0].needs&needsSlots != 0 && newBackend(t).Slots == 1 {
			continue
		}
		delete(runs, part.name)
		t.Run(part.name, func(t *testing.T) {
			for _, test := range part.tests {
				t.Run(test.name, func(t *testing.T) {
					b := newBackend(t)
					require.NotNil(t, b.Open, "Backend.Open")
					if missing := b.missing(test.needs); missing != "" {
						t.Skip(missing)
					}
					test.run(t, &rig{b, newBackend})
				})
			}
		})
	}
	require.Empty(t, runs, "there are no such parts")
}

// conformanceParts are the parts of the suite.
var conformanceParts = []struct {
	name  string
	tests []conformanceTest
}{
	{"Submit", submitTests},
	{"Batch", batchTests},
	{"Remember", rememberTests},
	{"Record", recordTests},
	{"Claim", claimTests},
	{"Destination", destinationTests},
	{"Expired", expiredTests},
	{"Lease", leaseTests},
	{"Standby", standbyTests},
	{"Incoming", incomingTests},
	{"Requests", requestTests},
	{"Slots", slotTests},
	{"Tx", txTests},
	{"Once", onceTests},
	{"Crash", crashTests},
	{"Failure", failureTests},
	{"Letters", letterTests},
	{"Groups", groupTests},
	{"Directives", directiveTests},
	{"Audit", auditTests},
	{"Outcomes", outcomeTests},
	{"Catalog", catalogTests},
	{"Close", closeTests},
	{"Watch", watchTests},
	{"Concurrent", concurrentTests},
	{"Random", randomTests},
}

// conformanceTest is one rule of driver.Store.
type conformanceTest struct {
	name  string
	needs needs
	run   func(t *testing.T, r *rig)
}

// needs names the optional parts of a Backend that a test uses.
type needs uint8

const (
	needsCrash needs = 1 << iota
	needsFail
	needsLoss
	needsDeny
	needsTx
	needsOnce
	needsSlots
)

// missing returns why a test is skipped. It is empty if the backend has all that the test needs.
func (b *Backend) missing(n needs) string {
	for _, part := range []struct {
		needs needs
		has   bool
		text  string
	}{
		{needsCrash, b.Crash != nil, "Backend.Crash is nil: crashes are not tested"},
		{needsFail, b.Fail != nil, "Backend.Fail is nil: failures are not tested"},
		{needsLoss, b.LoseLease != nil, "Backend.LoseLease is nil: the loss of a lease is not tested"},
		{needsDeny, b.Deny != nil, "Backend.Deny is nil: wishes that are not granted are not tested"},
		{needsTx, b.Begin != nil, "Backend.Begin is nil: transactions of callers are not tested"},
		{needsOnce, b.TxFrom != nil, "Backend.TxFrom is nil: handlers in transactions are not tested"},
		{needsSlots, b.Slots >= 2, "Backend.Slots is less than 2: slots are not tested"},
	} {
		if n&part.needs != 0 && !part.has {
			return part.text
		}
	}
	return ""
}
