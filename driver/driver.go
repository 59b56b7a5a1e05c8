// Package driver defines the interface Store that stores of a bus implement, its arguments and results, and its errors.
// Package storetest has the suite that every store must pass, and a store in memory. Package store/sqlite is a store in
// a file. Users of a bus do not need this package.
//
// A store knows records, letters, directives, audit entries and a catalog by the fields that it selects and sorts by.
// All other data is bytes in an encoding of the bus, which a store keeps unchanged. JSON parts are nil or valid JSON,
// so that a store may embed them. Other parts may be any bytes: nil and empty differ.
//
// Strings in a batch are valid UTF-8. A string of a query may be invalid, and matches nothing then.
//
// A store returns every time in UTC and without a monotonic reading, whatever location the time of the batch had.
//
// Queries have functions that decode data of the bus. They do not block. They neither keep nor change their arguments,
// and do not call the store. After an error of such a function, the store returns an error that wraps it, and no
// results. The store has not failed.
//
// # Leases
//
// The interface has no Open: each store has a function of its own, and the program passes the result to the bus. Open
// takes no lease: Acquire does. Only the store that has the lease inserts, changes and deletes records. All others
// leave accepted events in the table of incoming events (Batch.Leave), and the bus with the lease takes them in. They
// leave requests (Batch.Ask) for other changes that only that bus may make. So every record has one writer.
//
// Acquire does the following, as one change of the data:
//
//   - If the last lease ended by neither Release, Close nor Reopen, it counts the crash: see Record.Crashes and
//     Lease.Crashed. So the data must show whether a lease has ended.
//   - It frees the records that earlier leases had, and begins a new lease. Own is false for all records then.
package driver

import (
	"context"
	"time"
)

// Store keeps the records of accepted events, and the dead letters, outside the process. eventbus.WithStore makes a bus
// durable with it.
//
// A store applies batches of changed records atomically, in order, and fences them by lease. Of all open stores over
// the same data, at most one holds the lease of a slot. A record is leased while the bus with the lease has it in
// memory. All other records are free: the bus with the lease may claim them.
//
// The methods that take a context return soon after it has ended. A method that hangs does not block Shutdown. While
// Claim hangs, Start and Publish may block beyond their contexts. Submit and Watch, and functions on goroutines of the
// store, must not panic. The bus treats a panic of any other method as an error of that call. After a panic in Claim,
// the bus restarts in place.
//
// After a commit has failed, the store has failed, until Reopen. All methods that return an error then return one
// that matches ErrFailed and change nothing, except Reopen and Close. After Close, all of them return one that matches
// ErrClosed, also on a store that has failed.
//
// The methods are safe for concurrent use. The times of a batch are in the years 0 to 9999 (Batch.CheckTimes). Times of
// queries may be outside.
type Store interface {
	// Submit enqueues a batch and returns. It neither commits nor blocks nor calls done: the bus calls it under the
	// lock that decides the order of events. The store may change only these fields of the batch: Ref, Position and
	// Leased of New, and the ID of Leave and Ask. It may use the memory of the batch until done is called.
	//
	// Batches apply in the order of Submit, each wholly or not at all. One commit may apply all waiting batches. done
	// is called once per batch, in the same order, on a goroutine of the store:
	//
	//   - nil: the batch is durable, and the store has assigned what it assigns.
	//   - *RefusedError: this batch alone was not applied, and changed nothing, nor was anything assigned. With
	//     ErrLeaseLost, all later batches with that Epoch are refused too.
	//   - an error that matches ErrClosed: the batch was submitted after Close, and not applied.
	//   - any other error, which wraps neither of these: the outcome is unknown. The store has failed.
	//     All batches of the commit get such an error, also those that it would have refused: they were
	//     compared with data that may not be durable. The store applies no further batch. The batches of
	//     later commits get an error that matches ErrFailed, until Reopen.
	//
	// done does not block and runs no user code, but may call Submit.
	Submit(b *Batch, done func(error))

	// Claim leases free records and returns them. It needs the lease: without it the error matches
	// ErrNoLease. Records that were submitted and are not committed yet may be missing. If ctx has
	// ended, Claim leases nothing. After any other error it may have leased records, which are free
	// again after Reopen.
	Claim(ctx context.Context, q ClaimQuery) (Claimed, error)

	// Letter returns a dead letter, or an error that matches ErrNotFound.
	Letter(ctx context.Context, id ID) (Letter, error)

	// Letters returns a page of dead letters, newest first: those with the largest ids. A page of large letters may end
	// before Limit. ctx bounds a scan.
	Letters(ctx context.Context, q LetterQuery) (LetterPage, error)

	// Groups groups the matching letters by Fingerprint and calls each with every group: sorted by Count, then by
	// Newest, both descending. It ignores Limit, Before, ExactTotal and NoTotal. There are at most MaxGroups groups,
	// chosen by the newest letters. One more group at the end has all other letters, without Fingerprint and Sample. An
	// error of each ends the calls. Groups returns an error that wraps it.
	Groups(ctx context.Context, q LetterQuery, each func(g *Group) error) error

	// Directives returns the last directive for each Subscription, sorted by the bytes of Subscription.
	Directives(ctx context.Context) ([]Directive, error)

	// Audit returns a page of the entries that match, newest first: those with the largest Number. A store
	// may remove old entries, but keeps the newest 10,000. A denied entry never makes it remove one that
	// was not denied. ctx bounds a scan.
	Audit(ctx context.Context, q AuditQuery) (AuditPage, error)

	// Outcomes returns the outcomes of an event, in the order in which batches have added them. A store keeps an
	// outcome at least as long as the newest audit entry that it had after the batch, apart from denied ones. Some time
	// after it removes entries, it removes the outcomes that are older than its oldest remaining entry.
	Outcomes(ctx context.Context, event ID) ([]Outcome, error)

	// Catalogs returns the catalogs of all instances, by Number.
	Catalogs(ctx context.Context) ([]Catalog, error)

	// Incoming returns a page of the events that wait to be taken in. It needs no lease.
	Incoming(ctx context.Context, q IncomingQuery) (IncomingPage, error)

	// Requests returns the requests without an answer that match.
	Requests(ctx context.Context, q RequestQuery) ([]Request, error)

	// Answer returns the answer of a request, and whether there is one yet. The error matches ErrNotFound if there is no
	// such request.
	Answer(ctx context.Context, id RequestID) (body []byte, answered bool, err error)

	// Lookup returns the unsettled records of an event, by Ref, leased ones included. Leased is set for the
	// records that a lease has, of this store or another. Own is false. Until Claim, Suspect and Crashes may
	// be those from before the last crash.
	Lookup(ctx context.Context, event ID) ([]*Record, error)

	// Records returns a page of the unsettled records that match, by Ref, leased ones included, with the
	// fields as Lookup has them. ctx bounds a scan.
	Records(ctx context.Context, q RecordQuery) (RecordPage, error)

	// Remembered returns the remembered id of an event, by Scope and Key of Dedupe, and whether it is
	// known. The entry may have expired.
	Remembered(ctx context.Context, scope, key string) (Dedupe, bool, error)

	// Stats returns the numbers of records, letters and incoming events.
	Stats(ctx context.Context) (Stats, error)

	// Parked counts the records in Parked by Door, free and leased, without the doors in except, which may be nil.
	// It may stop once it has counted 100,000 records.
	Parked(ctx context.Context, except map[string]bool) (map[string]int64, error)

	// Watch calls changed within 250 ms after another store over the same data, in any process, has committed a change
	// (Batch.Changes), and after this store has lost its lease. A TxStore also calls it with ChangedIncoming after a
	// caller commits a transaction with SubmitTx of any store, including this one. A call is a hint: it may come
	// without a change, or with additional bits. changed must not block. The calls continue after Reopen and end with
	// Close. stop ends them earlier, and waits for a call in progress. It may be called again, and after Close. After
	// Close, Watch does nothing.
	Watch(changed func(Change)) (stop func())

	// Acquire acquires the lease, or returns the lease that the store already has. A store with more than one slot adds
	// up to Want free slots to the lease that it has, without waiting. The Epoch stays the same.
	//
	// While another store has the lease, Acquire waits with AcquireQuery.Wait until ctx ends, and otherwise returns an
	// error that matches ErrNoLease. When the other store releases the lease, a store that waits gets it within 250 ms.
	// After its process ends, the time depends on the store. The store works meanwhile, Submit included: the batches
	// submitted before the lease begins have been applied when it begins. After an error, nothing is acquired. The
	// error may match ErrBusy.
	Acquire(ctx context.Context, q AcquireQuery) (Lease, error)

	// Lease returns the lease that the store has, from memory. A store that has lost its lease may not know that yet.
	Lease() Lease

	// Release applies the submitted batches and waits for every done to return. Then it frees the records of the slots
	// without counting a crash, and ends their lease. Slots that the store does not have are ignored. Once it has none,
	// Lease is the zero Lease, and later batches with the old Epoch are refused with ErrLeaseLost. After an error, the
	// store has failed, or still has the lease. The error may match ErrBusy.
	Release(ctx context.Context, slots SlotSet) error

	// Now returns the time of the clock that the stores over the same data share, such as a server's. It is the zero
	// time if they share no clock.
	Now(ctx context.Context) (time.Time, error)

	// Patience returns how long a commit may take before the store fails by itself. If the store confirms no batch for
	// this time, the bus rejects publications until it does. eventbus.New calls it once. 0 or less: the bus waits for
	// ever.
	Patience() time.Duration

	// Reopen verifies the data, ends the lease of this store and begins a new one, without counting a crash.
	// Every record that the old lease had is free then. The bus calls it after the store has failed.
	//
	// Reopen first waits until the done of every batch submitted so far has returned. A store that has not
	// failed applies those batches. If the store has no lease, or another store has acquired the lease meanwhile, Reopen
	// ends the failure, and the store has no lease.
	//
	// If Reopen returns an error, the store may have failed, and one that had failed still has. Reopen can be
	// called again.
	Reopen(ctx context.Context) error

	// Close applies the submitted batches, waits for every done to return, frees the records of its lease
	// without counting a crash, and releases the lease. A store that has failed applies no batch, and
	// tries to do the rest. After an error, the next Acquire may count a crash.
	//
	// If ctx ends first, or has ended, Close returns its error and continues in the background. A later Close waits for
	// that until its own ctx ends, and then returns nil.
	Close(ctx context.Context) error
}

// Exclusive is a Store that may have exclusive access to its data.
type Exclusive interface {
	// IsExclusive reports whether no other store can open the data meanwhile. The bus then rejects WithStandby.
	IsExclusive() bool
}

// TxStore is a Store in a database in which callers have tables of their own.
type TxStore interface {
	// SubmitTx inserts incoming events in a transaction of the caller. They exist if and only if the caller commits.
	// SubmitTx only inserts rows, and assigns no ID. Unless the store is a TxLock, it holds no lock for which a commit
	// of a store could wait. For a transaction of another type or database, the error matches ErrNoTransaction and
	// names the accepted types. Without events, SubmitTx only checks the transaction. After any error but
	// ErrNoTransaction, the caller must roll back. The stores announce the commit of the caller to all watchers: see
	// Store.Watch.
	SubmitTx(ctx context.Context, tx any, in []*Incoming) error
}

// OnceStore is a Store that runs a handler in a transaction of its database. The transaction also records a Mark, so
// that the effects of the handler in it happen once.
type OnceStore interface {
	TxStore
	// MaxRuns returns how many RunOnce can run at once without waiting for each other; 0 means no limit. It does not
	// change. A longer wait counts as a part of an attempt.
	MaxRuns() int
	// RunOnce begins a transaction and inserts the mark m. If m exists, it returns false without a call of f. If
	// another open transaction inserted m, RunOnce waits for its end. Otherwise it calls f with the transaction, which
	// SubmitTx accepts, and with a context from which the package of the store returns it. It commits if f returns nil
	// and ctx has not ended. Otherwise it rolls back, also when f panics or ends its goroutine. It returns the error of
	// f unchanged. An unknown outcome of the commit is an error: the next RunOnce finds the mark or not. RunOnce needs
	// no lease, and holds no lock for which a commit of a store could wait.
	RunOnce(ctx context.Context, m Mark, f func(ctx context.Context, tx any) error) (ran bool, err error)
}

// Mark records that a subscription has handled an event.
type Mark struct {
	Event ID // the event's id
	// Names lists the present and earlier names of the subscription. Marks with a common name are equal if their other
	// fields, apart from Until, are equal.
	Names []string
	// Published is the time of publication. It distinguishes the event from others that have used its id.
	Published time.Time
	Edit      string // identifies a replay with another payload, which is handled by itself; empty for the published event
	// Until is how long the store keeps the mark at least, compared with Batch.Aged. The store also keeps it while it
	// has a record, a letter or an incoming event with that id.
	Until time.Time
}

// Blocked is a Store whose commits may wait for a lock of another program, for instance in a transaction of a caller.
type Blocked interface {
	// Blocked returns an error that names the lock and the likely cause while a commit has waited for it for longer
	// than Patience. Otherwise it returns nil. The store has not failed and continues to wait. The bus ends the waiting
	// publications with an unknown outcome.
	Blocked() error
}

// TxLock is a TxStore whose commits wait for open transactions of callers.
type TxLock interface {
	// HoldsLock reports whether a transaction that SubmitTx accepted is open. A publication by its caller would wait
	// for itself, so the bus rejects it.
	HoldsLock(tx any) bool
}

// Eraser is a Store that can overwrite deleted data.
type Eraser interface {
	// Erase returns when the storage has no payload of a letter that was taken before. The bus calls it after the last
	// part of a purge. The error matches ErrNotErased if payloads remain.
	Erase(ctx context.Context) error
}

// Stats has the numbers of records, letters and incoming events of a store.
type Stats struct {
	// Ready, Waiting, Scheduled and Parked count the records by state, free and leased.
	Ready     int64 `json:"ready"`
	Waiting   int64 `json:"waiting"`
	Scheduled int64 `json:"scheduled"`
	Parked    int64 `json:"parked"`

	Free    int64 `json:"free"`    // free records in any state
	Letters int64 `json:"letters"` // dead letters

	// Incoming is the number of incoming events, which are not records yet.
	Incoming int64 `json:"incoming"`
}

// Unsettled returns the number of records, in any state.
func (s Stats) Unsettled() int64 { return s.Ready + s.Waiting + s.Scheduled + s.Parked }
