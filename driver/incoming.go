package driver

import "time"

// IncomingID identifies an incoming event in its store. Ids grow in the order of the batches of one store, and are never
// used again. Between stores, and with transactions of callers, a smaller one may become visible later.
type IncomingID int64

// Incoming is an accepted event that no bus with the lease has taken in yet. Every store may leave one without a lease.
// Unless it is a TxLock, it does so without a lock that another commit could wait for.
type Incoming struct {
	ID IncomingID // set by the store
	// Record has the fixed fields of the event, and State and Due: it is Ready, or Scheduled. Its Targets lists the
	// subscriptions of the publisher, and may be empty. A store keeps no other field of it.
	Record *Record
	// Given is set if the bus that takes the event in must remember its id: no batch has remembered it.
	Given bool
	// Codec names the codec of the payload.
	Codec string
}

// IncomingQuery selects incoming events, in the order of ID.
type IncomingQuery struct {
	Slots SlotSet    // of Record.Slot; empty: all
	Event ID         // zero: all
	After IncomingID // selects larger ones
	Limit int        // at least 1
}

// IncomingPage is a page of incoming events.
type IncomingPage struct {
	Events []*Incoming // in the order of ID
	More   bool        // larger ids match
}

// RequestID identifies a request in its store. Ids grow, and are never used again.
type RequestID int64

// Request is a request of a bus without the lease to the bus that has it. That bus answers in the batch that carries
// the request out, so it is carried out once or not at all.
type Request struct {
	ID   RequestID // set by the store
	Body []byte    // JSON, never nil
}

// Answer is the answer to a request.
type Answer struct {
	Request RequestID // the id of the request
	Body    []byte    // JSON, never nil
}

// AnswerAge is how long a store keeps an answer at least, by Batch.Aged. Then it may remove the answer with its request.
const AnswerAge = time.Hour

// RequestQuery selects requests without an answer, in the order of ID.
type RequestQuery struct {
	After RequestID // selects larger ones
	Limit int       // at least 1
}

// Catalog is what one bus has recorded of its subscriptions, for other processes.
type Catalog struct {
	// Instance identifies the bus.
	Instance string
	// Number orders the instances by the first batch with their catalog. The store assigns it.
	Number int64
	// Seen is Batch.Now of the last batch with the catalog.
	Seen time.Time
	// Body is nil to remove the catalog. The bus writes JSON, but a store keeps any bytes.
	Body []byte
}
