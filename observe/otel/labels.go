package busotel

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/surebus/eventbus"
)

const (
	maxLabels    = 1000 // types, and pairs of a type and a subscription
	maxName      = 255  // bytes of an event type
	maxErrorText = 1 << 10
	maxErrors    = 1000 // of a tree, as for the bus
	otherLabels  = eventbus.OtherTypes
)

// operation is what a span is about.
type operation int

const (
	sends operation = iota
	emits
	processes
	settles
	operations
)

var operationNames = [operations]string{"publish", "emit", "process", "dead_letter"}

var operationTypes = [operations]attribute.KeyValue{
	semconv.MessagingOperationTypeSend, semconv.MessagingOperationTypeCreate,
	semconv.MessagingOperationTypeProcess, semconv.MessagingOperationTypeSettle,
}

var spanKinds = [operations]trace.SpanKind{trace.SpanKindProducer, trace.SpanKindProducer, trace.SpanKindConsumer, trace.SpanKindClient}

func (o operation) attributes(destination string) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(operationNames[o]), operationTypes[o],
		semconv.MessagingDestinationName(destination),
	}
}

// spanStart is the name and the options of a span.
type spanStart struct {
	name    string
	options []trace.SpanStartOption
}

func newSpanStart(o operation, destination string) spanStart {
	return spanStart{operationNames[o] + " " + destination, []trace.SpanStartOption{
		trace.WithSpanKind(spanKinds[o]), trace.WithAttributes(o.attributes(destination)...),
	}}
}

// kind is the error.type of a metric, which has few values.
type kind int

const (
	succeeded kind = iota
	timedOut
	panicked
	otherwise
	kinds
)

var kindAttributes = [kinds][]attribute.KeyValue{
	nil, {semconv.ErrorTypeKey.String("timeout")}, {semconv.ErrorTypeKey.String("panic")}, {semconv.ErrorTypeOther},
}

// measured are the attributes of a metric, by kind.
type measured [kinds][]metric.RecordOption

func newMeasured(attributes ...attribute.KeyValue) *measured {
	m := new(measured)
	for k, more := range kindAttributes {
		set := attribute.NewSet(append(attributes[:len(attributes):len(attributes)], more...)...)
		m[k] = []metric.RecordOption{metric.WithAttributeSet(set)}
	}
	return m
}

// label has what spans and metrics of an event type share.
type label struct {
	spans         [operations]spanStart
	sent, emitted *measured
	calls         atomic.Pointer[map[string]*measured] // by subscription; labels.mu guards changes
}

func newLabel(destination string) *label {
	l := &label{
		sent:    newMeasured(sends.attributes(destination)...),
		emitted: newMeasured(emits.attributes(destination)...),
	}
	for o := range operations {
		l.spans[o] = newSpanStart(o, destination)
	}
	l.calls.Store(&map[string]*measured{})
	return l
}

// labels are those of the first types, and one that the others share. Reads take no lock.
type labels struct {
	types atomic.Pointer[map[string]*label]
	other *label
	calls *measured // of the pairs beyond the first ones

	mu    sync.Mutex // guards changes
	pairs atomic.Int64
}

func newLabels() *labels {
	l := &labels{
		other: newLabel(otherLabels),
		calls: newMeasured(append(processes.attributes(otherLabels), semconv.MessagingDestinationSubscriptionName(otherLabels))...),
	}
	l.types.Store(&map[string]*label{})
	return l
}

// of returns the label of a type that a bus has accepted.
func (l *labels) of(eventType string) *label {
	known := *l.types.Load()
	if found := known[eventType]; found != nil {
		return found
	}
	if len(known) >= maxLabels {
		return l.other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known = *l.types.Load()
	if found := known[eventType]; found != nil {
		return found
	}
	if len(known) >= maxLabels {
		return l.other
	}
	more := maps.Clone(known)
	more[eventType] = newLabel(shown(eventType))
	l.types.Store(&more)
	return more[eventType]
}

// span returns how a span begins. A type that no bus has accepted gets no label.
func (l *labels) span(o operation, eventType string) *spanStart {
	if found := (*l.types.Load())[eventType]; found != nil {
		return &found.spans[o]
	}
	s := newSpanStart(o, shown(eventType))
	return &s
}

// accepted returns how a span begins, for a type that a bus has accepted.
func (l *labels) accepted(o operation, eventType string) *spanStart {
	if found := l.of(eventType); found != l.other {
		return &found.spans[o]
	}
	return l.span(o, eventType)
}

// publication returns the attributes of a publication's metrics.
func (l *labels) publication(o operation, eventType string, accepted bool, err error) []metric.RecordOption {
	of := l.other
	if accepted {
		of = l.of(eventType)
	}
	if o == emits {
		return of.emitted[kindOf(err)]
	}
	return of.sent[kindOf(err)]
}

// call returns the attributes of the metrics of a handler's call.
func (l *labels) call(eventType, subscription string, err error) []metric.RecordOption {
	of := l.of(eventType)
	found := (*of.calls.Load())[subscription]
	if found == nil {
		found = l.addCall(of, eventType, subscription)
	}
	return found[kindOf(err)]
}

func (l *labels) addCall(of *label, eventType, subscription string) *measured {
	if of == l.other || l.pairs.Load() >= maxLabels {
		return l.calls
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := *of.calls.Load()
	if found := known[subscription]; found != nil {
		return found
	}
	if l.pairs.Load() >= maxLabels {
		return l.calls
	}
	l.pairs.Add(1)
	more := maps.Clone(known)
	more[subscription] = newMeasured(append(processes.attributes(shown(eventType)), semconv.MessagingDestinationSubscriptionName(subscription))...)
	of.calls.Store(&more)
	return more[subscription]
}

// shown returns an event type, or "*" for one that a bus refuses for its length or its bytes.
func shown(eventType string) string {
	if len(eventType) > maxName || !utf8.ValidString(eventType) || strings.ContainsFunc(eventType, unicode.IsControl) {
		return otherLabels
	}
	return eventType
}

// fail sets the status of a span to an error, unless err is nil.
func fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	name, text := describe(err)
	span.SetAttributes(semconv.ErrorTypeKey.String(name))
	span.SetStatus(codes.Error, text)
}

// describe returns the type and the text of an error. Methods of the error may panic, and the text may be of any length.
func describe(err error) (name, text string) {
	defer func() {
		if recover() != nil {
			name, text = semconv.ErrorTypeOther.Value.AsString(), "a method of the error panicked"
		}
	}()
	switch {
	case kindOf(err) == timedOut:
		name = "timeout"
	case !each(err, func(error) {}):
		name = semconv.ErrorTypeOther.Value.AsString()
	default:
		for isControl(err) { // the type of the cause says more
			err = errors.Unwrap(err)
		}
		name = bounded(semconv.ErrorType(err).Value.AsString(), maxName)
	}
	return name, bounded(err.Error(), maxErrorText)
}

// bounded returns the first bytes of a text, as valid UTF-8.
func bounded(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

func kindOf(err error) (k kind) {
	if err == nil {
		return succeeded
	}
	defer func() { // a method of the error may panic
		if recover() != nil {
			k = otherwise
		}
	}()
	switch {
	case err == errExited: //nolint:errorlint // process sets this value, unwrapped
		return panicked
	case !each(err, func(error) {}):
		return otherwise
	case errors.Is(err, context.DeadlineExceeded):
		return timedOut
	}
	return otherwise
}

// The bus does not export the types of these errors.
var (
	permanentType  = reflect.TypeOf(eventbus.Permanent(errExited))
	retryAfterType = reflect.TypeOf(eventbus.RetryAfter(errExited, time.Second))
	throttleType   = reflect.TypeOf(eventbus.Throttle(errExited, time.Second))
	snoozeType     = reflect.TypeOf(eventbus.Snooze(time.Second))
)

func isControl(err error) bool {
	t := reflect.TypeOf(err)
	return t == permanentType || t == retryAfterType || t == throttleType
}

// outcomeOf returns "throttled" or "snoozed" for a result of a handler that is no failure, and "" for others.
func outcomeOf(err error) (outcome string) {
	if err == nil {
		return ""
	}
	defer func() { // a method of the error may panic
		if recover() != nil {
			outcome = ""
		}
	}()
	var permanent, throttled, snoozed bool
	each(err, func(err error) {
		t := reflect.TypeOf(err)
		permanent, throttled, snoozed = permanent || t == permanentType, throttled || t == throttleType, snoozed || t == snoozeType
	})
	switch {
	case permanent:
		return ""
	case throttled:
		return "throttled"
	case snoozed:
		return "snoozed"
	}
	return ""
}

// each visits the errors of a tree, at most maxErrors of them. It reports whether these were all: if not, the tree may have a cycle,
// in which errors.Is and errors.As do not return.
func each(err error, visit func(error)) (all bool) {
	left := maxErrors
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		if left--; left < 0 {
			return
		}
		visit(err)
		switch wraps := err.(type) { //nolint:errorlint // it walks the tree
		case interface{ Unwrap() error }:
			walk(wraps.Unwrap())
		case interface{ Unwrap() []error }:
			for _, err := range wraps.Unwrap() {
				walk(err)
			}
		}
	}
	walk(err)
	return left >= 0
}
