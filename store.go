package eventbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/route"
)

// Store keeps the records of accepted events, and the dead letters, outside the process. WithStore
// makes a bus durable with it. store/sqlite has one for an embedded file, storetest has one in
// memory for tests, and the suite that every store must pass.
//
// A store needs no knowledge of the bus. It applies batches of changed records atomically, in
// order, and fences them by lease: of all open stores over the same data, at most one holds the
// lease. A record is leased while the bus with the lease has it in memory. Only that bus changes
// it. All other records are free: any bus may claim them once it has the lease.
//
// The methods that take a context return soon after it has ended. A method that hangs does not block
// Shutdown. While Claim hangs, Start and Publish may block beyond their contexts. Submit and Watch, and
// functions on goroutines of the store, must not panic. A panic of any other method is an error of that
// call: after one in Claim, the bus restarts in place.
//
// The methods are safe for concurrent use. All times are in UTC, in the years 0 to 9999, see
// Batch.CheckTimes; those of queries may be others.
type Store interface {
	// Submit enqueues a batch and returns. It neither commits nor blocks nor calls done: the bus calls
	// it under the lock that decides the order of events. The store must not change the batch, except
	// for Ref and Position of its new records, and may use its memory until done is called.
	//
	// Batches apply in the order of Submit, each wholly or not at all, as many in one commit as have
	// gathered. done is called once per batch, in the same order, on a goroutine of the store:
	//
	//   - nil: the batch is durable, and its new records have their Ref and Position.
	//   - *RefusedError: this batch alone was not applied, and changed nothing, not even Ref and
	//     Position of its new records.
	//   - any other error: the outcome is unknown. The store has failed. It applies no further batch,
	//     and passes an error that matches ErrStoreFailed to the done of every batch that follows,
	//     until Reopen. After Close the error matches ErrStoreClosed.
	//
	// done does not block and runs no user code, but may call Submit.
	Submit(b *Batch, done func(error))

	// Claim leases free records and returns them. It needs the lease: without it the error matches
	// ErrNoLease. Records that were submitted and are not committed yet may be missing. If ctx has
	// ended, Claim leases nothing. After any other error it may have leased records, which are free
	// again after Reopen.
	Claim(ctx context.Context, q ClaimQuery) (Claimed, error)

	// Letter returns a dead letter, or an error that matches ErrNotFound. Event.Payload and Original
	// are what Bury received: a json.RawMessage, an EncodedPayload, or nil. A store does not keep Err
	// of a failure.
	Letter(ctx context.Context, id LetterID) (DeadLetter, error)

	// Letters returns a page of dead letters, newest first: those with the largest ids. The bus has
	// validated the query and set its Limit. A page of large letters may end before. ctx bounds a scan.
	Letters(ctx context.Context, q LetterQuery) (LetterPage, error)

	// Groups returns the groups of the letters that match, as DLQ.Groups documents.
	Groups(ctx context.Context, q LetterQuery) ([]LetterGroup, error)

	// Orders returns the last order of each Subscription, sorted by Subscription.
	Orders(ctx context.Context) ([]Order, error)

	// Audit returns a page of the entries that match, newest first: those with the largest Number. A store
	// may remove old entries, but keeps the newest 10,000. A denied entry never makes it remove one that
	// was not denied. The bus has validated the query and set its Limit. ctx bounds a scan.
	Audit(ctx context.Context, q AuditQuery) (AuditPage, error)

	// Catalog returns the catalog of the last batch that had one, or nil. It has what JSON keeps of it.
	Catalog(ctx context.Context) (*Catalog, error)

	// Lookup returns the unsettled records of an event, by Ref, leased ones included.
	Lookup(ctx context.Context, id EventID) ([]*Record, error)

	// Records returns a page of the unsettled records that match, by Ref, leased ones included. The bus
	// has validated the query and set its Limit. ctx bounds a scan.
	Records(ctx context.Context, q RecordQuery) (RecordPage, error)

	// Remembered returns the remembered id of an event, by Scope and Key of Dedupe, and whether it is
	// known. The entry may have expired.
	Remembered(ctx context.Context, scope, key string) (Dedupe, bool, error)

	// Stats counts what the store has.
	Stats(ctx context.Context) (StoreStats, error)

	// Parked counts the records in RecordParked by Door, free and leased, without the doors in except.
	// It stops after 100,000 records.
	Parked(ctx context.Context, except map[string]bool) (map[string]int64, error)

	// Watch calls changed within 250 ms after another process has committed. It is a hint: it may come
	// without a change. changed must not block. stop ends the calls, and waits for one in progress.
	Watch(changed func()) (stop func())

	// Patience returns how long a commit may take before the store gives up by itself. If the store
	// confirms nothing for as long, the bus refuses publications until it confirms something. New calls
	// it once. 0 or less: the bus waits for ever.
	Patience() time.Duration

	// Reopen verifies the data, ends the lease of this store and begins a new one. Every record that
	// the old lease had is free then. The bus calls it after the store has failed. It waits for every
	// done to return.
	Reopen(ctx context.Context) error

	// Close applies what was submitted, frees the records of its lease without counting a crash, and
	// releases the lease. It waits for every done to return. A second Close returns nil.
	Close(ctx context.Context) error
}

// Eraser is a Store that can overwrite what it has deleted. After the last part of a purge, the bus calls
// Erase, which returns when the storage has no payload of a letter that was taken before. Its error
// matches ErrNotErased if it could not.
type Eraser interface {
	Erase(ctx context.Context) error
}

// Ref identifies a record in its store. A store assigns growing numbers, from 1, in the order in
// which records become durable.
type Ref int64

// RecordState is the state of a record.
type RecordState uint8

const (
	// RecordReady: the dispatch is queued or runs.
	RecordReady RecordState = iota
	// RecordWaiting: it waits for its next attempt, until Due.
	RecordWaiting
	// RecordScheduled: the event was published with After or At, and is not due before Due.
	RecordScheduled
	// RecordParked: it waits at the door of the subscription Door.
	RecordParked
)

// String returns "ready", "waiting", "scheduled" or "parked".
func (s RecordState) String() string {
	return names.Of("RecordState", recordStateNames, int(s))
}

var recordStateNames = []string{"ready", "waiting", "scheduled", "parked"}

// MarshalText returns the text that String returns.
func (s RecordState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text that String returns.
func (s *RecordState) UnmarshalText(text []byte) error {
	return names.Read("RecordState", recordStateNames, text, s)
}

// Record is the durable truth about a dispatch: an event, its targets, and its progress through
// them. Times are in UTC. A store does not keep Err of a failure.
type Record struct {
	Ref Ref `json:"ref"`
	// Position orders dispatches by acceptance. In a new record, 0 stands for its own Ref, and
	// BesidePrevious for the Position of the record before it in Batch.New.
	Position int64 `json:"position"`

	// The following are fixed once the record exists.

	ID        EventID       `json:"id"`
	Type      string        `json:"type"`
	Key       string        `json:"key,omitempty"`
	Metadata  EventMetadata `json:"metadata,omitzero"`
	Payload   []byte        `json:"payload,omitempty"` // encoded by the bus's codec; nil and empty differ
	Published time.Time     `json:"published"`
	// Targets names the subscriptions in the order of delivery.
	Targets []string `json:"targets"`
	// Scheduled is when a scheduled event is due. It is zero for other events.
	Scheduled time.Time `json:"scheduled,omitzero"`
	// Replay describes the letter from which a replay opened the dispatch. It is nil for a
	// publication.
	Replay *RecordReplay `json:"replay,omitempty"`

	// The following change with each Batch.Update.

	State    RecordState     `json:"state"`
	Due      time.Time       `json:"due,omitzero"`   // of RecordWaiting and RecordScheduled, at times of RecordParked
	Door     string          `json:"door,omitempty"` // of RecordParked
	Progress *RecordProgress `json:"progress,omitempty"`
	// Leased is set if the bus keeps the dispatch in memory after the batch. Otherwise the record is
	// free. Claim sets it.
	Leased bool `json:"leased,omitempty"`
	// Suspect is set while the dispatch may be the one that crashes the process, see Crashes.
	Suspect bool `json:"suspect,omitempty"`

	// Crashes counts the leases that had the record and ended by neither Close nor Reopen. If such a
	// lease had records with Suspect set, only those count it. Otherwise its records in RecordReady
	// count it, up to SuspectCrashes. Claim clears Suspect. Batch.Update replaces the count. A new
	// record has 0, whatever it says.
	Crashes int `json:"crashes,omitempty"`
	// Own is ignored in a batch. Claim sets it if the present lease has made the record free: by an
	// update, or by inserting it without Leased.
	Own bool `json:"-"`
}

// SuspectCrashes is the number of Crashes from which the bus suspects a record of crashing the
// process.
const SuspectCrashes = 2

// BesidePrevious is the Position of a new record that shares the Position of the record before it
// in Batch.New.
const BesidePrevious = -1

// RecordReplay describes the letter from which a replay opened a dispatch.
type RecordReplay struct {
	Began          time.Time `json:"began"`
	Count          int       `json:"count"` // replays of the event, with this one
	Succeeded      []string  `json:"succeeded,omitempty"`
	History        []Failure `json:"history,omitempty"`
	HistoryOmitted int       `json:"history_omitted,omitempty"`
	Edited         bool      `json:"edited,omitempty"`
	Original       []byte    `json:"original,omitempty"` // the published payload, if Edited
}

// RecordProgress is the progress of a dispatch through its targets. Positions count from 0.
type RecordProgress struct {
	Next          int            `json:"next,omitempty"`    // position of the target to visit next
	Skipped       []int          `json:"skipped,omitempty"` // positions of targets that were split off
	Attempts      int            `json:"attempts,omitempty"`
	Failures      []Failure      `json:"failures,omitempty"`
	FirstFailures int            `json:"first_failures,omitempty"` // of these, those before the omitted ones
	Omitted       int            `json:"omitted,omitempty"`
	OmittedHere   int            `json:"omitted_here,omitempty"` // of these, those at the next target
	PreviousDelay time.Duration  `json:"previous_delay,omitempty"`
	ParkedFor     time.Duration  `json:"parked_for,omitempty"`
	Budgets       []RecordBudget `json:"budgets,omitempty"`
	Part          bool           `json:"part,omitempty"` // it was split off: its outcome is not the event's
}

// RecordBudget is how much of a retry rule's budget a dispatch has spent.
type RecordBudget struct {
	Subscription  string        `json:"subscription,omitempty"` // empty for a rule of the bus
	Rule          int           `json:"rule"`                   // its position
	Failures      int           `json:"failures"`
	PreviousDelay time.Duration `json:"previous_delay,omitempty"`
}

// Batch is a set of changes that apply together or not at all. A store applies the fields in their
// order.
type Batch struct {
	// Now is the bus's time, in UTC.
	Now time.Time
	// AgedAt decides which entries of Remember have expired, and what else a store removes by age. It
	// stands still for an hour after the bus's clock was set ahead. Zero means Now. See Aged.
	AgedAt time.Time
	// Remember adds entries to the table of remembered ids. If one is known, and Aged is before its
	// Expires, the batch is refused.
	Remember []Dedupe
	// Forget removes entries from the table of remembered ids, by Scope and Key. Unknown ones are
	// ignored.
	Forget []Dedupe
	// Take removes letters. If one is unknown, the batch is refused.
	Take []LetterID
	// Cancel removes the free records in RecordScheduled of events. It needs no lease. If an event has
	// none, the batch is refused with ErrNotScheduled.
	Cancel []EventID
	// New inserts records. If the store has no lease and one is Leased, the batch is refused with
	// ErrNotLeased.
	New []*Record
	// Update changes State, Due, Door, Progress, Leased, Suspect and Crashes of records that the lease
	// has. If the lease does not have one, the batch is refused.
	Update []*Record
	// Delete removes records that the lease has. If it does not have one, the batch is refused.
	Delete []Ref
	// Bury inserts letters, which have their ids. An id that exists is skipped: an import may repeat.
	// Event.Payload and Original are a json.RawMessage, an EncodedPayload, or nil.
	Bury []*DeadLetter
	// Orders replaces the order of each Subscription. One without Pause and Trip stays too: it is later than
	// those under other names of the subscription.
	Orders []Order
	// Audit adds entries to the audit, each with the next Number. The store ignores Number in a batch.
	Audit []AuditEntry
	// Catalog replaces the catalog. nil keeps it.
	Catalog *Catalog
	// Deferrable is set if no caller, and no other dispatch, waits for the batch. A store may delay its
	// commit by up to 1 ms, so that a batch that follows shares it.
	Deferrable bool
}

// Aged returns AgedAt, or Now if AgedAt is zero.
func (b *Batch) Aged() time.Time {
	if b.AgedAt.IsZero() {
		return b.Now
	}
	return b.AgedAt
}

// Dedupe is a remembered id of an event.
type Dedupe struct {
	Scope   string // empty for event ids
	Key     string
	Event   EventID
	Content string // identifies the content: a repetition must have the same
	// Expires is when the entry is no longer known. A store may remove the entry once it has seen a
	// Batch.Aged at or after Expires. So after the clock is set back, an expired entry may be known or not.
	Expires time.Time
}

// Order is an operator's order to a subscription that survives restarts.
type Order struct {
	Subscription string    `json:"subscription"`
	Pause        bool      `json:"pause,omitempty"` // by Pause, or by HoldUntil with Until
	Until        time.Time `json:"until,omitzero"`
	Trip         bool      `json:"trip,omitempty"` // the circuit was opened
	By           string    `json:"by,omitempty"`
	Why          string    `json:"why,omitempty"`
	At           time.Time `json:"at"`
}

// ClaimKind selects free records for Claim.
type ClaimKind uint8

const (
	// ClaimReady claims what must be dispatched, in the order of Position, then Ref: all RecordReady,
	// and of those with a Key in RecordWaiting or RecordParked the ones without Own, whatever their
	// Due. Without them, a later event of the key would overtake after a restart.
	ClaimReady ClaimKind = iota
	// ClaimDue claims records without a Key in RecordWaiting, and any in RecordScheduled, that are due
	// at Now, in the order of Due, then Ref.
	ClaimDue
	// ClaimParked claims RecordParked at one of Doors, in the order of Position, then Ref: those
	// without a Key, and those with Own. ClaimReady claims the others.
	ClaimParked
	// ClaimEvent claims the RecordScheduled of Event, in the order of Ref.
	ClaimEvent
)

// ClaimQuery selects free records.
type ClaimQuery struct {
	Kind  ClaimKind
	Limit int       // at least 1
	Now   time.Time // for ClaimDue
	Doors []string  // for ClaimParked; distinct
	Event EventID   // for ClaimEvent
}

// Claimed is the result of Claim.
type Claimed struct {
	Records []*Record
	// More reports whether further records matched.
	More bool
	// NextDue is the earliest Due of the free records that ClaimDue claims later, after Now. It is zero
	// if there is none, and for other kinds.
	NextDue time.Time
}

// RecordQuery selects the records that match every field that is set.
type RecordQuery struct {
	States []RecordState // empty: all
	Type   string        // a pattern of event types, as for Subscribe
	Key    string
	Target string // one of Targets, also under another of its names
	same   *names.Same
	After  Ref // selects larger ones
	Limit  int // at least 1
}

// Matcher returns a function that reports whether a record matches the fields of the query, except
// After. The error is a *PatternError.
func (q RecordQuery) Matcher() (matches func(*Record) bool, err error) {
	matchesType, err := typeMatcher(q.Type)
	if err != nil {
		return nil, err
	}
	return func(r *Record) bool {
		return (len(q.States) == 0 || slices.Contains(q.States, r.State)) && (q.Key == "" || q.Key == r.Key) &&
			(q.Target == "" || slices.Contains(r.Targets, q.Target) || slices.ContainsFunc(r.Targets, q.same.Has)) && matchesType(r.Type)
	}, nil
}

// typeMatcher returns a function that compares event types with a pattern. An empty one matches all.
func typeMatcher(pattern string) (matches func(string) bool, err error) {
	if pattern == "" {
		return func(string) bool { return true }, nil
	}
	parsed, offence := route.Parse(pattern)
	if offence != nil {
		return nil, patternError(pattern, offence)
	}
	return parsed.Match, nil
}

// RecordPage is a page of records, by Ref.
type RecordPage struct {
	Records []*Record
	// Next is the After of the next page. It is 0 on the last page.
	Next Ref
}

// StoreStats counts what a store has.
type StoreStats struct {
	// Records by state, free and leased.
	Ready     int64 `json:"ready"`
	Waiting   int64 `json:"waiting"`
	Scheduled int64 `json:"scheduled"`
	Parked    int64 `json:"parked"`

	Free    int64 `json:"free"` // of all records
	Letters int64 `json:"letters"`

	// Beside is the number of records that stores without the lease have inserted, less those that they
	// have cancelled, from the beginning of the data. The bus corrects its count by it.
	Beside int64 `json:"-"`

	// HasLease reports that this store holds the lease. While it does, no other process dispatches events.
	HasLease bool `json:"-"`

	// Crashed reports that the lease before the first one of this store ended by neither Close nor Reopen.
	// CrashedEvents is the number of events that count a crash for it, see Record.Crashes; -1 if that is unknown.
	Crashed       bool  `json:"-"`
	CrashedEvents int64 `json:"-"`
}

// Unsettled returns the number of records.
func (s StoreStats) Unsettled() int64 { return s.Ready + s.Waiting + s.Scheduled + s.Parked }

// Errors of stores.
var (
	// ErrStoreFailed is matched by the errors of a store that has failed and was not reopened.
	ErrStoreFailed = errors.New("eventbus: store has failed")
	// ErrStoreClosed is returned by a store after Close.
	ErrStoreClosed = errors.New("eventbus: store is closed")
	// ErrNotErased is matched by the error of a purge whose letters are deleted, and whose payloads are
	// still in the storage for a while: see the store.
	ErrNotErased = errors.New("eventbus: payloads of purged letters are not erased yet")
	// ErrNoLease is returned by a store that does not hold the lease.
	ErrNoLease = errors.New("eventbus: store does not hold the lease")
	// ErrNotLeased is the refusal of a batch that changes a record that is not leased, or not by this
	// bus.
	ErrNotLeased = errors.New("eventbus: record is not leased by this bus")
)

// RefusedError reports that a store did not apply a batch, and why. It changed nothing, and the
// store goes on. It wraps ErrNotFound, ErrNotScheduled, ErrDuplicateID, ErrNotLeased, or what CheckTimes
// found.
type RefusedError struct {
	Letter LetterID // ErrNotFound: the letter of Take that is unknown
	Event  EventID  // ErrNotScheduled: the event of Cancel that has no such record
	Known  *Dedupe  // ErrDuplicateID: the remembered entry
	Ref    Ref      // ErrNotLeased: the record of Update or Delete
	Err    error
}

func (e *RefusedError) Error() string {
	switch {
	case e.Known != nil:
		return fmt.Sprintf("%v: %q is known as event %s", e.Err, e.Known.Key, e.Known.Event)
	case e.Ref != 0:
		return fmt.Sprintf("%v: %d", e.Err, e.Ref)
	case !e.Letter.IsZero():
		return fmt.Sprintf("%v: %s", e.Err, e.Letter)
	case !e.Event.IsZero():
		return fmt.Sprintf("%v: %s", e.Err, e.Event)
	}
	return e.Err.Error()
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }
