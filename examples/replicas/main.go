//go:build unix

// Command replicas shows three replicas of a service on one Postgres server, which keeps their events beside their tables.
//
//	go run ./examples/replicas
//
// It starts a server of its own, and the replicas as child processes. Each replica places orders: it inserts a row and
// publishes an event in one transaction (PublishTx). The replica with the lease bills them: its handler inserts a row in a
// transaction that also records that the event is handled (InTx). Meanwhile, the program
//
//   - kills the replica that dispatches, with SIGKILL;
//   - deploys: it starts a replica, and shuts the one that dispatches down;
//   - crashes the server, which restarts.
//
// It prints when each happened, and how long no order was billed. The books balance if each order that was committed is
// billed, and none twice. It takes about 20 s.
//
// The exit status is 0 if the books balance. Without a Postgres server on the machine (Debian: apt-get install postgresql) the
// program says SKIP, and the status is 0 too.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if dsn := os.Getenv(replicaVariable); dsn != "" {
		os.Exit(replicaMain(ctx, dsn))
	}
	if err := run(ctx, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "replicas:", err)
		os.Exit(1)
	}
}

// run runs the program. stderr is a file, which the replicas share.
func run(ctx context.Context, stdout io.Writer, stderr *os.File) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Second)
	defer cancel()
	server, err := postgrestest.Start(ctx)
	if errors.Is(err, postgrestest.ErrNoServer) {
		fmt.Fprintln(stdout, "SKIP:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Remove()) }()
	db, err := pgx.Connect(ctx, server.DSN())
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, "CREATE TABLE shop_order (id uuid PRIMARY KEY, cents bigint NOT NULL); CREATE TABLE bill (order_id uuid NOT NULL, cents bigint NOT NULL)")
	if err = errors.Join(err, db.Close(ctx)); err != nil {
		return err
	}
	fmt.Fprint(stdout, "Three replicas of a service share a Postgres server, and all place orders. One of them bills. The program kills,\ndeploys and crashes.\n\n")
	f := &fleet{dsn: server.DSN(), stderr: stderr, began: time.Now(), out: stdout}
	defer func() { err = errors.Join(err, f.killAll()) }()
	if err := f.disturb(ctx, server); err != nil {
		return err
	}
	return f.balance(ctx)
}

// disturb kills and deploys replicas, and crashes the server.
func (f *fleet) disturb(ctx context.Context, server *postgrestest.Server) error {
	for range 3 {
		if err := f.start(); err != nil {
			return err
		}
	}
	if err := f.awaitLead(ctx); err != nil {
		return err
	}
	for range 2 {
		f.say("kill %s, which dispatches", f.leader)
		if err := errors.Join(f.leader.kill(), f.start(), f.awaitLead(ctx)); err != nil {
			return err
		}
		f.say("deploy: %s shuts down", f.leader)
		if err := errors.Join(f.start(), f.leader.end(), f.awaitLead(ctx)); err != nil {
			return err
		}
		f.say("crash the server")
		if err := errors.Join(server.Restart(ctx, "immediate"), f.awaitBill(ctx)); err != nil {
			return err
		}
	}
	return f.settle(ctx)
}

// balance compares the tables of the service.
func (f *fleet) balance(ctx context.Context) error {
	db, err := pgx.Connect(ctx, f.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(ctx) }()
	var orders, bills, billed int
	const books = "SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM bill), (SELECT count(*) FROM shop_order o WHERE EXISTS (SELECT FROM bill b WHERE b.order_id = o.id AND b.cents = o.cents))"
	if err := db.QueryRow(ctx, books).Scan(&orders, &bills, &billed); err != nil {
		return err
	}
	if orders == 0 || bills != orders || billed != orders {
		return fmt.Errorf("the books do not balance: %d orders, %d of them billed, %d bills", orders, billed, bills)
	}
	fmt.Fprintf(f.out, "\nOK: %d orders, and a bill for each\n", orders)
	return nil
}
