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
// Open creates the schema eventbus, or the one of WithSchema, and migrates it under an advisory lock. It needs no extension.
// The role must own the schema or have the right CREATE for that. Afterwards it needs USAGE on the schema, SELECT, INSERT,
// UPDATE and DELETE on its tables, and USAGE on its sequences. Each bus has a schema of its own: two programs in one schema
// are standbys of each other.
//
// # Commits
//
// The store has one connection for commits. A commit has the batches that gathered during the previous one, at most 1024 and
// 8 MiB, and is one transaction, sent in one round trip. Operators' actions have a commit of their own, and like publications
// without the lease a round trip more. A commit begins with the fence: it changes the row of this store in the table
// instance, if the store still has the lease.
//
// If the connection is lost before the answer comes, the store connects again and asks the server what became of the
// commit. The bus notices nothing but a delay, through restarts and failovers of the server, for as long as the lease
// lasts (15 s). After that the store fails, and the bus restarts in place when the server is back.
//
// The server must not lose what it has confirmed. After a failover to an asynchronous replica, the commits that had not
// reached it are gone.
//
// # The lease
//
// The active store renews its lease every half second. Acquire says when another store takes it over. The server's clock
// counts; those of the processes may differ.
//
// # Poolers
//
// The store works through a pooler in transaction mode, such as PgBouncer, and notices that there is one. It prepares no
// statements then, and a take-over takes the time of the lease: the connections of a pooler do not tell that a process has
// died. Prefer a direct connection for the store. The service's own connections may use the pooler.
//
// # Transactions
//
// A service may have tables of its own in the database, and insert events with them in one transaction: see
// eventbus.Bus.PublishTx. A handler may have a transaction, too, and what it does there happens once: see eventbus.InTx
// and Tx.
package postgres
