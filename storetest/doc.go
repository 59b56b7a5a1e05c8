// Package storetest is the test kit for stores (driver.Store) and for buses on a store.
//
// [Run] is the conformance suite that every store passes. The tests of a store call it with a [Backend], which opens
// the store, kills it, takes its lease away, and makes it fail.
//
// [Model] is a store in memory. It obeys every rule of the suite and can fail or crash at any
// batch. Tests of a durable bus run on it without a disk, inside [testing/synctest] with virtual
// time:
//
//	model := storetest.NewModel(storetest.WithFaults(func(n int, b *driver.Batch) storetest.Fault {
//		if n == 7 {
//			return storetest.Fault{Kind: storetest.CrashAfter}
//		}
//		return storetest.Fault{}
//	}))
//	store := model.Open()
//	lease, err := store.Acquire(ctx, driver.AcquireQuery{})
package storetest
