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

// Load reads a definition. It copies the source. Errors: a [*DefinitionError] that lists all problems, an
// [*OptionError], and errors of the function of [WithResolver].
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

// Warnings returns parts of the definition that are valid but probably mistakes, in the order of the source. There are
// at most 100, and one more that counts the others.
func (d *Definition) Warnings() []Problem { return problemsOf(d.root.Warnings) }

// Source returns a copy of the loaded document.
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

// WithCatalog sets the providers and the middleware of the definition. Without it, the definition has the language's
// own.
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

// DeferArgumentErrors loads definitions with literal arguments that are not valid, with a warning. Such an argument
// fails when an execution reaches it: System.ParameterValidationFailed. The specification of the language requires
// this. Without the option such a definition does not load, because every execution that reaches the argument fails in
// the same way. Literal arguments are the with of a call or of a middleware phase, even a missing one, and the for and
// until of a Sleep.
func DeferArgumentErrors() LoadOption {
	return func(s *settings) error {
		s.deferArgumentErrors = true
		return nil
	}
}

// WithClock sets the clock of executions: for Sleep, Timeout, delays, now() and the instants of the records. The
// default is the real clock.
func WithClock(c clock.Clock) LoadOption {
	return func(s *settings) error {
		if isNil(c) {
			return &OptionError{"WithClock", "the clock is nil; pass one, or leave the option out"}
		}
		s.clock = c
		return nil
	}
}

// WithRandom sets the random numbers for the jitter of Retry. The function returns numbers in [0, 1), and must be safe
// for concurrent use. Without the option, jitter is random.
func WithRandom(random func() float64) LoadOption {
	return func(s *settings) error {
		if random == nil {
			return &OptionError{"WithRandom", "the function is nil; pass one, or leave the option out"}
		}
		s.random = random
		return nil
	}
}
