// Package postgres stores the events of a bus in a schema of a Postgres server, 14 or later. A bus with such a store is
// durable: when Publish returns nil, the server has the event on its disk. Several processes may open the schema: one bus is
// active, and the others are standbys.
//
//	store, err := postgres.Open(ctx, "") // from PGHOST, PGUSER, PGPASSWORD, ...
//	if err != nil {
//		return err
//	}
//	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby())
//	if err != nil {
//		return err
//	}
//	// Subscribe with Named, then Start, which waits for the lease. Shutdown closes the store.
//	defer bus.Shutdown(context.Background())
//
// # The schema
//
// Open creates the schema eventbus, or the one of WithSchema, and migrates it under an advisory lock. It needs no
// extension. For that, the role must own the schema or have the right CREATE. Afterwards it needs USAGE on the schema,
// SELECT, INSERT, UPDATE and DELETE on its tables, and USAGE on its sequences. Use a separate schema for each bus: two
// programs in one schema are standbys of each other.
//
// # Commits
//
// The store has one connection for commits. A commit contains the batches that arrived during the previous one, at most
// 1024 and 8 MiB (group commit). It is one transaction, sent in one round trip. Actions of operators have commits of
// their own. These, and publications without the lease, need a second round trip. Each commit begins with the fence: it
// updates the row of this store in the table instance, if the store still has the lease.
//
// If the connection is lost before the answer, the store reconnects and reads the outcome of the commit from the
// server. Restarts and failovers of the server are only a delay for the bus, for as long as the lease lasts (15 s).
// After that the store fails, and the bus restarts in place when the server is back.
//
// The server must not lose confirmed commits. After a failover to an asynchronous replica, the commits that did not
// reach the replica are lost.
//
// # The lease
//
// The active store renews its lease every half second. Acquire documents when another store takes it over. Only the
// server's clock counts; the clocks of the processes may differ.
//
// # Poolers
//
// The store detects a pooler in transaction mode, such as PgBouncer, and works through it. It then prepares no
// statements, and a take-over takes the time of the lease, because the server does not notice the death of a process
// behind a pooler. Prefer a direct connection for the store. The service's own connections may use the pooler.
//
// # Transactions
//
// A service may insert rows of its own tables and events in one transaction: see eventbus.Bus.PublishTx. A handler may
// also run in a transaction, whose effects happen once: see eventbus.InTx and Tx.
package postgres
