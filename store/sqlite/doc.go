// Package sqlite stores the events of a bus in an SQLite file, without cgo. A bus with such a store
// is durable: when Publish returns nil, the event survives SIGKILL and, with the default settings, a
// power cut.
//
//	store, err := sqlite.Open(ctx, "events.db")
//	if err != nil {
//		return err // *LockedError: another bus has the file open; WaitForLease waits for its end
//	}
//	bus, err := eventbus.New(eventbus.WithStore(store))
//	if err != nil {
//		return err
//	}
//	// Subscribe with Named, then Start. Shutdown closes the store.
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
// One store at a time holds the lease of a file, in any process. The kernel releases the lease when
// the process ends. A deploy needs no loop: the new process waits with WaitForLease. WithExclusive refuses other
// processes, and protects the program from disks that hang.
//
// Without it, other processes read and write beside the bus, or while none runs, with the option Beside. A program that
// runs no handlers lists, groups, exports, imports, replays and purges dead letters, and gives directives:
//
//	store, err := sqlite.Open(ctx, "events.db", sqlite.Beside())
//	if err != nil {
//		return err
//	}
//	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithoutHandlers())
//	if err != nil {
//		return err
//	}
//	defer bus.Shutdown(context.Background()) // closes the store
//	page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{})
//
// A replay opens a dispatch for the subscriptions that the letter names, in one commit with the removal of the letter.
// A running bus takes the dispatch within 250 ms. Otherwise the next bus does. If one of the subscriptions does not
// exist in that bus, its delivery waits until it is made.
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
