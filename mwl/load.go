package mwl

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/loader"
)

// Load reads a definition. The error is a [*DefinitionError] that lists what is
// wrong with it, or an [*OptionError]. The source is copied.
func Load(source []byte, options ...LoadOption) (*Definition, error) {
	d := &Definition{settings: settings{catalog: ownProviders(), clock: realClock, random: rand.Float64}}
	for i, option := range options {
		if option == nil {
			return nil, &OptionError{"Load", fmt.Sprintf("option %d is nil; leave it out", i+1)}
		}
		if err := option(&d.settings); err != nil {
			return nil, err
		}
	}
	limits := d.settings.limits.orDefault()
	d.settings.limits = limits
	length := limits.ExpressionBytes
	if length < 0 {
		length = math.MaxInt
	}
	compiler, err := expr.NewCompiler(expr.Limits{Length: length})
	if err != nil {
		return nil, err
	}
	root, problems, more := loader.Load(slices.Clone(source), loader.Options{
		Catalog:        contracts{d.settings.catalog},
		Compiler:       compiler,
		MaxBytes:       limits.DefinitionBytes,
		MaxDepth:       limits.Depth,
		MaxFlowNesting: limits.FlowNesting,
		MaxSteps:       limits.Steps,
		MaxExpressions: limits.Expressions,
		MaxProblems:    maxProblems,

		DeferArgumentErrors: d.settings.deferArgumentErrors,
	})
	if len(problems) > 0 {
		return nil, &DefinitionError{Problems: problemsOf(problems), More: more}
	}
	d.root = root
	return d, nil
}

// maxProblems is how many problems an error lists.
const maxProblems = 100

func problemsOf(found []definition.Problem) []Problem {
	problems := make([]Problem, len(found))
	for i, p := range found {
		problems[i] = Problem(p)
	}
	return problems
}

// Warnings are what the definition may contain, but is likely a mistake, in the
// order of the source.
func (d *Definition) Warnings() []Problem { return problemsOf(d.root.Warnings) }

// Source is the document as it was loaded.
func (d *Definition) Source() []byte { return slices.Clone(d.root.Source) }

// Definition is a loaded workflow definition. It is immutable and may be executed
// by many goroutines at once.
type Definition struct {
	root     *definition.Root
	settings settings
}

type settings struct {
	catalog *Catalog
	clock   clock.Clock
	limits  Limits
	random  func() float64
	// observers are those of [Definition.WithObserver].
	observers []Observer
	// deferArgumentErrors is [DeferArgumentErrors].
	deferArgumentErrors bool
}

// LoadOption is an option of [Load].
type LoadOption func(*settings) error

// WithCatalog says what the definition can call and be wrapped by. Without it,
// that is what every catalog has.
func WithCatalog(catalog *Catalog) LoadOption {
	return func(s *settings) error {
		if catalog == nil {
			return &OptionError{"WithCatalog", "the catalog is nil; make one with NewCatalog, or leave the option out"}
		}
		s.catalog = catalog
		return nil
	}
}

// DeferArgumentErrors loads definitions with literal arguments that are not valid,
// with a warning. Such an argument fails when an execution reaches it:
// System.ParameterValidationFailed. That is what the language's text says. Without
// the option such a definition does not load, because every execution that reaches
// the argument fails in the same way. Literal arguments are the with of a call or of
// a middleware phase, also one that is missing, and the for and until of a Sleep.
func DeferArgumentErrors() LoadOption {
	return func(s *settings) error {
		s.deferArgumentErrors = true
		return nil
	}
}

// WithClock has executions take all their time from the clock: Sleep, Timeout,
// delays, now() and the instants of the records. Without it they take the real
// time.
func WithClock(c clock.Clock) LoadOption {
	return func(s *settings) error {
		if v := reflect.ValueOf(c); c == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return &OptionError{"WithClock", "the clock is nil; pass one, or leave the option out"}
		}
		s.clock = c
		return nil
	}
}

// WithRandom has Retry take its jitter from the function, which returns numbers
// from 0 up to, but not including, 1, and may be called by several goroutines at
// once. Without it, jitter is random.
func WithRandom(random func() float64) LoadOption {
	return func(s *settings) error {
		if random == nil {
			return &OptionError{"WithRandom", "the function is nil; pass one, or leave the option out"}
		}
		s.random = random
		return nil
	}
}

// WithLimits sets the limits. Without it they are [DefaultLimits].
func WithLimits(limits Limits) LoadOption {
	return func(s *settings) error {
		s.limits = limits
		return nil
	}
}

// Limits bound what a definition, and one execution of it, may take. A limit of
// zero is the default; a negative one is no limit.
type Limits struct {
	// DefinitionBytes, Depth (of nested JSON), FlowNesting, Steps, Expressions and
	// ExpressionBytes (of one expression) bound the definition: what exceeds them
	// does not load.
	DefinitionBytes, Depth, FlowNesting, Steps, Expressions, ExpressionBytes int
	// StepRuns bounds how many Steps and re-runs one execution makes, subflows
	// included. What exceeds it is cancelled: System.Cancelled.
	StepRuns int
	// FanOut bounds the dispatches of one Gather. One that exceeds it fails before
	// it dispatches anything, with Mwl.FanOutLimitExceeded.
	FanOut int
	// ValueBytes bounds a value that an execution makes, roughly as JSON, and the
	// Results of a Gather. What exceeds it is cancelled.
	ValueBytes int
	// Cleanup is how long the cleanup of a cancelled execution may take, all of it
	// together.
	Cleanup time.Duration
}

// DefaultLimits are the limits that hold when nothing else is said.
func DefaultLimits() Limits {
	return Limits{
		DefinitionBytes: 1 << 20,
		Depth:           128,
		FlowNesting:     16,
		Steps:           2000,
		Expressions:     5000,
		ExpressionBytes: 8 << 10,
		StepRuns:        100_000,
		FanOut:          10_000,
		ValueBytes:      16 << 20,
		Cleanup:         30 * time.Second,
	}
}

// orDefault has the defaults where the limits are zero.
func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	for _, limit := range []struct {
		value   *int
		initial int
	}{
		{&l.DefinitionBytes, d.DefinitionBytes},
		{&l.Depth, d.Depth},
		{&l.FlowNesting, d.FlowNesting},
		{&l.Steps, d.Steps},
		{&l.Expressions, d.Expressions},
		{&l.ExpressionBytes, d.ExpressionBytes},
		{&l.StepRuns, d.StepRuns},
		{&l.FanOut, d.FanOut},
		{&l.ValueBytes, d.ValueBytes},
	} {
		if *limit.value == 0 {
			*limit.value = limit.initial
		}
	}
	if l.Cleanup == 0 {
		l.Cleanup = d.Cleanup
	}
	return l
}
