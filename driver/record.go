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

// Ref identifies a record in its store, for ever. A store assigns numbers from 1. Within a lease and a Slot, numbers
// grow in the order in which the records become durable.
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

// Record is the durable state of a dispatch: an event, its targets, and its progress through them.
type Record struct {
	Ref Ref // identifies the record; the store assigns it
	// Position orders dispatches by acceptance. In a new record, 0 means its own Ref, and BesidePrevious the Position
	// of the record before it in Batch.New. The first record never has BesidePrevious.
	Position int64

	// The following are fixed once the record exists.

	ID        ID        // of the event
	Type      string    // the event type
	Key       string    // empty for none
	Published time.Time // when the event was published
	// Targets names the subscriptions in the order of delivery. nil and empty need not differ.
	Targets []string
	// Scheduled is when a scheduled event is due. It is zero for other events.
	Scheduled time.Time
	Payload   []byte // the encoded payload: any bytes
	Metadata  []byte // JSON, nil for none
	Replay    []byte // JSON: the letter from which a replay opened the dispatch; nil for a publication
	// IdempotencyKey is the key from the publisher, or empty. KeyExpires is set if no batch has remembered it. The bus
	// that takes the event in must then remember it until KeyExpires at least.
	IdempotencyKey string
	KeyExpires     time.Time
	// UntilSettled is set if IdempotencyKey is known until the event has settled, see Batch.ForgetSettled.
	UntilSettled bool
	// Expires is when the event expires: from then on no call begins. It is zero for never. ClaimExpired selects by it.
	Expires time.Time

	// The following change with each Batch.Update.

	State State     // what the dispatch waits for
	Due   time.Time // when it is due in Waiting and Scheduled, at times in Parked; otherwise zero
	Door  string    // the subscription in Parked; otherwise empty
	// Destination is the destination of Door for which the dispatch is parked; ClaimParked selects by it. It is empty for none, otherwise
	// valid UTF-8 without NUL, of at most 255 bytes. The bus sets it in Parked only. A store keeps the value of the batch in every state.
	Destination string
	// Progress is the progress of the dispatch, as JSON. It is nil before the first attempt.
	Progress []byte
	// Leased is set if the bus keeps the dispatch in memory after the batch. Otherwise the record is free. In a batch
	// with neither Update nor Delete, it is only a wish for New: the store may clear it, and the record is then free.
	// Claim sets it.
	Leased bool
	// Suspect is set while the bus suspects the dispatch of crashing the process, see Crashes. Batch.New and
	// Batch.Update set it. Only Claim clears it, and not even the end of the lease does.
	Suspect bool

	// Crashes counts the leases that had the record and ended by neither Release, Close nor Reopen. A store may leave
	// out a lease if a crash looks like a pause of the process. If such a lease had records with Suspect set, in any
	// state, exactly these count it, without a limit. Otherwise its records in Ready count it, up to SuspectCrashes; a
	// larger count stays unchanged. A record that does not count a crash is not in Stats.CrashedEvents. Batch.Update
	// replaces the count. The store ignores the field in a new record, which has 0.
	Crashes int
	// Own is ignored in a batch. Claim sets it if the record became free under the present lease of its Slot: by an
	// update, by an insert without Leased, or by a denied wish. It is false in all other results of a store.
	Own bool

	Slot Slot // the part of the data; it never changes
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
	// ClaimReady claims the records to dispatch now, in the order of Position, then Ref: all in Ready, and records in
	// Waiting or Parked with a Key and without Own, whatever their Due. Otherwise a later event of the key would
	// overtake after a restart.
	ClaimReady ClaimKind = iota
	// ClaimDue claims records without a Key in Waiting, and any in Scheduled, that are due
	// at Now, in the order of Due, then Ref.
	//
	// No kind claims a record in Waiting that has a Key and Own. Such a record is not lost: the bus keeps
	// the dispatch in memory, in the order of its key, and does not free the record. The end of the lease
	// does, and under the next lease Own is false, so that ClaimReady claims the record.
	ClaimDue
	// ClaimParked claims records in Parked at the Doors, without a Key or with Own, in the order of Position, then Ref.
	// Destinations and OtherThan select by destination. ClaimReady claims parked records with a Key and without Own, of
	// all destinations.
	ClaimParked
	// ClaimRefs claims the records of Refs, whatever their State, Key, Due and Own, in the order of Ref.
	ClaimRefs
	// ClaimExpired claims records in Ready, Waiting or Parked whose Expires is set and not after Now, in the order of
	// Expires, then Ref. Their Key, Due and Own do not matter. Records in Scheduled are due before they expire.
	ClaimExpired
)

// ClaimQuery selects free records.
type ClaimQuery struct {
	Kind  ClaimKind // which records
	Limit int       // at least 1
	Now   time.Time // for ClaimDue and ClaimExpired
	Doors []string  // for ClaimParked; distinct
	Refs  []Ref     // for ClaimRefs; distinct, at most 10,000
	Slots SlotSet   // slots of the lease; empty: all slots of the lease

	// Destinations and OtherThan select by Record.Destination, for ClaimParked. "" stands for the records without one. Each has up
	// to 10,000 distinct entries. At most one of them is set.

	Destinations []string // records with one of these; empty: all
	OtherThan    []string // records with none of these; empty: all
}

// Claimed is the result of Claim.
type Claimed struct {
	Records []*Record // the claimed records, in the order of the kind
	// More reports whether further records matched.
	More bool
	// NextDue is the earliest Due after Now of the free records that ClaimDue selects, or the earliest Expires after
	// Now for ClaimExpired. It is zero if there is none, and for other kinds.
	NextDue time.Time
}

// RecordQuery selects the records that match every field that is set.
type RecordQuery struct {
	States  []State                     // empty: all
	Type    func(eventType string) bool // nil: all
	Key     string                      // empty: all
	Targets []string                    // records with any of these targets; empty: all
	// IdempotencyKey selects records with this key; empty: all.
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
	Records []*Record // in the order of Ref
	// Next is the After of the next page. It is 0 on the last page.
	Next Ref
}
