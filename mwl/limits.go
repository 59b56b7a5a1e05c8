package mwl

import "time"

// WithLimits sets the limits. Without it they are [DefaultLimits], or
// [UntrustedLimits] with [Untrusted].
func WithLimits(limits Limits) LoadOption {
	return func(s *settings) error {
		s.limits = limits
		return nil
	}
}

// Untrusted makes [UntrustedLimits] the limits of a definition whose author is not trusted. The limits of [WithLimits]
// take precedence, in any order of the options.
func Untrusted() LoadOption {
	return func(s *settings) error {
		s.untrusted = true
		return nil
	}
}

// Limits bound a definition and one execution of it. All parts of an execution share its limits: subflows, the
// dispatches of a Gather, middleware. A limit of zero is the default; a negative one is no limit.
//
// An execution that exceeds a limit is cancelled. Its Result is System.Cancelled, or the failure of a cleanup with that
// as its previous. The message and details.limit name the limit. A definition cannot catch that. The cleanup of the
// cancelled execution may use the same amount of StepRuns, Reruns, Cost and RunDepth again, and a quarter more of
// LiveBytes. Then it is abandoned.
//
// Sizes are approximate sizes in memory. A number has 8 bytes, a text 16 and its bytes, and an array 24 and 16 for each
// element. An object has 320 bytes with up to 8 members, and 80 for each further member.
type Limits struct {
	// DefinitionBytes, Depth (of nested JSON), FlowNesting, Steps, Expressions, ExpressionBytes (of one expression) and
	// ExpressionTotal (the bytes of all expressions) bound the definition. Load rejects a definition that exceeds them.
	DefinitionBytes, Depth, FlowNesting, Steps, Expressions, ExpressionBytes, ExpressionTotal int
	// StepRuns bounds the Steps, the dispatches of calls and the re-runs of one
	// execution, all together.
	StepRuns int
	// Reruns bounds the re-runs alone: the rounds of Loop, the further attempts of Retry, and the re-runs of your own
	// middleware.
	Reruns int
	// FanOut bounds the dispatches of one Gather. One that exceeds it fails before
	// it dispatches anything, with Mwl.FanOutLimitExceeded, which the definition may
	// catch.
	FanOut int
	// Concurrency is how many dispatches of one Gather run at once; the others wait.
	// A definition may set a lower concurrency.
	Concurrency int
	// Goroutines is how many goroutines the Gathers of one execution use beside the
	// caller's. When none is left, a Gather runs its dispatches one after the other.
	// A Go function runs on one more, unless a goroutine of a Gather calls it directly.
	Goroutines int
	// RunDepth bounds how many Flows and middleware entries run inside one another.
	RunDepth int
	// ValueBytes bounds the value of one field, and the Results of a Gather, in
	// bytes. A part that occurs several times counts each time.
	ValueBytes int
	// LiveBytes bounds the values that an execution holds at a time, in bytes. It counts input, arguments and, for each
	// running Flow, its variables, computed values, failures, Results of calls and state of middleware. Flows,
	// dispatches and goroutines have fixed charges. An unused value may count until the charge of its Flow has doubled
	// and exceeds 64 KiB. In a Gather it may count until the dispatches have ended.
	LiveBytes int
	// ResultBytes bounds the value, or the failure, that Execute returns, in bytes.
	ResultBytes int
	// ExpressionCost bounds the work of one expression, in CEL's units of cost. A million take about 0.1 s. An
	// expression that exceeds it fails with System.ExpressionEvaluationError, which the definition may catch.
	ExpressionCost int
	// Cost bounds the work of all expressions of one execution, in the same units. Every expression costs 1 at least,
	// and 1 for each 64 bytes of its value. The validation of arguments costs 10 for each part of the parameter schema
	// that applies to a value, and more for numbers. A pattern costs 1 for 2 bytes that it reads.
	Cost int
	// ExecutionTime is how long one execution may take, Sleeps included, by the definition's clock. There is no limit
	// by default, because definitions may sleep for weeks. The context of Execute and the timeout of a bus's handler
	// bound it too.
	ExecutionTime time.Duration
	// Cleanup is how long the cleanup of a cancelled execution may take, all of it
	// together.
	Cleanup time.Duration
}

// DefaultLimits returns the limits of a definition without WithLimits and Untrusted. An execution within them takes no
// more than 64 MiB.
func DefaultLimits() Limits {
	return Limits{
		DefinitionBytes: 1 << 20,
		Depth:           128,
		FlowNesting:     16,
		Steps:           2000,
		Expressions:     5000,
		ExpressionBytes: 8 << 10,
		ExpressionTotal: 128 << 10,
		StepRuns:        100_000,
		Reruns:          100_000,
		FanOut:          10_000,
		Concurrency:     256,
		Goroutines:      256,
		RunDepth:        256,
		ValueBytes:      8 << 20,
		LiveBytes:       16 << 20,
		ResultBytes:     8 << 20,
		ExpressionCost:  1_000_000,
		Cost:            20_000_000,
		ExecutionTime:   -1,
		Cleanup:         30 * time.Second,
	}
}

// UntrustedLimits returns the limits of [Untrusted].
func UntrustedLimits() Limits {
	return Limits{
		DefinitionBytes: 256 << 10,
		Depth:           64,
		FlowNesting:     8,
		Steps:           500,
		Expressions:     1000,
		ExpressionBytes: 4 << 10,
		ExpressionTotal: 32 << 10,
		StepRuns:        10_000,
		Reruns:          1000,
		FanOut:          1000,
		Concurrency:     16,
		Goroutines:      64,
		RunDepth:        32,
		ValueBytes:      1 << 20,
		LiveBytes:       8 << 20,
		ResultBytes:     1 << 20,
		ExpressionCost:  200_000,
		Cost:            5_000_000,
		ExecutionTime:   30 * time.Second,
		Cleanup:         5 * time.Second,
	}
}

// or has the initial limits where the limits are zero.
func (l Limits) or(initial Limits) Limits {
	for _, limit := range []struct {
		value   *int
		initial int
	}{
		{&l.DefinitionBytes, initial.DefinitionBytes},
		{&l.Depth, initial.Depth},
		{&l.FlowNesting, initial.FlowNesting},
		{&l.Steps, initial.Steps},
		{&l.Expressions, initial.Expressions},
		{&l.ExpressionBytes, initial.ExpressionBytes},
		{&l.ExpressionTotal, initial.ExpressionTotal},
		{&l.StepRuns, initial.StepRuns},
		{&l.Reruns, initial.Reruns},
		{&l.FanOut, initial.FanOut},
		{&l.Concurrency, initial.Concurrency},
		{&l.Goroutines, initial.Goroutines},
		{&l.RunDepth, initial.RunDepth},
		{&l.ValueBytes, initial.ValueBytes},
		{&l.LiveBytes, initial.LiveBytes},
		{&l.ResultBytes, initial.ResultBytes},
		{&l.ExpressionCost, initial.ExpressionCost},
		{&l.Cost, initial.Cost},
	} {
		if *limit.value == 0 {
			*limit.value = limit.initial
		}
	}
	if l.ExecutionTime == 0 {
		l.ExecutionTime = initial.ExecutionTime
	}
	if l.Cleanup == 0 {
		l.Cleanup = initial.Cleanup
	}
	return l
}
