package eventbus

import (
	"fmt"
	"reflect"
	"sync"
)

// storesInUse has the stores of all buses of the process that have not been shut down. Two buses on
// one store would both change the records of its lease.
var storesInUse sync.Map // Store to nil

// useStore registers the bus's store. It returns an *OptionError if another bus uses it.
func (b *Bus) useStore() error {
	if !reflect.ValueOf(b.store).Comparable() {
		return nil // it has no identity
	}
	if _, used := storesInUse.LoadOrStore(b.store, nil); used {
		return &OptionError{
			Option: "WithStore", Value: fmt.Sprintf("%T", b.store),
			Reason: "another bus uses this store; open a store for each bus",
		}
	}
	return nil
}

func (b *Bus) releaseStore() {
	if reflect.ValueOf(b.store).Comparable() {
		storesInUse.Delete(b.store)
	}
}
