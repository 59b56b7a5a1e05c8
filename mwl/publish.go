package mwl

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl/internal/temporal"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// PublishURI is the URI of the provider that publishes an event, see [PublishTo].
const PublishURI = "mwl:provider.call/eventbus/publish/v1"

// The failure codes of [PublishURI].
const (
	// CodePublishInvalidEvent: the bus refuses the event, whose arguments are valid by
	// themselves; not retryable.
	CodePublishInvalidEvent = "Provider.Call.Publish.InvalidEvent"
	// CodePublishDuplicateID: an earlier event with other content has the id; not
	// retryable.
	CodePublishDuplicateID = "Provider.Call.Publish.DuplicateID"
	// CodePublishQueueFull: the bus has no room; retryable.
	CodePublishQueueFull = "Provider.Call.Publish.QueueFull"
	// CodePublishShutdown: the bus is shut down; retryable.
	CodePublishShutdown = "Provider.Call.Publish.Shutdown"
	// CodePublishStoreFailed: the bus's store does not take events; retryable.
	CodePublishStoreFailed = "Provider.Call.Publish.StoreFailed"
	// CodePublishIndeterminate: the event may have been accepted; retryable if the next
	// run has the same id, see [PublishTo]. Its details have the event's id.
	CodePublishIndeterminate = "Provider.Call.Publish.Indeterminate"
)

// CausationID is the metadata name under which an event that a definition publishes
// has the id of the event that the definition handles.
const CausationID = "causation_id"

// traceHeaders are the metadata names that a published event takes over (W3C Trace
// Context).
var traceHeaders = []string{"traceparent", "tracestate"}

// PublishTo is the catalog entry for [PublishURI], with which definitions publish
// events to the bus. The payload is the call's input. Its arguments:
//
//	type      the event's type; required
//	key       the event's key
//	metadata  names and values, both text
//	after     an ISO 8601 duration: the event is due then, as with eventbus.After
//	at        an RFC 3339 timestamp: the same, as with eventbus.At
//	id        the event's id, a UUID, as with eventbus.ID
//	idempotencyKey
//	          names the event among those that the handled event causes
//
// The Result is the event's id. The failures have the codes CodePublish….
//
// In a [Definition.Handler], the metadata has the id of the handled event as [CausationID]. It also has the traceparent
// and tracestate of that event, unless the arguments set them.
//
// In a handler, the event also has a derived id, so that another attempt or a replay does not publish it twice while
// the bus remembers the id (see eventbus.ID). The id derives from the handled event's id, the subscription, and the
// idempotencyKey. Without an idempotencyKey, it derives from the new event's type, key and payload, and the number of
// earlier events of the execution with this content. So
//   - a Retry repeats a failed call with the same id,
//   - a Retry around a Flow publishes again what its last run has published: write an
//     idempotencyKey,
//   - an event with other content, such as a payload with now(), is another event.
//     Take the time from execution.platform.event.time, or write an idempotencyKey and
//     handle CodePublishDuplicateID.
//
// Outside a handler the bus makes the id, unless the call has an id or an
// idempotencyKey, which then is that of the execution.
//
// In a handler, a call does not wait for room in a full queue. The bus must not be nil: [NewCatalog] rejects it.
func PublishTo(bus *eventbus.Bus) CatalogEntry { return publisher{bus} }

type publisher struct{ bus *eventbus.Bus }

func (p publisher) register(c *Catalog) error {
	if p.bus == nil {
		return &CatalogError{PublishURI, "PublishTo", "the bus is nil; make one with eventbus.New"}
	}
	return CallProvider{
		URI:         PublishURI,
		CodePrefix:  "Publish",
		Description: "Publishes an event whose payload is the input.",
		Parameters:  json.RawMessage(publishArguments),
		Failures: FailureCatalog{Closed: []string{
			CodePublishInvalidEvent, CodePublishDuplicateID, CodePublishQueueFull, CodePublishShutdown, CodePublishStoreFailed, CodePublishIndeterminate,
		}},
		Call: p.publish,
	}.register(c)
}

// publishArguments refuses what no bus accepts, so that a definition with such literals
// does not load. The bus is stricter about types.
const publishArguments = `{"type":"object","required":["type"],"dependentSchemas":{
	"after":{"properties":{"at":false}},
	"id":{"properties":{"idempotencyKey":false}}
},"properties":{
	"type":{"type":"string","maxLength":255,"pattern":"^[^.*?\\[\\]{}\\\\\\s]+(\\.[^.*?\\[\\]{}\\\\\\s]+)*$"},
	"key":{"type":["string","null"]},
	"metadata":{"type":["object","null"],"properties":{"causation_id":false},"additionalProperties":{"type":"string"}},
	"after":{"type":"string","format":"duration"},
	"at":{"type":"string","format":"date-time"},
	"id":{"type":"string","format":"uuid"},
	"idempotencyKey":{"type":"string","minLength":1}}}`

func (p publisher) publish(ctx context.Context, r CallRequest) (CallResponse, error) {
	eventType, _ := r.With["type"].(string)
	key, _ := r.With["key"].(string)
	delivery, handled := eventbus.FromContext(ctx)
	var cause *eventbus.Delivery
	if handled {
		cause = &delivery
	}
	options, err := eventOptions(r.With, key, cause)
	if err != nil {
		return CallResponse{}, publishFailure(err, true)
	}
	id, settle, err := eventID(ctx, r, eventType, key, cause)
	if err != nil {
		return CallResponse{}, publishFailure(err, true)
	}
	if !id.IsZero() {
		options = append(options, eventbus.ID(id))
	}
	published, err := p.bus.Publish(ctx, eventType, r.Input, options...)
	settle(err == nil)
	if err != nil {
		return CallResponse{}, publishFailure(err, !id.IsZero())
	}
	return CallResponse{Value: published.String()}, nil
}

// eventOptions are those of the arguments, except the id, and of the handled event, if
// there is one.
func eventOptions(with map[string]any, key string, cause *eventbus.Delivery) ([]eventbus.PublishOption, error) {
	var options []eventbus.PublishOption
	if key != "" {
		options = append(options, eventbus.Key(key))
	}
	metadata, _ := with["metadata"].(map[string]any)
	for name, v := range metadata {
		text, _ := v.(string)
		options = append(options, eventbus.Metadata(name, text))
	}
	if text, ok := with["after"].(string); ok {
		d, _ := temporal.ParseDuration(text) // the schema asserts the format
		options = append(options, eventbus.After(max(d, 0)))
	}
	if text, ok := with["at"].(string); ok {
		at, err := temporal.ParseInstant(text)
		if err != nil {
			return nil, &eventbus.EventError{Field: "time", Value: text, Reason: err.Error()}
		}
		options = append(options, eventbus.At(at))
	}
	if cause == nil {
		return options, nil
	}
	options = append(options, eventbus.Metadata(CausationID, cause.Event.ID.String()))
	for _, name := range traceHeaders {
		_, own := metadata[name]
		if text, ok := cause.Event.Metadata.Lookup(name); ok && !own {
			options = append(options, eventbus.Metadata(name, text))
		}
	}
	return options, nil
}

// eventID is the id of the event that a call publishes; zero if the bus makes it. The
// caller reports to settle whether the event has been published.
func eventID(ctx context.Context, r CallRequest, eventType, key string, cause *eventbus.Delivery) (id eventbus.EventID, settle func(bool), err error) {
	settle = func(bool) {}
	if text, ok := r.With["id"].(string); ok {
		id, err = eventbus.ParseEventID(text)
		return id, settle, err
	}
	scope := []string{r.ExecutionID}
	if cause != nil {
		scope = []string{cause.Event.ID.String(), cause.Subscription}
	}
	if text, ok := r.With["idempotencyKey"].(string); ok {
		return derivedID(append(scope, "key", text)...), settle, nil
	}
	p, ok := ctx.Value(publicationsKey{}).(*publications)
	if cause == nil || !ok {
		return id, settle, nil
	}
	content := digestOf(append(scope, "content", eventType, key, value.JSON(r.Input))...)
	n := p.take(content)
	return derivedID(string(content[:]), strconv.Itoa(n)), func(published bool) {
		if !published {
			p.release(content, n)
		}
	}, nil
}

// publishFailure is the failure of an error of Publish. sameID: another run has the
// same id.
func publishFailure(err error, sameID bool) *Failure {
	f := &Failure{Message: err.Error()}
	retryable := false
	var unknown *eventbus.IndeterminateError
	switch {
	case errors.As(err, &unknown):
		f.Code, retryable = CodePublishIndeterminate, sameID
		f.Details = map[string]any{"id": unknown.ID.String()}
	case errors.Is(err, eventbus.ErrInvalidEvent), errors.Is(err, eventbus.ErrInvalidPayload):
		f.Code = CodePublishInvalidEvent
	case errors.Is(err, eventbus.ErrDuplicateID):
		f.Code = CodePublishDuplicateID
	case errors.Is(err, eventbus.ErrStoreFailed): // before ErrQueueFull: the error of a wait for the store matches both
		f.Code, retryable = CodePublishStoreFailed, true
	case errors.Is(err, eventbus.ErrQueueFull):
		f.Code, retryable = CodePublishQueueFull, true
	case errors.Is(err, eventbus.ErrShutdown):
		f.Code, retryable = CodePublishShutdown, true
	default:
		return &Failure{Code: "Provider.Call.Publish.Error", Message: err.Error()}
	}
	f.Retryable = &retryable
	return f
}

// publications numbers the events of one execution that have the same content.
type publications struct {
	mu sync.Mutex
	// taken are the numbers in use, by content.
	taken map[[sha256.Size]byte][]bool
}

type publicationsKey struct{}

// publishingContext is the context of an execution, with its publications.
type publishingContext struct {
	context.Context
	publications publications
}

// Value returns the publications, or what the handler's context has.
func (c *publishingContext) Value(key any) any {
	if key == (publicationsKey{}) {
		return &c.publications
	}
	return c.Context.Value(key)
}

// take returns the lowest free number. Events with the same content are alike: it does
// not matter which of several concurrent calls gets which number.
func (p *publications) take(content [sha256.Size]byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.taken[content]
	n := slices.Index(taken, false)
	if n >= 0 {
		taken[n] = true
		return n
	}
	if p.taken == nil {
		p.taken = make(map[[sha256.Size]byte][]bool)
	}
	p.taken[content] = append(taken, true)
	return len(taken)
}

// release frees the number of an event that was not published, for the next call with
// its content.
func (p *publications) release(content [sha256.Size]byte, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[content][n] = false
}

// derivedID is the id that is made of the parts: a UUID of version 8 (RFC 9562).
func derivedID(parts ...string) eventbus.EventID {
	digest := digestOf(parts...)
	id := eventbus.EventID(digest[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id
}

func digestOf(parts ...string) (sum [sha256.Size]byte) {
	digest := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(digest, "%d %s", len(part), part) // the length separates the parts
	}
	digest.Sum(sum[:0])
	return sum
}
