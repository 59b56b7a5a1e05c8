// Package inbox makes the database effects of a handler happen once, as a middleware for databases of database/sql. A bus
// on store/postgres whose handlers write to the same database does not need it: see eventbus.InTx.
//
//	in, err := inbox.New(ctx, bus, db)
//	if err != nil {
//		return err
//	}
//	bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
//		_, err := inbox.Tx(ctx).ExecContext(ctx, "INSERT INTO bill ...")
//		return err
//	}, eventbus.Named("billing"), eventbus.Use(in.Once))
//
// # Marks
//
// The handler runs in a transaction, which also inserts a mark: the id of the event, the subscription, and the number of
// edits by operators. An attempt that finds the mark succeeds without a call of the handler. So a retry after a crash, a
// timeout or a commit with an unknown outcome has no second effect in the database. Neither has an event that a publisher
// repeats with its id, even on another bus or after a restart of a bus in memory. Effects outside of the database may
// happen again. ReplayEdited has a mark of its own, and runs the handler.
//
// The middleware commits the transaction when the handler has returned nil and its context has not ended. Otherwise it
// rolls back, also after a panic.
//
// Two processes may run the handler for one event at the same time, if one was paused and the other took its work over.
// The second one to insert the mark waits for the first, or its attempt fails and the next attempt finds the mark.
//
// # Emitted events
//
// The middleware writes the events of eventbus.Emit in the transaction, and passes them to the bus after the commit. An
// attempt that finds the mark passes them again, with the same ids. So the bus publishes the events exactly if the
// transaction is committed. It publishes them once, because no attempt follows a recorded success. While the mark exists,
// two actions publish them again, with the same ids:
//
//   - a replay of an imported letter
//   - a repeated publication of the handler's event, once the bus has forgotten its id (WithIdempotencyWindow)
//
// # The tables
//
// New creates the tables eventbus_inbox and eventbus_inbox_emitted, or the names of WithTable, if they do not exist.
// Where programs may create no tables, create them before:
//
//	CREATE TABLE eventbus_inbox (
//		event        VARCHAR(36)  NOT NULL,
//		subscription VARCHAR(512) NOT NULL,
//		edits        INTEGER      NOT NULL,
//		marked       BIGINT       NOT NULL,
//		PRIMARY KEY (event, subscription, edits)
//	)
//	CREATE TABLE eventbus_inbox_emitted (
//		event        VARCHAR(36)  NOT NULL,
//		subscription VARCHAR(512) NOT NULL,
//		edits        INTEGER      NOT NULL,
//		part         INTEGER      NOT NULL,
//		data         TEXT         NOT NULL,
//		PRIMARY KEY (event, subscription, edits, part)
//	)
//
// In MySQL, create them with COLLATE utf8mb4_bin: by default, "Billing" and "billing" are one name there.
//
// The second table has the emitted events, in parts of up to 16 KiB in base64. If it is missing and cannot be created, New
// logs a warning, and eventbus.Emit returns eventbus.ErrNoTransaction in handlers under Once. The rest works. Either all
// processes of a bus need this table or none: a process without it does not publish events that handlers of another
// process emitted.
//
// marked is a Unix time in seconds. New also creates an index on it. Without an index, each removal reads the whole table.
//
// Calls of handlers remove old marks: marks that are older than WithRetention and whose event the bus no longer knows, with
// their emitted events. This happens about once a minute for up to 100 events, and after every call while there are more.
// Prune removes marks at once.
//
// # Databases
//
// The statements work with every SQL database that has placeholders ? or $1, such as SQLite, PostgreSQL and MySQL. The tests
// run with SQLite and PostgreSQL. A transaction has the default isolation of the database.
//
// With SQLite, open the database with a busy timeout and transactions that lock at once (modernc.org/sqlite:
// _txlock=immediate). Otherwise transactions of several handlers fail instead of waiting. In the file of a bus's own store,
// commits of the bus wait for the handler: publish there only with PublishTx and the handler's transaction.
package inbox
