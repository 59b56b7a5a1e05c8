package eventbus

import (
	"log/slog"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/slogcore"
	"github.com/surebus/eventbus/internal/stderr"
)

// WithLogger sets the bus's logger. Without it and WithSlog, warnings and errors go to os.Stderr, each
// message at most 100 times a second. The bus never waits for os.Stderr: entries for which its buffer has no
// room are left out, and one entry has their number. WithLogger(zap.NewNop()) makes a silent bus.
//
// Every failed attempt is a warn entry, and every dead letter an error entry. A logger that samples, as
// zap.NewProductionConfig's does, drops repeated entries: set its Sampling to nil to see them all. The
// bus's goroutines call its core: a core that blocks delays a worker, and one that panics ends the program.
func WithLogger(l *zap.Logger) Option {
	return option(func(c *config) {
		c.refuseIf(l == nil, "WithLogger", "nil", "leave the option out to log warnings to stderr, or use zap.NewNop() for a silent bus")
		c.logger = l
	})
}

// WithSlog sets the bus's log to a handler of log/slog, such as slog.Default().Handler(). It receives entries of all levels that it
// has enabled, and the attribute "logger" has the name of the bus's logger.
//
// The bus never waits for the handler, which runs on a goroutine of its own, with one entry at a time, and under no
// lock. Up to 1,000 entries wait for it. Further entries are dropped, and one entry has their number. Shutdown, and
// Bus.Logger().Sync, wait up to 100 ms until it has had all. If it panics or returns an error, the bus writes the entry
// to os.Stderr, with the reason.
//
// Errors of New: an *OptionError for nil, and together with WithLogger.
func WithSlog(h slog.Handler) Option {
	return option(func(c *config) {
		c.refuseIf(h == nil, "WithSlog", "nil", "leave the option out to log warnings to stderr, or use slog.DiscardHandler for a silent bus")
		c.slog = h
	})
}

// Logger returns the logger of the bus, for what belongs to the bus and is not part of it. It
// never returns nil.
func (b *Bus) Logger() *zap.Logger {
	if !b.usable() {
		return zap.NewNop()
	}
	return b.log
}

// chooseLog makes the logger that the options leave to choose.
func (c *config) chooseLog() error {
	c.flushLog = func() {}
	switch {
	case c.logger != nil && c.slog != nil:
		return &OptionError{Option: "WithSlog", Reason: "and WithLogger exclude each other: the bus has one log; leave one of them out"}
	case c.logger == nil:
		file, core := stderr.New(os.Stderr)
		var handler *slogcore.Log // nil without WithSlog
		if c.slog != nil {
			handler, core = slogcore.New(c.slog, core)
		}
		c.logger = zap.New(core)
		c.flushLog = func() {
			handler.Flush(slogcore.FlushTime)
			file.Flush(stderr.FlushTime)
		}
	}
	return nil
}

// WithObserver adds an observer, which the bus keeps. The bus calls several in the order of the options.
// Bus.Observe adds one that can be removed.
func WithObserver(o Observer) Option {
	return option(func(c *config) { c.observers = append(c.observers, o) })
}

// Observer has functions that the bus calls at the events below. A nil function costs nothing.
//
// Each call runs on a goroutine of its own, under no lock of the bus. The caller waits until the
// function has returned: Publish, Replay, or the worker that owns the dispatch. Functions must be
// quick. They may be called concurrently. A panic is logged. It does no harm, and neither does
// runtime.Goexit. After Shutdown's context has ended, the bus waits up to 100 ms for a function.
// Once a function exceeds that, the bus waits for none.
//
// The functions may use the bus. Publish in a function counts as a call from outside, even if a
// handler caused it. If the queue is full, it waits for the workers, and one of them may wait for
// the function. PublishAndWait and Shutdown would wait for themselves: call them on another
// goroutine, or with a context that ends.
//
// The calls of one dispatch come in the order of events: AttemptBegun, AttemptEnded, then
// RetryScheduled and the next AttemptBegun, or DeadLettered. Calls of different dispatches have no
// order. After Shutdown's context has ended, no calls have one.
type Observer struct {
	// Accepted is called by Publish, PublishAndWait and PublishBatch, before they return, with each
	// event that they accept. The handlers may have begun before, so Accepted may come after any call
	// but Unrouted. Replays do not call it.
	Accepted func(Event)
	// Unrouted is called by the same methods, after Accepted, with each event that matches no
	// subscription.
	Unrouted func(Event)

	// AttemptBegun is called before the first handler of an attempt. A dispatch that only skips
	// subscriptions makes no attempt.
	AttemptBegun func(Attempt)
	// AttemptEnded is called once for each AttemptBegun, after the outcome was recorded and before PublishAndWait
	// returns. An attempt ends with its last handler, a failure, an Unsubscribe, an open circuit, or the end of
	// Shutdown's context. An abandoned handler may still run.
	AttemptEnded func(EndedAttempt)
	// RetryScheduled is called after an AttemptEnded with the outcome Waiting. The retry is not
	// made if Shutdown's context ends before.
	RetryScheduled func(ScheduledRetry)

	// DeadLettered is called with each dead letter once the dead letter queue has it. This is after the AttemptEnded of
	// a failed attempt, and before the AttemptEnded of an attempt that only skipped a subscription.
	DeadLettered func(DeadLetter)
	// LetterEvicted is called with each dead letter that the full queue has evicted, by the
	// goroutine that added the next letter. With many workers it may come before the DeadLettered
	// of the same letter.
	LetterEvicted func(DeadLetter)
	// Replayed is called by Replay and ReplayMatching, before they return, with each letter that
	// they took. The handlers may have begun before.
	Replayed func(DeadLetter)

	// CircuitChanged is called after the state of a subscription's circuit has changed, on the
	// worker whose delivery changed it. If a call takes longer than the circuit's OpenFor, the next
	// call may overlap it.
	CircuitChanged func(CircuitChange)
	// SlowHandler is called once for each call of a handler that runs for a third of its timeout.
	// If a third is less than a millisecond, it may not be called. Only Shutdown waits for it:
	// neither the handler nor other deadlines are delayed, and the handler may have ended when it
	// is called.
	SlowHandler func(SlowHandler)
}

// Attempt is one pass of a dispatch over its subscriptions, from the next one to the first failure.
type Attempt struct {
	// ID is unique on the bus. An AttemptBegun and its AttemptEnded have the same one.
	ID      uint64    `json:"attempt_id"`
	Event   Event     `json:"event"`             // the event of the dispatch
	Number  int       `json:"number"`            // the number of the attempt, from 1
	Replays int       `json:"replays,omitempty"` // how often the event was replayed from dead letters
	BeganAt time.Time `json:"began_at"`          // when the attempt began, in UTC
}

// EndedAttempt is an attempt and its outcome.
type EndedAttempt struct {
	Attempt
	Duration time.Duration `json:"duration"` // the time since BeganAt, with the time of observers
	// Outcome is the state of the dispatch: Waiting for its next attempt, or how it ended. A
	// Handled dispatch may have skipped subscriptions.
	Outcome Outcome `json:"outcome"`
	// Reason is why the dispatch was dead-lettered, with the outcome DeadLettered.
	Reason Reason `json:"reason,omitempty"`
	// Failure is the failure that ended the attempt. It is nil if no handler failed, or if Shutdown
	// stopped the handler.
	Failure *Failure `json:"failure,omitempty"`
}

// ScheduledRetry is a failed attempt and when the next one is due.
type ScheduledRetry struct {
	Event   Event `json:"event"`             // the event of the dispatch
	Replays int   `json:"replays,omitempty"` // how often the event was replayed from dead letters
	// Failure is the failure that ended the attempt.
	Failure Failure       `json:"failure"`
	Delay   time.Duration `json:"delay"` // the delay before the next attempt; 0 for at once
	Due     time.Time     `json:"due"`   // when the next attempt is due, in UTC
}

// CircuitChange is a change of the state of a subscription's circuit.
type CircuitChange struct {
	Subscription string       `json:"subscription"`          // the subscription's name, or its pattern and number
	Destination  string       `json:"destination,omitempty"` // the destination, with PerDestination; otherwise ""
	From         CircuitState `json:"from"`                  // the state before
	To           CircuitState `json:"to"`                    // the state after
	At           time.Time    `json:"at"`                    // when the bus observed the change, in UTC
}

// SlowHandler is a running call of a handler that has used a third of its timeout.
type SlowHandler struct {
	Subscription string        `json:"subscription"`      // the subscription's name, or its pattern and number
	MadeAt       string        `json:"made_at"`           // where Subscribe was called: "/src/shop/mail.go:17"
	Event        Event         `json:"event"`             // the event that the handler received
	Attempt      int           `json:"attempt"`           // the number of the attempt, from 1
	Replays      int           `json:"replays,omitempty"` // how often the event was replayed from dead letters
	Timeout      time.Duration `json:"timeout"`           // the subscription's timeout
	Elapsed      time.Duration `json:"elapsed"`           // the time since the handler began
}

// Observe adds an observer to a bus that may be running. remove removes it. The bus calls several observers in the
// order in which they were added, one after the other. A removed observer costs nothing.
//
// Events that are published after Observe has returned are reported. After remove has returned, the bus begins no call
// of the observer. Neither waits for calls in progress, so do not close a channel that the observer sends to after
// remove. AttemptEnded is called only for attempts that began after Observe. A second remove does nothing. Both may be
// called from the observer's functions and from handlers.
//
// On a bus that New did not make, Observe does nothing.
func (b *Bus) Observe(o Observer) (remove func()) {
	if !b.usable() {
		return func() {}
	}
	return b.report.add(o)
}
