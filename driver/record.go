package driver

import (
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/uuid7"
)

// ID is the UUID of an event or of a dead letter. Later letters have larger ids.
type ID [16]byte

// String returns the UUID as 36 characters, in lower case.
func (id ID) String() string { return uuid7.Format(id) }

// IsZero reports whether the id is not set.
func (id ID) IsZero() bool { return id == ID{} }

// Ref identifies a record in its store, for ever. A store assigns numbers from 1. Those of one lease and Slot grow in the
// order in which the records become durable.
type Ref int64

// State is the state of a record.
type State uint8

const (
	// Ready: the dispatch is queued or runs.
	Ready State = iota
	// Waiting: it waits for its next attempt, until Due.
	Waiting
	// Scheduled: the event was published for later, and is not due before Due.
	Scheduled
	// Parked: it waits at the door of the subscription Door.
	Parked
)

var stateNames = []string{"ready", "waiting", "scheduled", "parked"}

// String returns "ready", "waiting", "scheduled" or "parked".
func (s State) String() string { return names.Of("State", stateNames, int(s)) }

// Record is the durable truth about a dispatch: an event, its targets, and its progress through
// them.
type Record struct {
	Ref Ref
	// Position orders dispatches by acceptance. In a new record, 0 stands for its own Ref, and
	// BesidePrevious for the Position of the record before it in Batch.New. The first one never has BesidePrevious.
	Position int64

	// The following are fixed once the record exists.

	ID        ID // of the event
	Type      string
	Key       string // empty for none
	Published time.Time
	// Targets names the subscriptions in the order of delivery. nil and empty need not differ.
	Targets []string
	// Scheduled is when a scheduled event is due. It is zero for other events.
	Scheduled time.Time
	Payload   []byte // any bytes
	Metadata  []byte // JSON, nil for none
	Replay    []byte // JSON: the letter from which a replay opened the dispatch; nil for a publication
	// IdempotencyKey is the publisher's, empty for none. KeyExpires is set if no batch has remembered it: the bus that takes the event
	// in must, until KeyExpires at least.
	IdempotencyKey string
	KeyExpires     time.Time
	// UntilSettled is set if IdempotencyKey is known until the event has settled, see Batch.ForgetSettled.
	UntilSettled bool
	// Expires is from when the dispatch must not begin any more; zero for never. ClaimExpired selects by it.
	Expires time.Time

	// The following change with each Batch.Update.

	State State
	Due   time.Time // in Waiting and Scheduled, at times in Parked; otherwise zero
	Door  string    // in Parked
	// Destination is the destination of Door for which the dispatch is parked; ClaimParked selects by it. It is empty for none, otherwise
	// valid UTF-8 without NUL, of at most 255 bytes. The bus sets it in Parked only. A store keeps the value of the batch in every state.
	Destination string
	// Progress is JSON: how far the dispatch is. nil for one that has not begun.
	Progress []byte
	// Leased is set if the bus keeps the dispatch in memory after the batch. Otherwise the record is
	// free. In Batch.New it is a wish, if the batch has neither Update nor Delete: the store clears it if it does not
	// grant it, and the record is free then. Claim sets it.
	Leased bool
	// Suspect is set while the dispatch may be the one that crashes the process, see Crashes. Batch.New
	// and Batch.Update set it. Claim clears it, and nothing else does, not even the end of the lease.
	Suspect bool

	// Crashes counts the leases that had the record and ended by neither Release, Close nor Reopen. A store may
	// leave out one of which it cannot tell a crash from a pause of the process. If such a
	// lease had records with Suspect set, in any state, all those count it, without a limit, and no others.
	// Otherwise those of its records count it that are in Ready and have fewer than SuspectCrashes:
	// a larger count stays as it is. A record that does not count a crash is not in Stats.CrashedEvents.
	// Batch.Update replaces the count. A new record has 0, whatever it says.
	Crashes int
	// Own is ignored in a batch. Claim sets it if the present lease of the Slot has made the record free: by an
	// update, or by inserting it without Leased, or by refusing the wish. It is false wherever else a store returns records.
	Own bool

	Slot Slot // fixed
}

// SuspectCrashes is the number of Crashes from which the bus suspects a record of crashing the
// process.
const SuspectCrashes = 2

// BesidePrevious is the Position of a new record that shares the Position of the record before it
// in Batch.New.
const BesidePrevious = -1

// ClaimKind selects free records for Claim.
type ClaimKind uint8

const (
	// ClaimReady claims the records that must be dispatched, in the order of Position, then Ref: all in
	// Ready, and those in Waiting or Parked that have a Key and not Own, whatever their Due. Without these, a later event of the key would overtake after a restart.
	ClaimReady ClaimKind = iota
	// ClaimDue claims records without a Key in Waiting, and any in Scheduled, that are due
	// at Now, in the order of Due, then Ref.
	//
	// No kind claims a record in Waiting that has a Key and Own. Such a record is not lost: the bus keeps
	// the dispatch in memory, in the order of its key, and does not free the record. The end of the lease
	// does, and under the next lease Own is false, so that ClaimReady claims the record.
	ClaimDue
	// ClaimParked claims the records in Parked at one of Doors that have no Key, or have Own, in the order
	// of Position, then Ref, of the destinations that Destinations or OtherThan selects. ClaimReady claims those with a Key
	// and not Own, of all destinations.
	ClaimParked
	// ClaimRefs claims the records of Refs, whatever their State, Key, Due and Own, in the order of Ref.
	ClaimRefs
	// ClaimExpired claims the records in Ready, Waiting or Parked whose Expires is set and not after Now, in the order of Expires, then
	// Ref, whatever their Key, Due and Own. Those in Scheduled are due before they expire.
	ClaimExpired
)

// ClaimQuery selects free records.
type ClaimQuery struct {
	Kind  ClaimKind
	Limit int       // at least 1
	Now   time.Time // for ClaimDue and ClaimExpired
	Doors []string  // for ClaimParked; distinct
	Refs  []Ref     // for ClaimRefs; distinct, at most 10,000
	Slots SlotSet   // of the lease; empty: all that the lease has

	// Destinations and OtherThan select by Record.Destination, for ClaimParked. "" stands for the records without one. Each has up
	// to 10,000 distinct entries. At most one of them is set.

	Destinations []string // the record has one of these; empty: all
	OtherThan    []string // the record has none of these; empty: all
}

// Claimed is the result of Claim.
type Claimed struct {
	Records []*Record
	// More reports whether further records matched.
	More bool
	// NextDue is the earliest Due after Now of the free records that ClaimDue selects, and for ClaimExpired the earliest Expires of
	// those that it selects. It is zero if there is none, and for other kinds.
	NextDue time.Time
}

// RecordQuery selects the records that match every field that is set.
type RecordQuery struct {
	States  []State                     // empty: all
	Type    func(eventType string) bool // nil: all
	Key     string
	Targets []string // one of these is one of the record's; empty: all
	// IdempotencyKey is the record's; empty: all.
	IdempotencyKey string
	After          Ref // selects larger ones
	Limit          int // at least 1
}

// Matches reports whether a record matches all fields but Limit, After included, for stores that compare records one by
// one.
func (q *RecordQuery) Matches(r *Record) bool {
	return r.Ref > q.After && (len(q.States) == 0 || slices.Contains(q.States, r.State)) &&
		(q.Key == "" || q.Key == r.Key) && (q.IdempotencyKey == "" || q.IdempotencyKey == r.IdempotencyKey) && (q.Type == nil || q.Type(r.Type)) &&
		(len(q.Targets) == 0 || slices.ContainsFunc(r.Targets, func(t string) bool { return slices.Contains(q.Targets, t) }))
}

// RecordPage is a page of records, by Ref.
type RecordPage struct {
	Records []*Record
	// Next is the After of the next page. It is 0 on the last page.
	Next Ref
}
