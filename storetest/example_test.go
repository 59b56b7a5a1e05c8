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
				Open: func(t *testing.T) driver.Store {
					store, err := model.Open()
					if err != nil {
						t.Fatal(err)
					}
					return store
				},
				Beside: func(*testing.T) driver.Store { return model.Beside() },
				Crash:  func(*testing.T, driver.Store) { model.Crash() },
			}
		})
	}
}

func ExampleModel_Crash() {
	model := storetest.NewModel()
	store, err := model.Open()
	if err != nil {
		panic(err)
	}
	durable := make(chan error)
	store.Submit(&driver.Batch{New: []*driver.Record{{Type: "order.placed", Leased: true}}}, func(err error) { durable <- err })
	fmt.Println("accepted:", <-durable)

	model.Crash()

	store, err = model.Open()
	if err != nil {
		panic(err)
	}
	claimed, err := store.Claim(context.Background(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 10})
	if err != nil {
		panic(err)
	}
	for _, r := range claimed.Records {
		fmt.Printf("claimed: %s, crashes: %d\n", r.Type, r.Crashes)
	}
	fmt.Println("closed:", store.Close(context.Background()))

	// Output:
	// accepted: <nil>
	// claimed: order.placed, crashes: 1
	// closed: <nil>
}
