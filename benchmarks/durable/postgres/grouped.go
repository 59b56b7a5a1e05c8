package main

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/driver/storekit"
)

// operation inserts a row, or deletes it if there is no body.
type operation struct {
	number int64
	body   []byte
}

// fixed stands for the fields of an event besides its payload.
const fixed = `{"type":"order.placed","published":"2026-11-24T09:30:00.123456789Z","targets":["billing"]}`

// openGrouped commits the inserts and deletions that gathered during the last commit, as the store does: on one connection,
// in one transaction that is sent in one round trip.
func openGrouped(ctx context.Context, dsn string, o durable.Options) (*durable.System, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "CREATE TABLE event (number bigint PRIMARY KEY, body bytea NOT NULL)"); err != nil {
		return nil, err
	}
	var unsettled atomic.Int64
	group := durable.NewGroup(storekit.MaxGroup, func(ops []operation) error {
		deleted, err := commit(ctx, conn, ops)
		unsettled.Add(-int64(deleted))
		return err
	})
	return &durable.System{
		Accept: func(e durable.Event) error {
			payload, err := e.JSON()
			if err != nil {
				return err
			}
			unsettled.Add(1)
			if err := group.Do(operation{e.Number, append([]byte(fixed), payload...)}); err != nil {
				return err
			}
			o.Handle()
			group.Add(operation{number: e.Number})
			return nil
		},
		Settled: func() (bool, error) { return unsettled.Load() == 0, nil },
		Close: func() error {
			group.Close()
			return conn.Close(ctx)
		},
	}, nil
}

// commit returns how many rows it has deleted.
func commit(ctx context.Context, conn *pgx.Conn, ops []operation) (deleted int, err error) {
	var inserts, deletes []int64
	var bodies [][]byte
	for _, op := range ops {
		if op.body == nil {
			deletes = append(deletes, op.number)
		} else {
			inserts, bodies = append(inserts, op.number), append(bodies, op.body)
		}
	}
	b := &pgx.Batch{} // an implicit transaction
	if len(inserts) > 0 {
		b.Queue("INSERT INTO event SELECT * FROM unnest($1::bigint[], $2::bytea[])", inserts, bodies)
	}
	if len(deletes) > 0 {
		b.Queue("DELETE FROM event WHERE number = ANY($1::bigint[])", deletes)
	}
	return len(deletes), conn.SendBatch(ctx, b).Close()
}
