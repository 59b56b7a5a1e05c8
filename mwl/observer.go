package mwl

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// Observer has functions that an execution calls when its parts begin and end. A nil
// function is not called. An execution with an observer makes spans whichever functions
// are set; one without an observer makes none.
//
// Executions, and the dispatches of a Gather, run on several goroutines, so the functions may be called concurrently.
// Within an execution a span begins after its parent's SpanBegun has returned, and it ends before its parent's
// SpanEnded is called. Each SpanBegun is followed by one SpanEnded, before Execute returns.
//
// Each call runs on a goroutine of its own, under no lock, and the execution waits until
// it has returned: the functions must be quick. A panic or runtime.Goexit of a function
// is logged and changes nothing else.
//
// The context of the calls has the values of Execute's context, and is never done. In a
// handler of the event bus, eventbus.FromContext finds the event and the attempt there.
type Observer struct {
	// SpanBegun is called when a span begins.
	SpanBegun func(context.Context, Span)
	// SpanEnded is called when a span has ended.
	SpanEnded func(context.Context, EndedSpan)
	// ValueBytes is the number of bytes that SpanEnded receives of each input, each
	// output, all arguments and each message. Zero or less is none: payloads may be
	// secret, and messages may quote them. It does not hide the types and the codes of
	// failures: a definition that computes them from data shows that data. No limit counts
	// the time for the values: it grows with the number of members of large objects.
	ValueBytes int
	// Logger receives an error when a function panics, once per execution. Nil is
	// [slog.Default].
	Logger *slog.Logger
}

// SpanKind is the kind of a part of an execution.
type SpanKind string

// The kinds of spans.
const (
	// SpanFlow is one run of a Flow. The span of the root Flow is the whole execution, and has the outcome of the
	// Result.
	SpanFlow SpanKind = "flow"
	// SpanStep is one pass of a Step. A Sleep is a Step.
	SpanStep SpanKind = "step"
	// SpanCall is one dispatch of a call object: of a Call, of a Gather, or of the
	// cleanup of a Finally. Arms are part of it, except in a Gather, where they run
	// after all dispatches. A dispatch that a Gather skips is no span.
	SpanCall SpanKind = "call"
	// SpanMiddleware is a middleware entry around a Step's call or a Flow, with all that
	// it wraps.
	SpanMiddleware SpanKind = "middleware"
	// SpanPhase is one run of a middleware's phase. A phase that has neither an action
	// nor a block is no span.
	SpanPhase SpanKind = "phase"
	// SpanWait is the wait before a middleware runs its scope again, even if the delay
	// is zero.
	SpanWait SpanKind = "wait"
)

// Span is a part of an execution: when it began, and where it is in the definition.
// Spans form a tree. With span_id, parent_id, start, end and outcome it maps to the
// spans of OpenTelemetry, as the example of [Trace.Spans] shows.
type Span struct {
	// ExecutionID is execution.id.
	ExecutionID string `json:"execution_id"`
	// ID is unique in the execution: 1 for the root Flow, and then the order of begin.
	ID uint64 `json:"span_id"`
	// ParentID is the ID of the span around; 0 for the root Flow, which has none.
	ParentID uint64   `json:"parent_id,omitempty"`
	Kind     SpanKind `json:"kind"` // what the span represents
	// Name is the name of a Flow, a Step or a phase (such as onEntry), the URI of a middleware, or the target of a
	// call: the URI of a provider or the name of a Flow. The root Flow, inline Flows and waits have none.
	Name string `json:"name,omitempty"`
	// Action is the action of a Step, such as Call.
	Action string `json:"action,omitempty"`
	// Pointer is the JSON pointer (RFC 6901) of the part in the definition; "" is the root Flow. A phase without a
	// block has the pointer of its middleware entry.
	Pointer string `json:"pointer"`
	// StepID is step.id of a Step, which providers see as [CallRequest.StepID].
	StepID string `json:"step_id,omitempty"`
	// Index is the place of a call in its Gather, from 0; nil elsewhere.
	Index *int `json:"index,omitempty"`
	// Run is the run of a middleware's scope, from 1, on the spans directly in the middleware: the attempt of a Retry,
	// or the iteration of a Loop. A phase and a wait have the run that they follow. It is 0 at onEntry and on spans
	// elsewhere.
	Run int `json:"run,omitempty"`
	// Start is when the span began, in UTC, by the clock of [WithClock].
	Start time.Time `json:"start"`
}

// EndedSpan is a span and its outcome.
type EndedSpan struct {
	Span
	// End is when the span ended. It is zero in a [Trace] while the span runs.
	End time.Time `json:"end,omitzero"`
	// Outcome is [TypeSuccess] or the type of the failure. The outcome of a phase is its own, and not that of the
	// Result that rises through it. A Step whose failure a catch clause matched has the failure as its outcome, and a
	// Next. It is cut after 128 bytes, and then ends in "…".
	Outcome string `json:"outcome,omitempty"`
	// Code is the code of the failure, cut like Outcome; "" after success.
	Code string `json:"code,omitempty"`
	// Interrupted is true if a Timeout, a Gather or the end of the execution's context
	// stopped the span from outside.
	Interrupted bool `json:"interrupted,omitempty"`
	// Next is the Step that follows a Step; "" if the Flow ended with it.
	Next string `json:"next,omitempty"`
	// Input, Arguments and Output are the input of the span, its evaluated with, and its value, as JSON. The input of a
	// call is the input of its target. Message is the message of the failure. Each is cut after [Observer.ValueBytes]
	// bytes, and then ends in "…". Each is "" if there is none.
	Input     string `json:"input,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	Output    string `json:"output,omitempty"`
	Message   string `json:"message,omitempty"`
}

// WithObserver reports the execution to the observer. Several observers are called in the order of the options, after
// the observers of [Definition.WithObserver].
func WithObserver(o Observer) ExecuteOption {
	return func(r *request) { r.observers = append(r.observers, o) }
}

// WithObserver returns a copy of the definition that also reports all its executions to the observer.
func (d *Definition) WithObserver(o Observer) *Definition {
	observed := *d
	observed.settings.observers = append(slices.Clip(observed.settings.observers), o)
	return &observed
}

// watch reports one execution to its observers.
type watch struct {
	x         *execution
	ctx       context.Context
	observers []*observing
	spans     atomic.Uint64
}

// observing is an observer of one execution.
type observing struct {
	Observer
	failed atomic.Bool
}

// watched is nil if there is no observer, so that nothing else has to be checked.
func (x *execution) watched(ctx context.Context, observers ...Observer) *watch {
	if len(observers) == 0 {
		return nil
	}
	w := &watch{x: x, ctx: context.WithoutCancel(ctx)}
	for _, o := range observers {
		w.observers = append(w.observers, &observing{Observer: o})
	}
	return w
}

// call calls a function of an observer, which may do anything.
func (w *watch) call(o *observing, name string, function func()) {
	err := isolated(func() error { function(); return nil })
	if err == nil || o.failed.Swap(true) {
		return
	}
	_ = isolated(func() error { // a slog.Handler may panic as well
		log := o.Logger
		if log == nil {
			log = slog.Default()
		}
		log.ErrorContext(w.ctx, "observer failed", "function", name, "error", err, "execution_id", w.x.id)
		return nil
	})
}

// instant is now, later than the instants before even if the wall clock is set back.
func (w *watch) instant() time.Time {
	return w.x.now.Add(w.x.instant().Sub(w.x.now)).UTC()
}

// span is a span in progress. A nil span ignores all calls.
type span struct {
	Span
	w *watch
	// run is which run of a middleware's scope is under way. Only the goroutine of the
	// scope reads and writes it: no Gather is directly inside a middleware.
	run              int
	input, arguments any
}

type spanKey struct{}

// begin begins a span inside the one that the context carries.
func (w *watch) begin(ctx context.Context, s *span) (context.Context, *span) {
	s.w = w
	s.ExecutionID, s.ID, s.Start = w.x.id, w.spans.Add(1), w.instant()
	// A provider that executes another definition passes the context on.
	if parent, ok := ctx.Value(spanKey{}).(*span); ok && parent.w == w {
		s.ParentID, s.Run = parent.ID, parent.run
	}
	for _, o := range w.observers {
		if o.SpanBegun != nil {
			w.call(o, "SpanBegun", func() { o.SpanBegun(w.ctx, s.copied()) })
		}
	}
	return s.within(ctx), s
}

// within is the context with the span, for the spans inside.
func (s *span) within(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, spanKey{}, s)
}

// copied returns a span that shares nothing with s.
func (s Span) copied() Span {
	if s.Index != nil {
		index := *s.Index
		s.Index = &index
	}
	return s
}

// end ends a span with what it came to.
func (s *span) end(o outcome) {
	if s != nil {
		s.report(o, "")
	}
}

// maxName is how many bytes of a failure's type and code a span has. Without a bound, a
// definition that computes them could make each span as large as the largest value.
const maxName = 128

func (s *span) report(o outcome, next string) {
	w := s.w
	ended := EndedSpan{End: w.instant(), Outcome: TypeSuccess, Interrupted: o.unwinding != nil, Next: next}
	if o.failure != nil {
		ended.Outcome, ended.Code = value.Cut(cmp.Or(o.failure.typ, TypeError), maxName), value.Cut(o.failure.code, maxName)
	}
	for _, observer := range w.observers {
		if observer.SpanEnded == nil {
			continue
		}
		told := ended
		told.Span = s.copied()
		if limit := observer.ValueBytes; limit > 0 {
			s.show(&told, o, limit)
		}
		w.call(observer, "SpanEnded", func() { observer.SpanEnded(w.ctx, told) })
	}
}

// show adds the values.
func (s *span) show(told *EndedSpan, o outcome, limit int) {
	if s.Kind != SpanPhase && s.Kind != SpanWait {
		told.Input = value.Excerpt(s.input, limit)
		if o.failure == nil {
			told.Output = value.Excerpt(o.value, limit)
		}
	}
	if s.arguments != nil {
		told.Arguments = value.Excerpt(s.arguments, limit)
	}
	if o.failure != nil {
		message, _ := o.failure.object["message"].(string)
		told.Message = value.Cut(message, limit)
	}
}

func (x *execution) beginFlow(ctx context.Context, flow *definition.Flow, input any, arguments map[string]any) (context.Context, *span) {
	if x.watch == nil {
		return ctx, nil
	}
	s := &span{Span: Span{Kind: SpanFlow, Name: flow.Name, Pointer: flow.Pointer}, input: input}
	s.pass(input, arguments)
	return x.watch.begin(ctx, s)
}

func (s *stepRun) begin(ctx context.Context) (context.Context, *span) {
	w := s.f.x.watch
	if w == nil {
		return ctx, nil
	}
	return w.begin(ctx, &span{
		Span:  Span{Kind: SpanStep, Name: s.step.Name, Action: s.step.Action.String(), Pointer: s.step.Pointer, StepID: s.id()},
		input: s.input,
	})
}

// endStep ends the span of a Step that led to another one, or to the end of the frame.
func (s *span) endStep(f *frame, next *definition.Step, output any, end *outcome) {
	switch {
	case s == nil:
	case end != nil:
		s.report(*end, "")
	default:
		// A Step that succeeded has cleared the failure: one that is set was caught.
		s.report(outcome{value: output, failure: f.failure}, next.Name)
	}
}

func (c *callRun) begin(ctx context.Context) (context.Context, *span) {
	w := c.f.x.watch
	if w == nil {
		return ctx, nil
	}
	s := &span{Span: Span{Kind: SpanCall, Pointer: c.call.Pointer}, input: c.input}
	if c.call.Flow != nil {
		s.Name = c.call.Flow.Name
	} else {
		s.Name = c.call.Provider.URI
	}
	if index := c.index; index >= 0 {
		s.Index = &index
	}
	return w.begin(ctx, s)
}

// pass records what a target receives.
func (s *span) pass(input any, arguments map[string]any) {
	if s == nil {
		return
	}
	s.input = input
	if len(arguments) > 0 {
		s.arguments = arguments
	}
}

func (e *entryRun) begin(ctx context.Context) (context.Context, *span) {
	w := e.f.x.watch
	if w == nil {
		return ctx, nil
	}
	return w.begin(ctx, &span{Span: Span{Kind: SpanMiddleware, Name: e.entry.Contract.URI, Pointer: e.entry.Pointer}, input: e.input})
}

// runs records that the scope of a middleware runs again.
func (s *span) runs(run int) {
	if s != nil {
		s.run = run
	}
}

// begin begins the span of a phase. Its parent is the entry, whatever the context
// carries: cleanup has a context of its own.
func (p *phaseRun) begin(ctx context.Context) (context.Context, *span) {
	e := p.entry
	w := e.f.x.watch
	if w == nil || e.idle(p.phase) {
		return ctx, nil
	}
	return w.begin(e.span.within(ctx), &span{Span: Span{Kind: SpanPhase, Name: p.phase.String(), Pointer: p.block.Pointer}})
}

// endPhase ends the span of a phase that has stopped, or not.
func (s *span) endPhase(p *phaseRun, stop *outcome) {
	if s == nil {
		return
	}
	s.pass(nil, p.with)
	if stop == nil {
		stop = &outcome{}
	}
	s.report(*stop, "")
}

// wait waits before another run of the scope.
func (e *entryRun) wait(ctx context.Context, delay time.Duration) *interruption {
	x := e.f.x
	if x.watch == nil {
		return x.wait(ctx, delay)
	}
	_, s := x.watch.begin(ctx, &span{Span: Span{Kind: SpanWait, Pointer: e.entry.Pointer}})
	var o outcome
	i := x.wait(ctx, delay)
	if i != nil {
		o = i.unwound()
	}
	s.end(o)
	return i
}
