// Package sqlite stores the events of a bus in an SQLite file, without cgo. A bus with such a store
// is durable: when Publish returns nil, the event survives SIGKILL and, with the default settings, a
// power cut.
//
//	store, err := sqlite.Open(ctx, "events.db")
//	if err != nil {
//		return err
//	}
//	bus, err := eventbus.New(eventbus.WithStore(store))
//	if err != nil {
//		return err
//	}
//	// Subscribe with Named, then Start, which acquires the lease. Shutdown closes the store.
//	defer bus.Shutdown(context.Background())
//
// # Files
//
// The path names a file: Open refuses ":memory:" and URIs (*PathError). It does not change the database of another
// program (ErrOtherProgram).
//
// The store creates four files with the permissions 0600: the database at the path, its write-ahead log (suffix -wal),
// the index of the log (-shm) and the lease file (-lease). Keep them together, on a local disk. Copy them only while no
// process has the database open. The lease file names the process that holds the lease, and records the last commit.
// The store refuses to open a database that lacks this commit, for instance because its -wal file was deleted or an old
// copy replaced it. To accept such a file, or to start over after you deleted it, remove the lease file.
//
// The store does not change a refused file and its log. It copies a damaged log to a file with the suffix -wal-refused
// (-wal-refused-2, and so on), because SQLite overwrites the data behind the damage once you accept the file. The error
// names the copy.
//
// The store fails with ErrReplaced when one of the files is deleted, replaced or truncated while it is open.
// Acknowledged commits that are still in the files are kept. The store notices changed bytes only when it reads them.
//
// Do not open the database with os.Open in a process that has it open as a store. On systems without open file
// description locks, closing that file drops the locks of SQLite. Do not write to it with another version of SQLite:
// versions before 3.51.3 can corrupt it.
//
// # Processes
//
// Several processes may open the file. One store at a time holds the lease, and its bus runs the handlers. The others
// are standbys and tools. They insert events into the table eventbus_incoming, and requests, which the bus with the
// lease takes in. They list, replay, purge and import dead letters themselves.
//
// The lease is a lock of the lease file, which Acquire tries every 50 ms. The kernel releases the lock when the process
// ends, also by SIGKILL, and the next lease counts a crash. There is no timeout: a stopped process (SIGSTOP, a
// debugger) keeps the lease. To release it, end the process.
//
// If the lease file is deleted or replaced, the store fails with ErrReplaced within a second, and Reopen locks the new
// file. If another store has begun a lease meanwhile, this store has lost its lease. Its batches are refused with
// driver.ErrLeaseLost, watchers receive driver.ChangedLease, and its bus becomes a standby.
//
// Open migrates an older schema, but not while a process holds the lease (*LockedError with a Reason). MustExist is for
// tools: it neither creates nor migrates a file. WithExclusive excludes other processes, and protects the program from
// disks that hang.
//
// A bus with the lease checks for work of other processes every 10 ms, any other bus every 100 ms. A check takes about
// 10 µs.
//
// # Transactions
//
// A service may have tables of its own in the file, and insert rows and events in one transaction: see
// eventbus.Bus.PublishTx. The names of the store's tables begin with eventbus_. Keep such transactions short: from its
// first write to its end, a transaction blocks the commits of the store. Publications that wait longer than
// WithLockWait end with an unknown outcome. While other programs commit, a busy store leaves gaps between its commits
// (at most about a third of the time), in which they can acquire the write lock. Set a busy_timeout of some seconds in
// these programs.
//
// Open the file with the store before the service makes its tables: Open refuses a database of another program
// (ErrOtherProgram). The pragmas application_id, user_version and journal_mode belong to the
// store. Migrations and Verify leave the tables of the service alone.
//
// # Durability
//
// With WithNormalSync, the store also records the boot of the operating system (Linux only). In the same boot it
// requires the last commit, because only a power cut can lose it. After a power cut it opens the remaining data, and
// copies a longer log as above.
//
// Each commit is synced to the disk (synchronous=FULL). It contains the batches that arrived during the previous
// commit, at most 1024 (group commit). A checksum protects each row: reading a damaged row returns a *CorruptError.
package sqlite
