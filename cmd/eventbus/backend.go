package main

import (
	"context"
	"io"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// backend is what the command works on: a store file, or a running bus by its admin API. Methods that change
// something take the operator.
type backend interface {
	// Where names the backend for people.
	Where() string
	// Flag is the flag that selects the backend, for commands that are printed.
	Flag() string

	Letters(ctx context.Context, q eventbus.LetterQuery) (eventbus.LetterPage, error)
	// Letter returns a letter. Without payload, its payloads may be hidden.
	Letter(ctx context.Context, id eventbus.LetterID, payload bool) (eventbus.DeadLetter, error)
	Groups(ctx context.Context, q eventbus.LetterQuery) ([]eventbus.LetterGroup, error)
	Preview(ctx context.Context, q eventbus.LetterQuery) (eventbus.ReplayPreview, error)

	Replay(ctx context.Context, id eventbus.LetterID, o operator) error
	ReplayEdited(ctx context.Context, id eventbus.LetterID, payload []byte, o operator) error
	Purge(ctx context.Context, id eventbus.LetterID, o operator) error
	ReplayMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (eventbus.ReplayReport, error)
	PurgeMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (eventbus.PurgeReport, error)
	// Operations returns the bulk operations, newest first, and Operation one of them.
	Operations(ctx context.Context) ([]operation, error)
	Operation(ctx context.Context, id string) (operation, error)
	// CancelOperation cancels a bulk operation and waits for its end.
	CancelOperation(ctx context.Context, id string, o operator) (operation, error)
	// Export and Import call progress, unless it is nil. Over a URL, an export does not know how many letters match, and
	// an import has no progress.
	Export(ctx context.Context, w io.Writer, q eventbus.LetterQuery, progress func(eventbus.BulkProgress)) (eventbus.ExportReport, error)
	Import(ctx context.Context, r io.Reader, o operator, progress func(eventbus.BulkProgress)) (eventbus.ImportReport, error)

	Event(ctx context.Context, id eventbus.EventID) (eventbus.EventStatus, error)
	EventByIdempotencyKey(ctx context.Context, eventType, key string) (eventbus.EventStatus, error)
	Dispatches(ctx context.Context, q eventbus.DispatchQuery) (eventbus.DispatchPage, error)
	// Act carries out an action on an event. Its report may have deliveries, too, if there is an error.
	Act(ctx context.Context, id eventbus.EventID, act action, o operator) (eventbus.ActionReport, error)
	// PreviewMatching says what ActMatching would act on. ActMatching refuses a set of more events than were confirmed.
	PreviewMatching(ctx context.Context, q eventbus.DispatchQuery) (eventbus.ActionPreview, error)
	ActMatching(ctx context.Context, q eventbus.DispatchQuery, act action, o bulk) (eventbus.ActionsReport, error)

	Subscriptions(ctx context.Context) (subscriptions, error)
	Direct(ctx context.Context, name string, d directive, o operator) error
	Retire(ctx context.Context, name string, drop bool, o operator) (eventbus.RetireReport, error)

	Audit(ctx context.Context, q eventbus.AuditQuery) (eventbus.AuditPage, error)
	Explain(ctx context.Context, eventType string) (eventbus.Plan, error)
	Stats(ctx context.Context) (stats, error)

	Close(ctx context.Context) error
}

// operator is who changes something, and why.
type operator struct{ by, why string }

func (a *app) operator() operator { return operator{a.by, a.why} }

// options returns the operator as options of the Go API.
func (o operator) options() (opts []eventbus.DirectiveOption) {
	if o.by != "" {
		opts = append(opts, eventbus.By(o.by))
	}
	if o.why != "" {
		opts = append(opts, eventbus.Because(o.why))
	}
	return opts
}

// bulk has the options of a bulk operation.
type bulk struct {
	operator
	rate      float64 // letters or events a second; 0: not limited
	stopAfter int     // failures; 0: never
	expect    int     // the number of letters or events that the operator has confirmed
	progress  func(eventbus.BulkProgress)
	running   func(id string) // called once with the id of an operation that takes a while in the process of the bus; may be nil
}

// action is what an operator orders of an event that has not settled.
type action struct {
	verb         eventbus.AuditAction
	subscription string // empty for the whole event
	probe        bool   // of AuditRetryNow
}

// directive is what an operator orders of a subscription.
type directive struct {
	action      eventbus.AuditAction
	until       time.Time // of AuditHoldUntil
	destination string    // empty for the whole subscription
}

// subscriptions are what a backend knows of the subscriptions.
type subscriptions struct {
	// Live is set if they are those of a running bus, which has metrics.
	Live bool
	// Known is when they were written to the file. It is zero for a running bus, and for a file without a
	// catalog.
	Known time.Time
	// Standby is set if the bus that wrote them did not have the lease.
	Standby bool
	List    []subscription
}

// subscription is what a backend knows of one subscription. A running bus has metrics, a file has the options.
type subscription struct {
	Subscription string                        `json:"subscription"`
	Pattern      string                        `json:"pattern,omitempty"`
	DeadLetters  bool                          `json:"dead_letters,omitempty"` // see eventbus.CatalogSubscription
	Metrics      *eventbus.SubscriptionMetrics `json:"metrics,omitempty"`
	Options      *eventbus.CatalogSubscription `json:"options,omitempty"`
	Directive    *eventbus.Directive           `json:"directive,omitempty"`
	Destinations []eventbus.Directive          `json:"destinations,omitempty"` // directives to single destinations
	Parked       int64                         `json:"parked"`
	Orphan       bool                          `json:"orphan,omitempty"`  // deliveries wait, and no bus has the subscription
	KnownAt      time.Time                     `json:"known_at,omitzero"` // of Options
}

// stats are the counts of a backend.
type stats struct {
	Store   *driver.Stats     `json:"store,omitempty"`
	Metrics *eventbus.Metrics `json:"metrics,omitempty"`
	// Balanced and Imbalance are what the running bus says about its ledger.
	Balanced  *bool  `json:"balanced,omitempty"`
	Imbalance string `json:"imbalance,omitempty"`
}
