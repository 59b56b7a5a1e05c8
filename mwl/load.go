package mwl

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/benbjohnson/clock"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/loader"
)

// Load reads a definition. The error is a [*DefinitionError] that lists what is
// wrong with it, or an [*OptionError], or what the function of [WithResolver] caused.
// The source is copied.
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
	initial := DefaultLimits()
	if d.settings.untrusted {
		initial = UntrustedLimits()
	}
	limits := d.settings.limits.or(initial)
	d.settings.limits = limits
	length, total := limits.ExpressionBytes, limits.ExpressionTotal
	if boundless(length) {
		length = math.MaxInt
	}
	if boundless(total) {
		total = math.MaxInt
	}
	cost := uint64(math.MaxUint64)
	if limits.ExpressionCost > 0 {
		cost = uint64(limits.ExpressionCost)
	}
	compiler, err := expr.NewCompiler(expr.Limits{Length: length, Total: total, Cost: cost})
	if err != nil {
		return nil, err
	}
	known := &contracts{Catalog: d.settings.catalog, resolve: d.settings.resolve}
	root, problems, more := loader.Load(slices.Clone(source), loader.Options{
		Catalog:        known,
		Compiler:       compiler,
		MaxBytes:       limits.DefinitionBytes,
		MaxDepth:       limits.Depth,
		MaxFlowNesting: limits.FlowNesting,
		MaxSteps:       limits.Steps,
		MaxExpressions: limits.Expressions,
		MaxFanOut:      limits.FanOut,
		MaxRunDepth:    limits.RunDepth,
		MaxProblems:    maxProblems,

		DeferArgumentErrors: d.settings.deferArgumentErrors,
	})
	if known.err != nil {
		return nil, known.err
	}
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
// order of the source. There are at most 100, and after these one that says how many
// more there are.
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
	// resolve is the function of [WithResolver], or nil.
	resolve func(uri string) (CatalogEntry, error)
	clock   clock.Clock
	limits  Limits
	// untrusted is [Untrusted].
	untrusted bool
	random    func() float64
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
		if catalog.calls == nil {
			return &OptionError{"WithCatalog", "the catalog is a zero Catalog, which lacks the language's own providers; make one with NewCatalog"}
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
		if isNil(c) {
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
