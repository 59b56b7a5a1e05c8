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
	// ErrInvalidEvent is matched by every *EventError: Publish rejected a type, a metadata name or
	// another part of an event.
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
	// ErrNilContext is returned by every method for a nil context.
	ErrNilContext = errors.New("eventbus: nil context; use context.Background()")
	// ErrDuplicateName is returned by Subscribe if another subscription of the bus has the name.
	ErrDuplicateName = errors.New("eventbus: duplicate subscription name")
	// ErrNotStarted is returned by PublishAndWait before Start.
	ErrNotStarted = errors.New("eventbus: bus is not started; call Start first")
	// ErrAlreadyStarted is returned by a second Start.
	ErrAlreadyStarted = errors.New("eventbus: bus is already started; call Start once")
	// ErrShutdown is returned by calls after Shutdown. It is also the cause of the cancellation of
	// handlers that are interrupted when Shutdown's context ends.
	ErrShutdown = errors.New("eventbus: bus is shut down")
	// ErrUninitialized is returned by the methods of a Bus that New did not make.
	ErrUninitialized = errors.New("eventbus: bus was not made with New")
	// ErrQueueFull is matched by every *FullError: a bound has no room for the event, and the bus rejects events
	// (RefuseWhenFull), has not been started, or the context of Publish ended while it waited.
	ErrQueueFull = errors.New("eventbus: queue is full; start the bus, try again later, or raise WithQueueCapacity")
	// ErrBatchTooLarge is returned by PublishBatch and Emit for more events than the queue's capacity, and by Emit for more bytes.
	ErrBatchTooLarge = errors.New("eventbus: batch is too large; publish it in parts, or raise WithQueueCapacity")
	// ErrDuplicateID is returned by Publish if an earlier event that differs has the id, or the idempotency key.
	ErrDuplicateID = driver.ErrDuplicateID
	// ErrWouldDeadlock is returned by PublishAndWait in a handler if the event would wait, in its
	// key's order, for the handler's own event, by Drain in a handler, and by Publish if the store would wait for a
	// transaction of PublishTx that the caller has open.
	ErrWouldDeadlock = errors.New("eventbus: would wait for itself")
	// ErrSettled is returned by Cancel, RetryNow and GiveUp if nothing of the event is left, or nothing for the subscription that
	// OfSubscription names. Event says what became of it.
	ErrSettled = errors.New("eventbus: event has settled")
	// ErrNothingDone is returned by Cancel, RetryNow and GiveUp if they have left what there is of the event. The error and the report
	// say why.
	ErrNothingDone = errors.New("eventbus: nothing was done")
	// ErrHeld is returned by PublishAndWait if nothing died and a subscription holds its delivery: the event
	// is accepted, and handled later.
	ErrHeld = errors.New("eventbus: delivery is held by its subscription; SubscriptionMetrics.ShutBy says why")
	// ErrCancelled is returned by PublishAndWait for an event that was cancelled, or of which a delivery was. It is also the cause of the
	// cancellation of a handler whose event was.
	ErrCancelled = errors.New("eventbus: event was cancelled")
	// ErrCircuitDisabled is returned by Trip and Reset for a subscription with NoCircuit.
	ErrCircuitDisabled = errors.New("eventbus: circuit is disabled by NoCircuit; Pause holds deliveries without one")
	// ErrNotFound is returned if the dead letter is unknown, purged, evicted or replayed.
	ErrNotFound = driver.ErrNotFound
	// ErrStoreFailed is matched by the errors of a store that has failed and was not reopened.
	ErrStoreFailed = driver.ErrFailed
	// ErrStoreClosed is returned by a store after Shutdown.
	ErrStoreClosed = driver.ErrClosed
	// ErrNotErased is matched by the error of a purge whose letters are deleted, and whose payloads are
	// still in the storage for a while: see the store.
	ErrNotErased = driver.ErrNotErased
	// ErrNoLease is matched by the error of Start if another process has the lease of the store: soon, or with WithStandby
	// when the context of Start ends.
	ErrNoLease = driver.ErrNoLease
	// ErrLeaseLost is the cause of the cancellation of handlers when another process has taken the lease of the store.
	ErrLeaseLost = driver.ErrLeaseLost
	// ErrNoTransaction is matched by the error of PublishTx for a transaction that the store does not take. The error names
	// the types that it takes.
	ErrNoTransaction = driver.ErrNoTransaction
	// ErrNoAnswer is returned by what a bus without the lease asks of the one that has it, such as Pause and Cancel,
	// if that process does not answer. Nothing was done.
	ErrNoAnswer = errors.New("eventbus: the process that has the lease of the store did not answer; look whether it runs, and try again")
	// ErrUnknownEvent is returned by Event and EventByIdempotencyKey if the bus has no dispatch and no dead letter of the event,
	// and does not remember its id.
	ErrUnknownEvent = errors.New("eventbus: event is unknown: it has settled and was forgotten, or was never accepted")
	// ErrInvalidLetter is matched by every *ImportError, and by the error of ParseLetterID.
	ErrInvalidLetter = errors.New("eventbus: invalid dead letter")
	// ErrNoSubscription is returned by Replay if a subscription of the letter does not exist (the letter
	// stays), and by the methods of a subscription that does not.
	ErrNoSubscription = errors.New("eventbus: no such subscription")
	// ErrNameInUse is matched by every *NameInUseError.
	ErrNameInUse = errors.New("eventbus: subscription is in use")
	// ErrNoCatalog is returned by Catalog on a bus WithoutHandlers if the store has none.
	ErrNoCatalog = errors.New("eventbus: store has no catalog of subscriptions: start the bus that runs the handlers once")
	// ErrNoHandlers is returned by Subscribe and Start on a bus that was made WithoutHandlers.
	ErrNoHandlers = errors.New("eventbus: bus was made WithoutHandlers; leave the option out to run handlers")
	// ErrHandlerExited is the failure of a handler that ended its goroutine with runtime.Goexit, as
	// testing's FailNow does.
	ErrHandlerExited = errors.New("eventbus: handler exited its goroutine")
)

// EventError reports why Publish rejected an event. It matches ErrInvalidEvent.
type EventError struct {
	Field  string // the part of the event: "type", "key", "id", "time", "metadata", "payload"
	Value  string // the offending value, shortened
	Offset int    // byte offset of the offence in it
	Reason string // what is wrong, and what would be right
}

func (e *EventError) Error() string {
	return fmt.Sprintf("eventbus: invalid event %s %q at byte %d: %s", e.Field, e.Value, e.Offset, e.Reason)
}

// PayloadError reports why a bus with a store rejected a payload. It matches ErrInvalidPayload and
// ErrInvalidEvent.
type PayloadError struct {
	GoType      string // of the payload
	Size, Limit int    // in bytes, if the encoded payload is too large
	Err         error  // the codec's error, if the payload cannot be encoded
}

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

// IndeterminateError reports that Publish does not know whether the store has the event: the
// context ended, the store failed, or another program held its lock, during the commit. Publish it again with ID(e.ID), on the same
// bus: it accepts the event once. After the end of the process, the store knows only the ids that
// publishers gave with ID. So an event that must not be published twice needs ID from the beginning.
//
// A directive, or another operation, that a lock of another program delays for too long returns one without an ID.
type IndeterminateError struct {
	ID  EventID   // of the event; of a batch's first event
	IDs []EventID // of all events of a batch, in their order; nil for a single event
	Err error     // the context's error, or the store's
}

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
	Reason  string // what is wrong, and what would be right
}

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
	Index     int // in the batch, from 0
	EventType string
	Err       error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("eventbus: event %d of the batch (%q): %v", e.Index, e.EventType, e.Err)
}

// Unwrap returns the error that Publish would have returned.
func (e *BatchError) Unwrap() error { return e.Err }

// FullError reports which bound has no room for a publication, if Publish may not wait, or its context ended while it waited.
// The bus has accepted nothing. It matches ErrQueueFull, and Err.
type FullError struct {
	Bound        Bound
	Subscription string // the subscription whose line is full; "" for another bound
	Most         int64  // the bound: events, deliveries, dispatches or records, see Bound
	// Err is why the wait ended: the context's error, for BoundUnconfirmed together with ErrStoreFailed. It is nil if
	// Publish did not wait.
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
	Reason string // what is wrong, and what would be right
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("eventbus: invalid option %s(%s): %s", e.Option, e.Value, e.Reason)
}

// Is reports whether target is ErrInvalidOption.
func (e *OptionError) Is(target error) bool { return target == ErrInvalidOption }

// TimeoutError is the failure of a handler that exceeded its timeout. It matches
// context.DeadlineExceeded.
type TimeoutError struct {
	Subscription string
	Timeout      time.Duration
}

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

// Error contains the value as text, at most 8 KiB of it, if it is a string, an error or a scalar.
// Otherwise it contains the type, because formatting the value could crash the process. For a failed type assertion on an
// encoded payload it names Typed.
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

// PayloadTypeError is the failure of a typed handler whose event's payload cannot become its type.
// It is permanent.
type PayloadTypeError struct {
	EventType string
	Want, Got string // Go types
	// Err is why a json.RawMessage could not be decoded; nil for another payload.
	Err error
}

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
	Reason string // what is wrong, and what would be right
}

func (e *ImportError) Error() string {
	return fmt.Sprintf("eventbus: line %d is no dead letter: %s", e.Line, e.Reason)
}

// Is reports whether target is ErrInvalidLetter.
func (e *ImportError) Is(target error) bool { return target == ErrInvalidLetter }

// DeliveryError is returned by PublishAndWait when an event was not handled by every subscription.
// errors.Is and errors.As see the last failures.
type DeliveryError struct {
	ID        EventID
	EventType string
	Letters   []DeadLetter // the event's dead letters, oldest first
}

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

// ShutdownError is returned by Shutdown if events or handlers remain: its context ended, or events
// were held or scheduled. Events that a store keeps do not count. It matches its cause.
type ShutdownError struct {
	// Unfinished has a dead letter for each dispatch that had not settled. The dead letter queue
	// has them too.
	Unfinished []DeadLetter
	// Abandoned names the handlers that are still running.
	Abandoned []AbandonedHandler
	// Cause is the context's error or ErrNotStarted, joined with the error of a store that did not
	// close. It is nil if everything ended but held and scheduled events.
	Cause error
}

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

// UnconfirmedError reports what a store had not confirmed when Shutdown gave up on it. The next
// process recovers: of each change, the store has all or nothing.
type UnconfirmedError struct {
	Calls      []string // methods of Store that had not returned, sorted
	Recording  int64    // dispatches with a submitted change
	Publishing int64    // publications and replays in progress
}

func (e *UnconfirmedError) Error() string {
	calls := "none"
	if len(e.Calls) > 0 {
		calls = strings.Join(e.Calls, ", ")
	}
	return fmt.Sprintf("eventbus: store does not answer: calls in progress: %s; changes of dispatches not confirmed: %d, publications: %d",
		calls, e.Recording, e.Publishing)
}

// DecodeError reports that the bus cannot read something of its store: it is damaged, or another program has written
// it. Bus.Start and calls that read it return the error until it is repaired or removed.
type DecodeError struct {
	What string // such as "record of event 01940000-0000-7000-8000-000000000001" or "catalog"
	Err  error  // why
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("eventbus: %s of the store cannot be decoded: %s", e.What, e.Err)
}

// Unwrap returns why.
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
