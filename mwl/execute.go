package mwl

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// ExecuteOption is an option of [Definition.Execute].
type ExecuteOption func(*request)

type request struct {
	arguments, platform map[string]any
	id                  string
	observers           []Observer
	// delivery is the handler's; nil elsewhere.
	delivery *eventbus.Delivery
	// withoutValue: nobody reads the value of the Result.
	withoutValue bool
}

// WithArguments sets the arguments for the parameters of the root Flow. They are validated: required ones must exist,
// and undeclared ones are rejected.
func WithArguments(arguments map[string]any) ExecuteOption {
	return func(r *request) { r.arguments = arguments }
}

// WithExecutionID sets execution.id. Without it, or if it is "", the id is random.
func WithExecutionID(id string) ExecuteOption {
	return func(r *request) { r.id = id }
}

// WithPlatform sets the members of execution.platform; without it there are none.
func WithPlatform(members map[string]any) ExecuteOption {
	return func(r *request) { r.platform = members }
}

// Execute runs the definition and returns its one Result. It blocks until then.
//
// Input, arguments and platform members are copied; they may be any Go values that
// have a JSON form. If one has none, the Result is System.ParameterValidationFailed.
//
// When ctx is done, the execution is cancelled: running parts are interrupted, and the cleanup of entered middleware
// runs, within the time of [Limits]. The Result is System.Cancelled, or the failure of an earlier cleanup. The contexts
// of providers have the values of ctx.
//
// Execute starts goroutines for the dispatches of a Gather and for the calls of Go functions. It returns after all of
// them have ended.
func (d *Definition) Execute(ctx context.Context, input any, options ...ExecuteOption) Result {
	if ctx == nil {
		ctx = context.Background()
	}
	var r request
	refused := r.apply(options)
	in, arguments, platform, invalid := r.values(input)
	refused = cmp.Or(refused, invalid)
	if r.id == "" {
		r.id = rand.Text()
	}
	x := &execution{
		settings: &d.settings,
		id:       r.id,
		platform: platform,
		delivery: r.delivery,
		now:      d.settings.clock.Now(),
	}
	x.ctx, x.stop = context.WithCancelCause(ctx)
	defer x.stop(nil)
	x.watch = x.watched(ctx, slices.Concat(d.settings.observers, r.observers)...)
	if refused != nil {
		_, span := x.beginFlow(x.ctx, d.root.Flow, nil, nil)
		span.end(failed(refused))
		return Result{Failure: refused.export()}
	}
	x.budget.evaluating = make(chan struct{}, 1)
	end := x.limitTime()
	_, o := x.run(x.ctx, d.root.Flow, in, arguments, x.now, nil)
	end()
	abandoned := x.cleaning.finish()
	if o.failure != nil {
		f := o.failure.export()
		if abandoned != "" {
			f.Message += "; " + abandoned
		}
		return Result{Failure: f, exceeded: x.exceededLimit()}
	}
	if r.withoutValue {
		return Result{}
	}
	return Result{Value: value.Copy(o.value)}
}

// apply applies the options that are not nil. A nil one is the caller's mistake.
func (r *request) apply(options []ExecuteOption) (invalid *failure) {
	for i, option := range options {
		if option != nil {
			option(r)
		} else if invalid == nil {
			invalid = newError(CodeParameterValidationFailed, fmt.Sprintf("option %d is nil; leave it out", i+1))
		}
	}
	return invalid
}

// values are the caller's values as the engine's own.
func (r *request) values(input any) (in any, arguments, platform map[string]any, invalid *failure) {
	in, invalid = importValue("the input", input)
	if invalid != nil {
		return nil, nil, nil, invalid
	}
	arguments, invalid = importObject("the arguments", r.arguments)
	if invalid != nil {
		return nil, nil, nil, invalid
	}
	platform, invalid = importObject("execution.platform", r.platform)
	return in, arguments, platform, invalid
}

func importObject(what string, members map[string]any) (map[string]any, *failure) {
	if len(members) == 0 {
		return map[string]any{}, nil
	}
	v, invalid := importValue(what, members)
	object, _ := v.(map[string]any)
	if object == nil {
		object = map[string]any{}
	}
	return object, invalid
}

// importValue copies a Go value. A MarshalJSON of the caller's may panic.
func importValue(what string, v any) (imported any, invalid *failure) {
	defer func() {
		if p := recover(); p != nil {
			imported, invalid = nil, noValue(what, fmt.Errorf("its conversion panicked: %s", panicText(p)))
		}
	}()
	imported, err := value.Of(v)
	if err != nil {
		return nil, noValue(what, err)
	}
	return imported, nil
}

func noValue(what string, err error) *failure {
	return newFailure(TypeError, CodeParameterValidationFailed, what+" has no JSON form: "+err.Error(),
		map[string]any{"schemaPath": "", "value": nil}, nil)
}

// execution is one run of a root Flow.
type execution struct {
	*settings
	id    string
	watch *watch // nil without an observer
	// platform has the caller's members of execution.platform. The first expression
	// that reads them adds event, which is made of the delivery.
	platform     map[string]any
	delivery     *eventbus.Delivery
	platformOnce sync.Once
	// now is the instant of the root frame's entry.
	now time.Time

	// ctx is the scope of the root frame, which stop ends.
	ctx  context.Context
	stop context.CancelCauseFunc

	budget budget
	// steps numbers the Steps.
	steps atomic.Int64

	mu       sync.Mutex
	external *interruption
	// exceeded is the limit that cancelled the execution; "" for none.
	exceeded string

	cleaning cleaning
}

// instant reads the clock.
func (x *execution) instant() time.Time { return x.clock.Now() }

var realClock = clock.New()
