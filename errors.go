package eventbus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/errchain"
	"github.com/surebus/eventbus/internal/route"
	"github.com/surebus/eventbus/internal/texts"
)

// Sentinel errors, for errors.Is. The typed errors below match the sentinel of their kind.
var (
	// ErrInvalidEvent is matched by every *EventError and *PayloadError: Publish rejected a part of an event.
	ErrInvalidEvent = errors.New("eventbus: invalid event")
	// ErrInvalidPayload is matched by every *PayloadError.
	ErrInvalidPayload = errors.New("eventbus: invalid payload")
	// ErrInvalidPattern is matched by every *PatternError.
	ErrInvalidPattern = errors.New("eventbus: invalid pattern")
	// ErrInvalidTopic is matched by every *TopicError.
	ErrInvalidTopic = errors.New("eventbus: invalid topic")
	// ErrInvalidOption is matched by every *OptionError.
	ErrInvalidOption = driver.ErrInvalidOption
	// ErrNilHandler is returned by Subscribe for a nil handler, or if a middleware returns nil.
	ErrNilHandler = errors.New("eventbus: nil handler")
	// ErrNilContext is returned by every method that takes a context, for a nil one.
	ErrNilContext = errors.New("eventbus: nil context; use context.Background()")
	// ErrDuplicateName is returned by Subscribe if another subscription of the bus has the name.
	ErrDuplicateName = errors.New("eventbus: duplicate subscription name")
	// ErrNotStarted is returned by PublishAndWait before Start.
	ErrNotStarted = errors.New("eventbus: bus is not started; call Start first")
	// ErrAlreadyStarted is returned by a second Start.
	ErrAlreadyStarted = errors.New("eventbus: bus is already started; call Start once")
	// ErrShutdown is returned by calls after Shutdown, and is the cause when Shutdown cancels handlers.
	ErrShutdown = errors.New("eventbus: bus is shut down")
	// ErrUninitialized is returned by the methods of a Bus that New did not make.
	ErrUninitialized = errors.New("eventbus: bus was not made with New")
	// ErrQueueFull is matched by every *FullError: a bound has no room for the event, and Publish may not wait or
	// waited too long.
	ErrQueueFull = errors.New("eventbus: queue is full; start the bus, try again later, or raise WithQueueCapacity")
	// ErrBatchTooLarge is returned by PublishBatch and Emit for more events than the queue's capacity, and by Emit for more bytes.
	ErrBatchTooLarge = errors.New("eventbus: batch is too large; publish it in parts, or raise WithQueueCapacity")
	// ErrDuplicateID is returned by Publish if another event, which differs, has the id or the idempotency key.
	ErrDuplicateID = driver.ErrDuplicateID
	// ErrWouldDeadlock is returned if a call would wait for its own caller: PublishAndWait for the handler's own event,
	// Drain in a handler, and Publish for an open transaction of the caller (PublishTx).
	ErrWouldDeadlock = errors.New("eventbus: would wait for itself")
	// ErrSettled is returned by Cancel, RetryNow and GiveUp if the event, or its delivery to OfSubscription, has
	// settled.
	ErrSettled = errors.New("eventbus: event has settled")
	// ErrNothingDone is returned by Cancel, RetryNow and GiveUp if no delivery could be acted upon. The error has the
	// reason.
	ErrNothingDone = errors.New("eventbus: nothing was done")
	// ErrHeld is returned by PublishAndWait if a delivery is held and none died: the event is accepted and handled
	// later.
	ErrHeld = errors.New("eventbus: delivery is held by its subscription; SubscriptionMetrics.ShutBy says why")
	// ErrCancelled is returned by PublishAndWait if Cancel ended the event or a delivery, and is the cause when Cancel
	// ends a call.
	ErrCancelled = errors.New("eventbus: event was cancelled")
	// ErrCircuitDisabled is returned by Trip and Reset for a subscription with NoCircuit.
	ErrCircuitDisabled = errors.New("eventbus: circuit is disabled by NoCircuit; Pause holds deliveries without one")
	// ErrNotFound is returned by methods of DLQ if the dead letter is unknown, purged, evicted or replayed.
	ErrNotFound = driver.ErrNotFound
	// ErrStoreFailed is matched by the errors of a store that has failed, until the bus has reopened it.
	ErrStoreFailed = driver.ErrFailed
	// ErrStoreClosed is returned by calls that read the store after Shutdown.
	ErrStoreClosed = driver.ErrClosed
	// ErrNotErased is matched by a purge's error if the letters are deleted and the store erases their payloads later.
	ErrNotErased = driver.ErrNotErased
	// ErrNoLease is matched by Start's error if another process has the store's lease, with WithStandby when the
	// context ends.
	ErrNoLease = driver.ErrNoLease
	// ErrLeaseLost is the cause when the bus cancels handlers because another process has the store's lease.
	ErrLeaseLost = driver.ErrLeaseLost
	// ErrNoTransaction is matched by the error of PublishTx for a transaction that the store does not accept.
	ErrNoTransaction = driver.ErrNoTransaction
	// ErrNoAnswer is returned by Pause, Cancel and the like, without the lease, if the process that has it does not
	// answer within 10 s. Nothing was done, unless that process had already begun: then it may complete the work.
	ErrNoAnswer = errors.New("eventbus: the process that has the lease of the store did not answer; look whether it runs, and try again")
	// ErrUnknownEvent is returned by Event, Cancel and the like if the bus has no dispatch and no letter of the event,
	// nor its id. Without a store, an event is also unknown while its dispatch is on its way from one place to another.
	ErrUnknownEvent = errors.New("eventbus: event is unknown: it has settled and was forgotten, or was never accepted; without a store, try again: it may be on its way")
	// ErrInvalidLetter is matched by every *ImportError, and by the error of ParseLetterID.
	ErrInvalidLetter = errors.New("eventbus: invalid dead letter")
	// ErrNoSubscription is returned by Replay, and by methods of Subscription, if the subscription does not exist.
	ErrNoSubscription = errors.New("eventbus: no such subscription")
	// ErrNameInUse is matched by every *NameInUseError.
	ErrNameInUse = errors.New("eventbus: subscription is in use")
	// ErrNoCatalog is returned by Catalog on a bus WithoutHandlers if the store has none.
	ErrNoCatalog = errors.New("eventbus: store has no catalog of subscriptions: start the bus that runs the handlers once")
	// ErrNoHandlers is returned by Subscribe and Start on a bus that was made WithoutHandlers.
	ErrNoHandlers = errors.New("eventbus: bus was made WithoutHandlers; leave the option out to run handlers")
	// ErrHandlerExited is the failure of a handler that ended its goroutine: runtime.Goexit, or FailNow of testing.
	ErrHandlerExited = errors.New("eventbus: handler exited its goroutine")
)

// EventError reports why Publish rejected an event. It matches ErrInvalidEvent.
type EventError struct {
	Field  string // the part of the event: "type", "key", "id", "time", "metadata", "payload"
	Value  string // the offending value, shortened
	Offset int    // byte offset of the offence in it
	Reason string // the problem, and a valid value
}

// Error returns the text of the error.
func (e *EventError) Error() string {
	return fmt.Sprintf("eventbus: invalid event %s %q at byte %d: %s", e.Field, e.Value, e.Offset, e.Reason)
}

// PayloadError reports why a bus with a store rejected a payload. It matches ErrInvalidPayload and ErrInvalidEvent.
type PayloadError struct {
	GoType      string // the payload's Go type
	Size, Limit int    // in bytes, if the encoded payload is too large; otherwise 0
	Err         error  // the codec's error, if it cannot encode the payload; otherwise nil
}

// Error returns the text of the error.
func (e *PayloadError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("eventbus: invalid payload of type %s: it has %d bytes when encoded, and the limit is %d; publish a reference to it, or raise WithPayloadLimit",
			e.GoType, e.Size, e.Limit)
	}
	return fmt.Sprintf("eventbus: invalid payload of type %s: it cannot be encoded: %s; publish another type, or set WithCodec",
		e.GoType, textOf(e.Err, ""))
}

// Is reports whether target is ErrInvalidPayload or ErrInvalidEvent.
func (e *PayloadError) Is(target error) bool {
	return target == ErrInvalidPayload || target == ErrInvalidEvent
}

// Unwrap returns Err.
func (e *PayloadError) Unwrap() error { return e.Err }

// IndeterminateError reports that Publish does not know whether the store has the event. During the commit the context
// ended, the store failed, or another program held its lock. Publish the event again with ID(e.ID), on the same bus:
// the bus accepts it once. After the process ends, the store knows only ids that publishers set with ID. An event that
// must not be published twice needs ID from the first call on.
//
// Directives and other operations return an IndeterminateError without an ID if a lock of another program delays them
// too long.
type IndeterminateError struct {
	ID  EventID   // the event's id; of a batch, that of the first event; zero for a directive
	IDs []EventID // of all events of a batch, in their order; nil for a single event
	Err error     // the context's error, or the store's
}

// Error returns the text of the error.
func (e *IndeterminateError) Error() string {
	if e.ID.IsZero() {
		return fmt.Sprintf("eventbus: the outcome is unknown: %v", e.Err)
	}
	return fmt.Sprintf("eventbus: event %s may have been accepted: %v; publish it again with this id", e.ID, e.Err)
}

// Unwrap returns Err.
func (e *IndeterminateError) Unwrap() error { return e.Err }

func typeError(eventType string, o *route.Offence) error {
	return &EventError{Field: "type", Value: shorten(eventType), Offset: o.Offset, Reason: o.Reason}
}

// Is reports whether target is ErrInvalidEvent.
func (e *EventError) Is(target error) bool { return target == ErrInvalidEvent }

// PatternError reports why Subscribe rejected a pattern. It matches ErrInvalidPattern.
type PatternError struct {
	Pattern string // the pattern, shortened
	Offset  int    // byte offset of the offence in it
	Reason  string // the problem, and a valid value
}

// Error returns the text of the error.
func (e *PatternError) Error() string {
	return fmt.Sprintf("eventbus: invalid pattern %q at byte %d: %s", e.Pattern, e.Offset, e.Reason)
}

func patternError(pattern string, o *route.Offence) error {
	return &PatternError{Pattern: shorten(pattern), Offset: o.Offset, Reason: o.Reason}
}

// Is reports whether target is ErrInvalidPattern.
func (e *PatternError) Is(target error) bool { return target == ErrInvalidPattern }

// BatchError reports which event of a batch PublishBatch rejected, and why.
type BatchError struct {
	Index     int    // position in the batch, from 0
	EventType string // type of the event
	Err       error  // the error that Publish would return for the event
}

// Error returns the text of the error.
func (e *BatchError) Error() string {
	return fmt.Sprintf("eventbus: event %d of the batch (%q): %v", e.Index, e.EventType, e.Err)
}

// Unwrap returns the error that Publish would have returned.
func (e *BatchError) Unwrap() error { return e.Err }

// FullError reports which bound has no room for a publication: Publish may not wait, or its context ended during the
// wait. The bus has accepted nothing. It matches ErrQueueFull, and Err.
type FullError struct {
	Bound        Bound  // which bound is reached
	Subscription string // the subscription whose line is full; "" for another bound
	Most         int64  // the limit: a number of events, deliveries, dispatches or records, depending on Bound
	// Err is why the wait ended: the context's error, with ErrStoreFailed for BoundUnconfirmed. It is nil without a
	// wait.
	Err error
}

// Bound names a bound for which Publish waits.
type Bound string

// The bounds.
const (
	BoundQueue       Bound = "queue"       // of events that wait for a worker: WithQueueCapacity
	BoundLine        Bound = "line"        // of deliveries at a subscription: LineCapacity
	BoundUnsettled   Bound = "unsettled"   // of dispatches in the store: WithMaxUnsettled
	BoundUnconfirmed Bound = "unconfirmed" // of records that the store has not confirmed: WithMaxUnconfirmed
)

// Error returns the text of the error.
func (e *FullError) Error() string {
	text := ""
	switch e.Bound {
	case BoundQueue:
		text = "queue is full: start the bus, publish again later, or raise WithQueueCapacity"
	case BoundLine:
		text = fmt.Sprintf("line of %s is full: publish again later, or raise its LineCapacity or Concurrency", e.Subscription)
	case BoundUnsettled:
		text = "store has too many unsettled dispatches: start the bus, publish again later, or raise WithMaxUnsettled"
	case BoundUnconfirmed:
		text = "store does not keep up: publish again later, or raise WithMaxUnconfirmed"
	}
	text = fmt.Sprintf("eventbus: %s (%d)", text, e.Most)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is reports whether target is ErrQueueFull.
func (e *FullError) Is(target error) bool { return target == ErrQueueFull }

// Unwrap returns Err.
func (e *FullError) Unwrap() error { return e.Err }

// OptionError reports why an option is invalid. It matches ErrInvalidOption.
type OptionError struct {
	Option string // the option's name: "Timeout", "WithConcurrency"
	Value  string // the offending value
	Reason string // the problem, and a valid value
}

// Error returns the text of the error.
func (e *OptionError) Error() string {
	return fmt.Sprintf("eventbus: invalid option %s(%s): %s", e.Option, e.Value, e.Reason)
}

// Is reports whether target is ErrInvalidOption.
func (e *OptionError) Is(target error) bool { return target == ErrInvalidOption }

// TimeoutError is the failure of a handler that exceeded its timeout. It matches
// context.DeadlineExceeded.
type TimeoutError struct {
	Subscription string        // the subscription's name
	Timeout      time.Duration // its timeout
}

// Error returns the text of the error.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("eventbus: handler of %s overran its timeout of %s", e.Subscription, e.Timeout)
}

// Is reports whether target is context.DeadlineExceeded.
func (e *TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// PanicError is the failure of a handler that panicked.
type PanicError struct {
	Value any    // the value of the panic; a *runtime.PanicNilError for panic(nil)
	Stack []byte // the goroutine's stack, as runtime/debug.Stack formats it
}

// Error returns the value as text, cut at 8 KiB, if it is a string, an error or a scalar. Otherwise it names the type
// only, because formatting the value could crash the process. For a failed type assertion on an encoded payload it
// names Typed.
func (e *PanicError) Error() string {
	text := "eventbus: handler panicked: " + panicText(e.Value)
	if _, failed := e.Value.(*runtime.TypeAssertionError); failed && encodedAsserted.MatchString(text) {
		text += "; with a store, a payload is encoded: use Typed, which decodes it"
	}
	return text
}

// encodedAsserted matches the text of a type assertion that failed on an encoded payload.
var encodedAsserted = regexp.MustCompile(` (json\.RawMessage|eventbus\.EncodedPayload)(, not| is not) `)

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// PayloadTypeError is the failure of a Typed handler whose payload cannot become its Go type. It is permanent.
type PayloadTypeError struct {
	EventType string // type of the event
	Want, Got string // the handler's Go type, and the payload's
	// Err is why an encoded payload could not be decoded. It is nil for another payload.
	Err error
}

// Error returns the text of the error.
func (e *PayloadTypeError) Error() string {
	text := fmt.Sprintf("eventbus: payload of %s is a %s, and cannot become a %s", e.EventType, e.Got, e.Want)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *PayloadTypeError) Unwrap() error { return e.Err }

// ImportError reports why DLQ.Import rejected a line. It matches ErrInvalidLetter.
type ImportError struct {
	Line   int    // 1 for the first
	Reason string // the problem, and a valid value
}

// Error returns the text of the error.
func (e *ImportError) Error() string {
	return fmt.Sprintf("eventbus: line %d is no dead letter: %s", e.Line, e.Reason)
}

// Is reports whether target is ErrInvalidLetter.
func (e *ImportError) Is(target error) bool { return target == ErrInvalidLetter }

// DeliveryError is returned by PublishAndWait if a delivery became a dead letter. errors.Is and errors.As see the last
// failures.
type DeliveryError struct {
	ID        EventID      // id of the event
	EventType string       // type of the event
	Letters   []DeadLetter // the event's dead letters, oldest first
}

// Error returns the text of the error.
func (e *DeliveryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "eventbus: event %s %s was not handled by all:", e.EventType, e.ID)
	for i := range e.Letters {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteByte(' ')
		b.WriteString(e.Letters[i].summary())
	}
	return b.String()
}

// Unwrap returns the last failure of each dead letter that has one.
func (e *DeliveryError) Unwrap() []error {
	var errs []error
	for i := range e.Letters {
		if f := e.Letters[i].Failures; len(f) > 0 {
			errs = append(errs, f[len(f)-1].Err)
		}
	}
	return errs
}

// ShutdownError is returned by Shutdown if events or handlers remain: its context ended, or events were held or
// scheduled. Events that a store keeps do not count. It matches its Cause.
type ShutdownError struct {
	// Unfinished has a dead letter for each dispatch that had not settled. The dead letter queue has them too.
	Unfinished []DeadLetter
	// Abandoned names the handlers that are still running.
	Abandoned []AbandonedHandler
	// Cause is the context's error or ErrNotStarted, joined with that of a store that did not close. It is nil if only
	// held and scheduled events were left.
	Cause error
}

// Error returns the text of the error.
func (e *ShutdownError) Error() string {
	var b strings.Builder
	why := "was cut short (" + fmt.Sprint(e.Cause) + ")"
	switch {
	case e.Cause == nil && len(e.Unfinished) == 0:
		why = "left handlers running"
	case e.Cause == nil:
		why = "left held deliveries or scheduled events"
	case e.Cause == ErrNotStarted: //nolint:errorlint // alone, not joined with the store's error
		why = "came before Start"
	}
	fmt.Fprintf(&b, "eventbus: shutdown %s: unfinished: %d, handlers still running: %d",
		why, len(e.Unfinished), len(e.Abandoned))
	running := make(map[string]int)
	for _, h := range e.Abandoned {
		running[h.Subscription]++
	}
	for _, name := range slices.Sorted(maps.Keys(running)) {
		fmt.Fprintf(&b, ", %d of %s", running[name], name)
	}
	const shown = 10
	for i := range e.Unfinished {
		if i == shown {
			b.WriteString("; and " + strconv.Itoa(len(e.Unfinished)-shown) + " more")
			break
		}
		b.WriteString("; ")
		b.WriteString(e.Unfinished[i].summary())
	}
	return b.String()
}

// Unwrap returns the cause, which may be nil.
func (e *ShutdownError) Unwrap() error { return e.Cause }

// UnconfirmedError reports changes that the store had not confirmed when Shutdown stopped waiting. The store has all or
// nothing of each change, and the next process recovers.
type UnconfirmedError struct {
	Calls      []string // methods of Store that had not returned, sorted
	Recording  int64    // dispatches with a submitted change
	Publishing int64    // publications and replays in progress
}

// Error returns the text of the error.
func (e *UnconfirmedError) Error() string {
	calls := "none"
	if len(e.Calls) > 0 {
		calls = strings.Join(e.Calls, ", ")
	}
	return fmt.Sprintf("eventbus: store does not answer: calls in progress: %s; changes of dispatches not confirmed: %d, publications: %d",
		calls, e.Recording, e.Publishing)
}

// DecodeError reports an entry of the store that the bus cannot decode: it is damaged, or another program wrote it.
// Bus.Start and calls that read the entry return the error until it is repaired or removed.
type DecodeError struct {
	What string // names the entry, such as "record of event 01940000-0000-7000-8000-000000000001" or "catalog"
	Err  error  // why it cannot be decoded
}

// Error returns the text of the error.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("eventbus: %s of the store cannot be decoded: %s", e.What, e.Err)
}

// Unwrap returns Err.
func (e *DecodeError) Unwrap() error { return e.Err }

// maxErrorText bounds the text of an error in failures and logs, in bytes.
const maxErrorText = 8 << 10

// textOf returns err.Error(), cut to maxErrorText. It survives a panic in that method. before is a
// text that is known to be valid, or "": most errors of a handler have the same text.
func textOf(err error, before string) string { return texts.OfError(err, before, maxErrorText) }

// maxPanicText leaves room in maxErrorText for the prefix of PanicError.Error and the mark of a
// cut.
const maxPanicText = maxErrorText - 128

// panicText returns the text of a panic's value if it is a string, an error or a scalar, and
// otherwise its type. Formatting another value could hang or crash: it may contain itself, change
// concurrently, or have methods that block.
func panicText(value any) string {
	for range 10 { // the handler repanicked; the error may contain itself
		if p, ok := value.(*PanicError); ok && p != nil {
			value = p.Value
		}
	}
	if _, ok := value.(*PanicError); ok {
		return fmt.Sprintf("%T", value)
	}
	return texts.OfPanic(value, maxPanicText)
}

// contextError returns why a context has ended: its error, and its cause if that differs.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil { // a context of user code may contradict itself
		err = context.Canceled
	}
	if cause == nil || errchain.Identical(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
