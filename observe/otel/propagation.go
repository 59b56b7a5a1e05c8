package busotel

import (
	"context"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/surebus/eventbus"
)

// Names of metadata, as the W3C has them.
const (
	traceparent   = "traceparent"
	tracestate    = "tracestate"
	baggageHeader = "baggage"

	maxValue = 8 << 10 // of metadata, and of baggage by the W3C
)

// outgoing is metadata that the propagators write. It drops values that an event cannot have.
type outgoing map[string]string

func (c outgoing) Set(name, value string) {
	if len(value) <= maxValue && utf8.ValidString(value) && !strings.ContainsFunc(value, unicode.IsControl) {
		c[name] = value
	}
}

func (outgoing) Get(string) string { return "" }

func (outgoing) Keys() []string { return nil }

// inject returns the trace context and the baggage of ctx as metadata. Those that the event was given stay as they are. A
// tracestate belongs to its traceparent, so one that was given keeps both.
func inject(ctx context.Context, given eventbus.EventMetadata) map[string]string {
	traced, bags := trace.SpanContextFromContext(ctx).IsValid(), baggage.FromContext(ctx).Len() > 0
	if !traced && !bags {
		return nil
	}
	for name := range given.All() {
		traced, bags = traced && name != traceparent && name != tracestate, bags && name != baggageHeader
	}
	c := make(outgoing, 3)
	if traced {
		propagation.TraceContext{}.Inject(ctx, c)
	}
	if bags {
		propagation.Baggage{}.Inject(ctx, c)
	}
	return c
}

// incoming reads metadata.
type incoming struct{ eventbus.EventMetadata }

func (incoming) Set(string, string) {}

func (incoming) Keys() []string { return nil }

// producerOf returns the span that metadata names, or an invalid one.
func producerOf(m eventbus.EventMetadata) trace.Span {
	return trace.SpanFromContext(propagation.TraceContext{}.Extract(context.Background(), incoming{m})) // a handler's context may have another one
}

// extract returns a context with the trace context and the baggage of metadata, and the span that it names. It ignores values that
// it cannot parse: the metadata may be from another program.
func extract(ctx context.Context, m eventbus.EventMetadata) (context.Context, trace.SpanContext) {
	if m.IsZero() {
		return ctx, trace.SpanContext{}
	}
	span := producerOf(m)
	producer := span.SpanContext()
	if producer.IsValid() {
		ctx = trace.ContextWithSpan(ctx, span)
	}
	// The propagator would pass errors to otel.Handle.
	if text := m.Get(baggageHeader); text != "" {
		if bag, _ := baggage.Parse(text); bag.Len() > 0 {
			ctx = baggage.ContextWithBaggage(ctx, bag)
		}
	}
	return ctx, producer
}

// recollection has the spans of the last calls that failed, until the next call for their delivery. It is bounded.
type recollection struct {
	mu    sync.Mutex // guards the following
	spans map[delivery]rememberedSpan
	ring  []rememberedKey
	next  int
	count uint64
}

type delivery struct {
	event        eventbus.EventID
	subscription string
}

type rememberedSpan struct {
	trace.SpanContext
	number uint64
}

type rememberedKey struct {
	delivery
	number uint64 // of the span; another one of the delivery is not evicted
}

func newRecollection(most int) *recollection {
	return &recollection{spans: make(map[delivery]rememberedSpan), ring: make([]rememberedKey, 0, most)}
}

// add remembers the span of a failed call.
func (r *recollection) add(d eventbus.Delivery, span trace.SpanContext) {
	if !span.IsValid() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	key := rememberedKey{delivery{d.Event.ID, d.Subscription}, r.count}
	if len(r.ring) < cap(r.ring) {
		r.ring = append(r.ring, key)
	} else {
		if oldest := r.ring[r.next]; r.spans[oldest.delivery].number == oldest.number {
			delete(r.spans, oldest.delivery)
		}
		r.ring[r.next] = key
		r.next = (r.next + 1) % len(r.ring)
	}
	r.spans[key.delivery] = rememberedSpan{span, r.count}
}

// take returns the span of the failed call that a call repeats, and forgets it. It returns an invalid one for a first call.
func (r *recollection) take(d eventbus.Delivery) trace.SpanContext {
	if d.Attempt == 1 && d.Replays == 0 {
		return trace.SpanContext{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := delivery{d.Event.ID, d.Subscription}
	found := r.spans[key]
	delete(r.spans, key)
	return found.SpanContext
}

// get returns the span of the last call that failed.
func (r *recollection) get(event eventbus.EventID, subscription string) trace.SpanContext {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spans[delivery{event, subscription}].SpanContext
}
