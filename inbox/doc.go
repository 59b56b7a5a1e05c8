// Package inbox makes what a handler does in a database happen once. It is a middleware for databases of database/sql. A bus
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
// # What it does
//
// The handler runs in a transaction, which also inserts a mark: the id of the event, the subscription, and how often an operator
// has edited it. A publisher that repeats an event with its id, also on another bus or after a restart of one in memory, has
// no second effect. An attempt that finds the mark succeeds without a call of the handler. So a retry after a crash, a
// timeout or a commit with an unknown outcome has no second effect in the database. What the handler does elsewhere may
// happen again. ReplayEdited has a mark of its own, and runs the handler.
//
// The transaction is committed when the handler has returned nil and its context has not ended. Otherwise it is rolled back,
// also after a panic.
//
// # Emitted events
//
// The events of eventbus.Emit are written in the transaction, beside the mark, and the bus gets them after the commit. An attempt
// that finds the mark gives them to the bus again, with the same ids. So they are published exactly when what the handler does in
// the transaction is committed, and once, because no attempt follows a recorded success. While the mark is there, two things
// publish them again, with the same ids: a replay of an imported letter, and a publisher that repeats the handler's event when
// the bus has forgotten its id (WithIdempotencyWindow).
//
// Two processes may run the handler for one event at the same time: one of them was paused, and the other has taken its work
// over. The second one to insert the mark waits for the first, or its attempt fails and the next one finds the mark.
//
// # The tables
//
// New creates the tables eventbus_inbox and eventbus_inbox_emitted, or those of WithTable, unless they are there. Where programs
// may create no tables, create them before:
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
// The second table has the emitted events, in parts of up to 16 KiB in base64. If it is missing and cannot be created, New logs a
// warning, and eventbus.Emit returns eventbus.ErrNoTransaction in handlers under Once. All else works. All processes of a bus
// need it, or none: one that cannot read it does not publish what the handlers of another one have emitted.
//
// marked is a Unix time in seconds. New also creates an index on it: without one, each removal reads the whole table.
//
// Marks that are older than WithRetention, and whose event the bus no longer knows, are removed after calls of handlers: about
// once a minute those of up to 100 events, and while there are more after every call. What the handlers of these events have
// emitted is removed with them. Prune does it at once.
//
// # Databases
//
// The statements are those of every SQL database that has placeholders ? or $1, such as SQLite, PostgreSQL and MySQL. The
// tests run with SQLite and PostgreSQL. A transaction has the isolation that the database has by default.
//
// With SQLite, open the database with transactions that lock at once (modernc.org/sqlite: _txlock=immediate) and a busy
// timeout: otherwise transactions of several handlers fail instead of waiting. In the file of a bus's own store, commits of
// the bus wait for the handler: publish there with PublishTx and the handler's transaction only.
package inbox
