package benchmarks

import (
	"context"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
)

// gobreakerCall is what is written by hand around a call that may hang: a goroutine
// that is left behind at the timeout, a panic made an error, a breaker.
func gobreakerCall(handle func(context.Context) error) func() {
	breaker := gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{})
	const timeout = 30 * time.Second
	return func() {
		_, err := breaker.Execute(func() (struct{}, error) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				defer func() {
					if p := recover(); p != nil {
						done <- fmt.Errorf("panic: %v", p)
					}
				}()
				done <- handle(ctx)
			}()
			timer := time.NewTimer(timeout)
			defer timer.Stop()
			select {
			case err := <-done:
				return struct{}{}, err
			case <-timer.C:
				return struct{}{}, context.DeadlineExceeded
			}
		})
		check(err)
	}
}

// withTimeoutCall trusts the handler to heed its context.
func withTimeoutCall(handle func(context.Context) error) func() {
	breaker := gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{})
	return func() {
		_, err := breaker.Execute(func() (struct{}, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			return struct{}{}, handle(ctx)
		})
		check(err)
	}
}
