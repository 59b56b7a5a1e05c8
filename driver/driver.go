// Package driver has what a store of a bus implements: the interface Store, the values that cross it, and the errors
// that both sides compare. storetest has the suite that every store must pass, and a store in memory. store/sqlite is a
// store in a file.
//
// A store knows records, letters, directives, audit entries and a catalog by the fields that it selects and sorts by.
// Everything else is bytes in an encoding of the bus, which a store keeps as they are. Parts that are JSON are nil or
// valid JSON, so that a store may embed them. Other bytes may be any: nil and empty differ.
//
// Strings in a batch are valid UTF-8. A string of a query may be invalid, and matches nothing then.
//
// A store returns every time in UTC and without a monotonic reading, whatever location the time of the batch had.
//
// Queries have functions that read what only the bus can read. They do not block. They must not keep or change their
// arguments, nor call the store. After an error of such a function, the store returns an error that wraps it, and no
// results. The store has not failed.
//
// # Leases
//
// The interface has no Open: each store has a function of its own, and the program passes the result to the bus. Open
// takes no lease: Acquire does. Only the store that has the lease inserts, changes and deletes records. All others leave
// accepted events in the table of incoming events (Batch.Leave), and the bus with the lease takes them in. They leave
// requests (Batch.Ask) for what else only that bus may do. So every record has one writer.
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
// A store applies batches of changed records atomically, in order, and fences them by lease: of all open stores over
// the same data, at most one holds the lease of a slot. A record is leased while the bus with the lease has it in memory.
// All other records are free: the bus with the lease may claim them.
//
// The methods that take a context return soon after it has ended. A method that hangs does not block
// Shutdown. While Claim hangs, Start and Publish may block beyond their contexts. Submit and Watch, and
// functions on goroutines of the store, must not panic. A panic of any other method is an error of that
// call: after one in Claim, the bus restarts in place.
//
// After a commit has failed, the store has failed, until Reopen. All methods that return an error then return one
// that matches ErrFailed and change nothing, except Reopen and Close. After Close, all of them return one that matches
// ErrClosed, also on a store that has failed.
//
// The methods are safe for concurrent use. The times of a batch are in the years 0 to 9999, see Batch.CheckTimes.
// Those of queries may be others.
type Store interface {
	// Submit enqueues a batch and returns. It neither commits nor blocks nor calls done: the bus calls
	// it under the lock that decides the order of events. The store must not change the batch, except for what it
	// assigns: Ref, Position and Leased of New, and the ID of Leave and Ask. It may use its memory until done is called.
	//
	// Batches apply in the order of Submit, each wholly or not at all, as many in one commit as have
	// gathered. done is called once per batch, in the same order, on a goroutine of the store:
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

	// Groups groups the letters that match by Fingerprint, whatever Limit, Before, ExactTotal and NoTotal are, and calls
	// each with the groups: those with most letters first, then those with the largest Newest. There are at most MaxGroups groups,
	// those of the newest letters. All other letters are one more group at the end, without Fingerprint and Sample.
	// An error of each ends the calls. Groups returns an error that wraps it.
	Groups(ctx context.Context, q LetterQuery, each func(g *Group) error) error

	// Directives returns the last directive for each Subscription, sorted by the bytes of Subscription.
	Directives(ctx context.Context) ([]Directive, error)

	// Audit returns a page of the entries that match, newest first: those with the largest Number. A store
	// may remove old entries, but keeps the newest 10,000. A denied entry never makes it remove one that
	// was not denied. ctx bounds a scan.
	Audit(ctx context.Context, q AuditQuery) (AuditPage, error)

	// Outcomes returns the outcomes of an event, in the order in which batches have added them. A store keeps an outcome at
	// least as long as the newest audit entry, of those that were not denied, that it had after the batch. It removes the
	// outcomes that are older than its oldest such entry, a while after it has removed entries before that one.
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

	// Stats counts what the store has.
	Stats(ctx context.Context) (Stats, error)

	// Parked counts the records in Parked by Door, free and leased, without the doors in except, which may be nil.
	// It may stop once it has counted 100,000 records.
	Parked(ctx context.Context, except map[string]bool) (map[string]int64, error)

	// Watch calls changed within 250 ms after another store over the same data has committed what
	// Batch.Changes tells of, in this or another process, and after this store has lost its lease. Over a TxStore it does
	// so also after a caller has committed a transaction with SubmitTx of any store, this one too: ChangedIncoming. A call
	// is a hint: it may come without a change, or with more than what has changed. changed must not block. The calls go on
	// after Reopen and end with Close. stop ends them earlier, and waits for one in progress. It may be called again, and
	// after Close. After Close, Watch does nothing.
	Watch(changed func(Change)) (stop func())

	// Acquire acquires the lease, or returns the one that the store has. A store with more than one slot adds up to
	// Want free slots to the lease that it has, without waiting. The Epoch stays the same.
	//
	// While another store has the lease, Acquire waits with AcquireQuery.Wait until ctx ends, and otherwise returns an
	// error that matches ErrNoLease. When the other store releases the lease, a store that waits gets it within 250 ms.
	// When its process ends, that takes as long as the store says. The store works meanwhile, Submit included: the
	// batches submitted before the lease begins have been applied when it begins. After an error, nothing is acquired.
	// The error may match ErrBusy.
	Acquire(ctx context.Context, q AcquireQuery) (Lease, error)

	// Lease returns the lease that the store has, from memory. A store that has lost its lease may not know that yet.
	Lease() Lease

	// Release applies the batches submitted so far, waits for every done to return, frees the records of the slots
	// without counting a crash, and ends their lease. Slots that the store does not have are ignored. Once it has
	// none, Lease is the zero Lease, and later batches with the old Epoch are refused with ErrLeaseLost. After an error, the store has
	// failed, or still has the lease. The error may match ErrBusy.
	Release(ctx context.Context, slots SlotSet) error

	// Now returns the time of the clock that the stores over the same data share, such as a server's. It is the zero time
	// if they have none but those of their processes.
	Now(ctx context.Context) (time.Time, error)

	// Patience returns how long a commit may take before the store gives up by itself. If the store
	// confirms nothing for as long, the bus refuses publications until it confirms something. eventbus.New
	// calls it once. 0 or less: the bus waits for ever.
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
	// If ctx ends first, or has ended, Close returns its error and goes on in the background. A later Close waits
	// for that until its own ctx ends, and then returns nil.
	Close(ctx context.Context) error
}

// Exclusive is a Store that may have its data alone: no other store can open them meanwhile. The bus refuses a standby
// then.
type Exclusive interface {
	IsExclusive() bool
}

// TxStore is a Store in a database in which callers have tables of their own. SubmitTx inserts incoming events in a
// transaction of the caller. They exist if and only if the caller commits.
//
// SubmitTx only inserts rows, and assigns no ID. Unless the store is a TxLock, it locks nothing for which a commit of a
// store could wait. If the store does not take such a transaction, or if it is one of another database, the error matches
// ErrNoTransaction and names the types that the store takes. Without events, SubmitTx only checks the transaction. After
// any error but ErrNoTransaction, the caller must roll back. The commit of the caller is announced to the watchers of all
// stores: see Watch.
type TxStore interface {
	SubmitTx(ctx context.Context, tx any, in []*Incoming) error
}

// OnceStore is a Store that runs a handler in a transaction of its database, together with a Mark that says so: what the
// handler does in the transaction happens once.
//
// RunOnce begins a transaction and marks m in it. If m is marked already, it returns false without a call of f. If another
// transaction marks m and has not ended, RunOnce waits for that. Otherwise it calls f with the transaction, which SubmitTx of
// the store takes, and with a context from which the store's package returns it. It commits if f returns nil and ctx has not ended, and rolls back
// otherwise, also when f panics or ends its goroutine. It returns the error of f as it is. An unknown outcome of the commit
// is an error, because the next RunOnce finds out. RunOnce needs no lease, and holds no lock for which a commit of a store
// could wait.
type OnceStore interface {
	TxStore
	// MaxRuns returns how many RunOnce can run at once before one waits for another: that wait counts as a part of an attempt. 0
	// stands for no limit. It does not change.
	MaxRuns() int
	RunOnce(ctx context.Context, m Mark, f func(ctx context.Context, tx any) error) (ran bool, err error)
}

// Mark says that a subscription has handled an event.
type Mark struct {
	Event ID
	// Names are those that the subscription has and had. Marks that have one of them in common, and the other fields but
	// Until, are one.
	Names []string
	// Published is the time of publication: the id may be that of an event of long ago, or of a duplicate.
	Published time.Time
	Edit      string // of a replay whose payload was replaced, which is handled by itself; empty for the event as it was published
	// Until is how long the store keeps the mark at least, by Batch.Aged. It also keeps it while it has a record, a
	// letter or an incoming event of that id.
	Until time.Time
}

// Blocked is a Store whose commits may wait for a lock that another program holds, for instance in a transaction of a
// caller. Blocked returns an error that names the lock and the likely cause while a commit has waited for it for longer
// than Patience. Otherwise it returns nil. The store has not failed: it goes on waiting. The publications that wait then
// end with an outcome that is unknown.
type Blocked interface {
	Blocked() error
}

// TxLock is a TxStore whose commits wait for a transaction of a caller. HoldsLock reports whether a transaction that
// SubmitTx took is open. Until it has ended, a publication by the caller that must end it would wait for itself: the bus
// refuses it.
type TxLock interface {
	HoldsLock(tx any) bool
}

// Eraser is a Store that can overwrite deleted data. After the last part of a purge, the bus calls
// Erase, which returns when the storage has no payload of a letter that was taken before. Its error
// matches ErrNotErased if it could not.
type Eraser interface {
	Erase(ctx context.Context) error
}

// Stats counts what a store has.
type Stats struct {
	// Records by state, free and leased.
	Ready     int64 `json:"ready"`
	Waiting   int64 `json:"waiting"`
	Scheduled int64 `json:"scheduled"`
	Parked    int64 `json:"parked"`

	Free    int64 `json:"free"` // of all records
	Letters int64 `json:"letters"`

	// Incoming is the number of events that wait to be taken in. They are no records.
	Incoming int64 `json:"incoming"`
}

// Unsettled returns the number of records.
func (s Stats) Unsettled() int64 { return s.Ready + s.Waiting + s.Scheduled + s.Parked }
