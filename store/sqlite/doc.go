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
// The path is that of a file: Open refuses ":memory:" and URIs (*PathError), and leaves the database of another program
// as it is (ErrOtherProgram).
//
// The store creates four files with the permissions 0600: the database at the path, its write-ahead
// log (suffix -wal), the index of the log (-shm) and the lease file (-lease). Keep them together, on
// a local disk. Copy them only while no process has the database open. The lease file names the
// process that holds the lease, and records the last commit. The store refuses to open a database
// that lacks this commit, for instance because its -wal file was deleted or an old copy was put in
// its place. To accept such a file, or to start over after you deleted it, remove the lease file.
//
// A refused file and its log stay as they are, and a damaged log is copied under the suffix -wal-refused
// (-wal-refused-2, ... if there is one), because SQLite overwrites what is behind the damage once you accept
// the file. The error names the copy.
//
// The store fails with ErrReplaced when one of the files is deleted, replaced or truncated while it is open, and
// keeps what it has acknowledged as far as the files still have it. It does not notice a change of bytes until it
// reads them.
//
// Do not open the database with os.Open in a process that has it open as a store: on systems without
// open file description locks, closing that file drops the locks of SQLite. Do not write to it with
// another version of SQLite: versions before 3.51.3 can corrupt it.
//
// # Processes
//
// Several processes may open the file. One store at a time holds the lease, and its bus runs the handlers. The others are
// standbys and tools: they leave events in the table eventbus_incoming, and requests, and the bus with the lease takes them in.
// They read, take and add dead letters themselves.
//
// Acquire waits for the lease with a lock of the lease file, which it tries every 50 ms. The kernel releases the lock when
// the process ends, also by SIGKILL, and the next lease counts a crash. There is no timeout: a holder that is stopped
// (SIGSTOP, a debugger) keeps the lease, and goes on with it when it continues. To take the lease from it, end its process.
//
// If the lease file is deleted or replaced, the store notices that within a second, fails with ErrReplaced, and Reopen
// locks the new file. If another store has begun a lease meanwhile, this one has lost its lease: its batches are refused
// with driver.ErrLeaseLost, watchers get driver.ChangedLease, and it goes on as a standby.
//
// Open migrates an older schema, but not while a process holds the lease (*LockedError with a Reason). MustExist is for
// tools: it neither creates nor migrates a file. WithExclusive refuses other processes, and protects the program from
// disks that hang.
//
// A bus with the lease looks for new work of others every 10 ms, any other bus every 100 ms, at about 10 µs a look.
//
// # Transactions
//
// A service may have tables of its own in the file, and insert events with them in one transaction: see Store.SubmitTx. The
// names of the store's tables begin with eventbus_. Keep such transactions short: while one has written and is open, no store
// commits. Publications that wait for it longer than WithLockWait end with an outcome that is unknown. While other programs
// commit, a bus at full speed leaves gaps between its commits (about a third of the time at most), in which SQLite's busy
// handler gets the write lock: set a busy_timeout of some seconds.
//
// Open the file with the store before the service makes its tables: Open refuses a database of another program
// (ErrOtherProgram). The pragmas application_id, user_version and journal_mode belong to the
// store. Migrations and Verify leave the tables of the service alone.
//
// # Durability
//
// With WithNormalSync, a commit is recorded together with the run of the operating system (Linux only).
// In the same run the store requires the commit, since only a power cut can take it. After a power cut it
// opens what is left, and copies a log with more in it as above.
//
// Each commit is synced to the disk (synchronous=FULL) and contains all batches that gathered during
// the previous commit, at most 1024. A checksum protects each row. A row that does not match its
// checksum is reported as a *CorruptError when it is read.
package sqlite
