package storetest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// A store on disk runs the suite with a backend that opens a directory of the test.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestStore_Conformance(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Backend {
			model := storetest.NewModel() // dir := t.TempDir()
			return storetest.Backend{
				Open:  func(*testing.T) driver.Store { return model.Open() },
				Crash: func(_ *testing.T, store driver.Store) { model.Kill(store) },
			}
		})
	}
}

func ExampleModel_Crash() {
	model := storetest.NewModel()
	ctx := context.Background()
	store := model.Open()
	lease, err := store.Acquire(ctx, driver.AcquireQuery{})
	if err != nil {
		panic(err)
	}
	durable := make(chan error)
	store.Submit(&driver.Batch{
		Epoch: lease.Epoch, New: []*driver.Record{{Type: "order.placed", Leased: true}},
	}, func(err error) { durable <- err })
	fmt.Println("accepted:", <-durable)

	model.Crash()

	store = model.Open()
	lease, err = store.Acquire(ctx, driver.AcquireQuery{})
	if err != nil {
		panic(err)
	}
	fmt.Println("crashed:", lease.Crashed)
	claimed, err := store.Claim(ctx, driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 10})
	if err != nil {
		panic(err)
	}
	for _, r := range claimed.Records {
		fmt.Printf("claimed: %s, crashes: %d\n", r.Type, r.Crashes)
	}
	fmt.Println("closed:", store.Close(ctx))

	// Output:
	// accepted: <nil>
	// crashed: true
	// claimed: order.placed, crashes: 1
	// closed: <nil>
}
