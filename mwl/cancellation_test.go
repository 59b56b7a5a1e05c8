package mwl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

const cancelled = "cancellation " + mwl.CodeCancelled

// everything takes about nine seconds and is somewhere else in each of them: a
// pause, a loop of bounded calls with a cleanup, a fan-out under a cap, a retry's
// gap; all of it in a Flow that would retry and catch whatever can be.
const everything = `
"middleware": [
	{$TRACE, "onEntry": {"with": {"name": "outer"}}},
	{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 5}]}}},
	{$TRACE, "onEntry": {"with": {"name": "inner"}}},
	{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup root", "ms": 300}}}}}
],
"entrypoint": "nap",
"steps": {
	"nap": {"action": "Sleep", "for": "PT1S", "next": "loop"},
	"loop": {
		"action": "Call",
		"call": {$MOCK, "with": {"delay": "PT1S"}},
		"middleware": [
			{$TRACE, "onEntry": {"with": {"name": "loop"}}},
			{$LOOP, "onSuccess": {"when": "{{ middleware.metadata.iteration < 2 }}"}},
			{$TIMEOUT, "onEntry": {"with": {"duration": "PT10S"}}},
			{$TRACE, "onEntry": {"with": {"name": "round"}}},
			{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup round", "ms": 300}}}}}
		],
		"catch": [{"match": {"codes": ["*"]}, "next": "done"}],
		"next": "fan"
	},
	"fan": {
		"action": "Gather",
		"over": [1, 2, 3],
		"concurrency": 2,
		"call": {
			"flow": {
				"middleware": [{$TRACE, "onEntry": {"with": {"name": "dispatch"}}}],
				"entrypoint": "work",
				"steps": {"work": {"action": "Call", "call": {$DO, "with": {"name": "work", "ms": 1000}}, "next": "done"}, "done": {"action": "Return"}}
			},
			"onFailure": {"assign": {"armed": true}}
		},
		"catch": [{"match": {"codes": ["*"]}, "next": "done"}],
		"next": "gap"
	},
	"gap": {
		"action": "Call",
		"call": {$MOCK, "with": {"failure": {"code": "App.Failed"}}},
		"middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 3, "backoff": {"initial": "PT1S"}}]}}}],
		"catch": [{"match": {"codes": ["*"]}, "next": "done"}],
		"next": "done"
	},
	"done": {"action": "Return", "value": "done"}
}`

// Execution model, The unwind and External cancellation: wherever it strikes, the
// execution has one Result, a bare cancellation; every entry that was established
// has its onAlways once; no other phase, arm, clause or retry takes part.
func TestCancelAtEveryInstant(t *testing.T) {
	var finished time.Duration
	for at := 125 * time.Millisecond; finished == 0; at += 250 * time.Millisecond {
		require.Less(t, at, time.Minute, "the execution does not end")
		synctest.Test(t, func(t *testing.T) {
			j := &journal{}
			def := load(t, everything, []mwl.CatalogEntry{j.entry(), j.trace()})
			ctx, cancel := context.WithCancel(t.Context())
			struck := 0
			timer := time.AfterFunc(at, func() { struck = len(j.all()); cancel() })
			start := time.Now()
			result := def.Execute(ctx, nil)
			elapsed := time.Since(start)
			if timer.Stop() {
				finished = elapsed
				cancel()
				require.NoError(t, result.Err())
				require.Equal(t, "done", result.Value)
				return
			}
			require.Equal(t, []string{cancelled}, envelope(result.Failure), "cancelled at %v", at)
			require.LessOrEqual(t, elapsed, at+700*time.Millisecond, "cancelled at %v", at)

			lines := j.all()
			open := map[string]int{}
			for i, line := range lines {
				phase, name, _ := strings.Cut(line, " ")
				switch phase {
				case "entry":
					require.Less(t, i, struck, "cancelled at %v: %q came after", at, lines)
					open[name]++
				case "always":
					open[name]--
				case "success", "failure":
					require.Less(t, i, struck, "cancelled at %v: %q came after", at, lines)
				}
				require.NotEqual(t, "cleanup root stopped", line)
				require.NotEqual(t, "cleanup round stopped", line)
			}
			for name, n := range open {
				require.Zero(t, n, "cancelled at %v: onAlways of %s", at, name)
			}
			require.Equal(t, 1, j.count("cleanup root"))
			require.Equal(t, j.count("entry round"), j.count("cleanup round"))
		})
	}
	require.Greater(t, finished, 5*time.Second)
}

// Execution model, External cancellation: also before the first Step.
func TestCancelBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		def := load(t, everything, []mwl.CatalogEntry{j.entry(), j.trace()})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		result := def.Execute(ctx, nil)
		require.Equal(t, []string{cancelled}, envelope(result.Failure))
		require.Less(t, time.Since(start), time.Second)
		require.Zero(t, j.count("entry loop"))
		require.Equal(t, j.count("entry outer"), j.count("always outer"))
		require.Equal(t, j.count("entry inner"), j.count("always inner"))
	})
}

// Execution model, External cancellation: a deadline of the platform is one too.
func TestCancelByDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		def := load(t, `"entrypoint": "nap", "steps": {"nap": {"action": "Sleep", "for": "P1D", "next": "done"}, "done": {"action": "Return"}}`, nil)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the shift is over"))
		defer cancel()
		start := time.Now()
		result := def.Execute(ctx, nil)
		require.Equal(t, []string{cancelled}, envelope(result.Failure))
		require.Equal(t, time.Minute, time.Since(start))
	})
}

// Execution model, The unwind: a cleanup that fails supersedes the cancellation.
func TestCancelFailedCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		def := load(t, `
"middleware": [
	{$FINALLY, "onAlways": {"with": {"call": {$MOCK, "with": {"failure": {"code": "Cleanup.Outer", "message": "{{ middleware.result.code + ' ' + middleware.result.previous.type }}"}}}}}},
	{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 9}]}}, "onFailure": {"code": "Never.Made"}},
	{$FINALLY, "onAlways": {"with": {"call": {$MOCK, "with": {"failure": {"code": "Cleanup.Inner", "message": "{{ middleware.result.code }}"}}}}}}
],
"entrypoint": "nap",
"steps": {"nap": {"action": "Sleep", "for": "P1D", "next": "done"}, "done": {"action": "Return"}}`, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		result := def.Execute(ctx, nil)
		require.Equal(t, []string{"error Cleanup.Outer", "error Cleanup.Inner", cancelled}, envelope(result.Failure))
		require.Equal(t, "Cleanup.Inner cancellation", result.Failure.Message)
		require.Equal(t, mwl.CodeCancelled, result.Failure.Previous.Message)
	})
}

// Middleware mechanics, onAlways: a cleanup that is under way when the
// cancellation arrives runs to its end, once; nothing comes after it.
func TestCancelDuringCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		def := load(t, `
"entrypoint": "work",
"steps": {
	"work": {
		"action": "Call",
		"call": {$DO, "with": {"name": "work"}},
		"middleware": [
			{$TRACE, "onEntry": {"with": {"name": "outer"}}},
			{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup", "ms": 5000}}}}}
		],
		"next": "after"
	},
	"after": {"action": "Call", "call": {$DO, "with": {"name": "after"}}, "next": "done"},
	"done": {"action": "Return"}
}`, []mwl.CatalogEntry{j.entry(), j.trace()})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		result := def.Execute(ctx, nil)
		require.Equal(t, []string{cancelled}, envelope(result.Failure))
		require.Equal(t, 5*time.Second, time.Since(start))
		require.Equal(t, []string{"entry outer", "work", "cleanup", "always outer"}, j.all())
	})
}

// Execution model, The unwind: an interruption of a scope that is unwinding
// already does not start over; what the first would have become is given up for
// the second.
func TestCancelDuringTimeoutUnwind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		def := load(t, `
"entrypoint": "work",
"steps": {
	"work": {
		"action": "Call",
		"call": {$DO, "with": {"name": "work", "ms": 60000}},
		"middleware": [
			{$TRACE, "onEntry": {"with": {"name": "outer"}}},
			{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}},
			{$TRACE, "onEntry": {"with": {"name": "inner"}}},
			{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup", "ms": 5000}}}}}
		],
		"catch": [{"match": {"codes": ["*"]}, "next": "caught"}],
		"next": "done"
	},
	"caught": {"action": "Return", "value": "caught"},
	"done": {"action": "Return"}
}`, []mwl.CatalogEntry{j.entry(), j.trace()})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		result := def.Execute(ctx, nil)
		require.Equal(t, []string{cancelled}, envelope(result.Failure))
		require.Equal(t, 6*time.Second, time.Since(start))
		require.Equal(t, []string{"entry outer", "entry inner", "work", "work stopped", "cleanup", "always inner", "always outer"}, j.all())
	})
}

// Middleware providers, Timeout: the bound may elapse while a cleanup inside it
// runs. The cleanup is left alone, and the bound has been exceeded.
func TestTimeoutDuringCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		def := load(t, `
"entrypoint": "work",
"steps": {
	"work": {
		"action": "Call",
		"call": {$DO, "with": {"name": "work"}},
		"middleware": [
			{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}},
			{$TRACE, "onEntry": {"with": {"name": "between"}}},
			{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup", "ms": 5000}}}}}
		],
		"next": "done"
	},
	"done": {"action": "Return"}
}`, []mwl.CatalogEntry{j.entry(), j.trace()})
		start := time.Now()
		result := def.Execute(t.Context(), nil)
		require.Equal(t, []string{"timeout " + mwl.CodeTimeoutExceeded}, envelope(result.Failure))
		require.Equal(t, 5*time.Second, time.Since(start))
		require.Equal(t, []string{"entry between", "work", "cleanup", "always between"}, j.all())
	})
}

// The cleanup of a cancelled execution has a limit (Limits.Cleanup): then it is
// given up, which the Result tells, and there is still one.
func TestCancelCleanupLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		def := load(t, `
"middleware": [{$FINALLY, "onAlways": {"with": {"call": {$DO, "with": {"name": "cleanup", "ms": 3600000}}}}}],
"entrypoint": "nap",
"steps": {"nap": {"action": "Sleep", "for": "P1D", "next": "done"}, "done": {"action": "Return"}}`,
			[]mwl.CatalogEntry{j.entry()}, mwl.WithLimits(mwl.Limits{Cleanup: 10 * time.Second}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		result := def.Execute(ctx, nil)
		require.Equal(t, []string{cancelled}, envelope(result.Failure))
		require.Contains(t, result.Failure.Message, "PT10S")
		require.Equal(t, 11*time.Second, time.Since(start))
		require.Equal(t, []string{"cleanup", "cleanup stopped"}, j.all())
	})
}

// Execution model, The unwind: without anything that waits, an interruption takes
// effect before the next Step, run or dispatch.
func TestCancelBetweenSteps(t *testing.T) {
	for name, members := range map[string]string{
		"graph":     `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO}, "next": "b"}, "b": {"action": "Pass", "next": "a"}}`,
		"loop":      `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO}, "middleware": [{$LOOP, "onSuccess": {"when": true}}], "next": "b"}, "b": {"action": "Return"}}`,
		"retry":     `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO, "with": {"fail": true}}, "middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"codes": ["*"]}, "attempts": 100000}]}}}], "next": "b"}, "b": {"action": "Return"}}`,
		"gather":    `"entrypoint": "a", "steps": {"a": {"action": "Gather", "over": [1, 2, 3, 4, 5, 6, 7, 8, 9], "concurrency": 1, "call": {$DO}, "next": "b"}, "b": {"action": "Return"}}`,
		"flow loop": `"middleware": [{$LOOP, "onSuccess": {"when": true}}], "entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO}, "next": "b"}, "b": {"action": "Return"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				calls := 0
				def := load(t, members, []mwl.CatalogEntry{do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
					if calls++; calls == 5 {
						cancel()
					}
					if r.With["fail"] == true {
						return mwl.CallResponse{}, &mwl.Failure{Code: "App.Failed"}
					}
					return mwl.CallResponse{}, nil
				})})
				result := def.Execute(ctx, nil)
				require.Equal(t, []string{cancelled}, envelope(result.Failure))
				require.Equal(t, 5, calls)
			})
		})
	}
}

// Execution model, The unwind: no target is left running; the Result waits for
// providers that are slow to stop.
func TestCancelWaitsForProviders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := make(chan struct{}, 10)
		def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Gather", "over": [1, 2, 3], "call": {$DO}, "next": "b"}, "b": {"action": "Return"}}`,
			[]mwl.CatalogEntry{do(func(ctx context.Context, _ mwl.CallRequest) (mwl.CallResponse, error) {
				running <- struct{}{}
				defer func() { <-running }()
				<-ctx.Done()
				time.Sleep(3 * time.Second)
				return mwl.CallResponse{Value: "too late"}, nil
			})})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		result := def.Execute(ctx, nil)
		require.Equal(t, []string{cancelled}, envelope(result.Failure))
		require.Empty(t, running)
		require.Equal(t, 4*time.Second, time.Since(start))
	})
}

// Middleware providers, Timeout: what a provider gives back once the bound has
// fired is not accepted any more, be it a success.
func TestTimeoutRefusesLateResult(t *testing.T) {
	for name, late := range map[string]error{"success": nil, "failure": &mwl.Failure{Code: "App.Failed"}, "context's error": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				def := load(t, `"entrypoint": "a", "steps": {"a": {"action": "Call", "call": {$DO, "onSuccess": {"value": "arm"}},
					"middleware": [{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}}], "next": "b"}, "b": {"action": "Return"}}`,
					[]mwl.CatalogEntry{do(func(ctx context.Context, _ mwl.CallRequest) (mwl.CallResponse, error) {
						<-ctx.Done()
						return mwl.CallResponse{Value: 1}, late
					})})
				result := def.Execute(t.Context(), nil)
				require.Equal(t, []string{"timeout " + mwl.CodeTimeoutExceeded}, envelope(result.Failure))
			})
		})
	}
}

// Execution model, The conversion seam: a failed cleanup is never hidden, be it one
// that was under way already when the interruption came.
func TestInterruptedDuringFailingCleanup(t *testing.T) {
	const work = `
	"entrypoint": "work",
	"steps": {
		"work": {
			"action": "Call",
			"call": {$MOCK},
			"middleware": [%s {$FINALLY, "onAlways": {"with": {"call": {$MOCK, "with": {"delay": "PT5S", "failure": {"code": "Cleanup.Failed"}}}}}}],
			"next": "after"
		},
		"after": {"action": "Sleep", "for": "P1D", "next": "done"},
		"done": {"action": "Return"}
	}`
	t.Run("timeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			def := load(t, fmt.Sprintf(work, `{$TIMEOUT, "onEntry": {"with": {"duration": "PT1S"}}},`), nil)
			require.Equal(t, []string{"error Cleanup.Failed", cancelled, "timeout " + mwl.CodeTimeoutExceeded}, envelope(def.Execute(t.Context(), nil).Failure))
		})
	})
	t.Run("external", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			def := load(t, fmt.Sprintf(work, ""), nil)
			require.Equal(t, []string{"error Cleanup.Failed", cancelled}, envelope(def.Execute(ctx, nil).Failure))
		})
	})
	t.Run("gather", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			def := load(t, `
			"entrypoint": "fan",
			"steps": {
				"fan": {
					"action": "Gather",
					"calls": [{$MOCK, "with": {"delay": "PT2S"}}, {"flow": {`+fmt.Sprintf(work, "")+`}}],
					"completion": {"successes": 1, "wait": false},
					"output": "{{ step.results[1] }}",
					"next": "raise"
				},
				"raise": {"action": "Raise", "result": {"code": "{{ step.input.code }}", "previous": "{{ has(step.input.previous) ? step.input.previous : null }}"}}
			}`, nil)
			require.Equal(t, []string{"error Cleanup.Failed", "cancellation " + mwl.CodeGatherDispatchCancelled}, envelope(def.Execute(t.Context(), nil).Failure))
		})
	})
}
