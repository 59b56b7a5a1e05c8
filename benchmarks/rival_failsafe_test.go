package benchmarks

import (
	"context"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// failsafeExecutor is a retry policy around a circuit breaker around a timeout.
func failsafeExecutor(retry time.Duration) failsafe.Executor[any] {
	retries := retrypolicy.NewBuilder[any]().WithMaxRetries(3)
	breaker := circuitbreaker.NewBuilder[any]()
	if retry > 0 {
		retries = retries.WithDelay(retry)
		breaker = breaker.WithFailureThreshold(4 * plan.StormEvents)
	} else {
		retries = retries.WithBackoff(time.Second, 30*time.Second).WithJitterFactor(0.1)
	}
	return failsafe.With[any](retries.Build(), breaker.Build(), timeout.New[any](30*time.Second))
}

// failsafeCall is a handler within the policies.
func failsafeCall(handle func(context.Context) error) func() {
	executor := failsafeExecutor(0).WithContext(context.Background())
	return func() {
		check(executor.RunWithExecution(func(e failsafe.Execution[any]) error { return handle(e.Context()) }))
	}
}

// openFailsafe runs each event on a goroutine of its own, within the policies.
func openFailsafe(_ testing.TB, s setup) system {
	executor := failsafeExecutor(s.retry)
	return system{
		publisher: func(topic string) func(*note) {
			handlers := s.handlers(topic)
			return func(x *note) {
				for _, handle := range handlers {
					executor.RunAsync(func() error { return handle(x.n) })
				}
			}
		},
		unbounded: true,
		close:     func() {},
	}
}
