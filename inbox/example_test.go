package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/inbox"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "inbox")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_txlock=immediate")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "CREATE TABLE bill (cents INTEGER)"); err != nil {
		panic(err)
	}
	bus, err := eventbus.New()
	if err != nil {
		panic(err)
	}
	in, err := inbox.New(ctx, bus, db)
	if err != nil {
		panic(err)
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, cents int) error {
		_, err := inbox.Tx(ctx).ExecContext(ctx, "INSERT INTO bill VALUES (?)", cents)
		if d, _ := eventbus.FromContext(ctx); err == nil && d.Attempt == 1 {
			err = fmt.Errorf("out of paper") // the bill of this attempt does not count
		}
		return err
	}), eventbus.Named("billing"), eventbus.Use(in.Once))
	if err != nil {
		panic(err)
	}
	if err := bus.Start(ctx); err != nil {
		panic(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", 1700); err != nil {
		panic(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		panic(err)
	}
	var bills, cents int
	if err := db.QueryRowContext(ctx, "SELECT count(*), sum(cents) FROM bill").Scan(&bills, &cents); err != nil {
		panic(err)
	}
	fmt.Println(bills, "bill of", cents, "cents")
	// Output: 1 bill of 1700 cents
}
