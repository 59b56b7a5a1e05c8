package benchmarks

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// calls put their protections around a handler.
var calls = map[string]func(handle func(context.Context) error) (call func()){
	"call": func(handle func(context.Context) error) func() {
		return func() { check(handle(context.Background())) }
	},
	"withtimeout":          withTimeoutCall,
	"failsafe":             failsafeCall,
	"gobreaker":            gobreakerCall,
	"watermill-middleware": watermillCall,
}

// BenchmarkProtected is a protected handler that succeeds. On this bus it is a
// whole event.
func BenchmarkProtected(b *testing.B) {
	run(b, "Protected", func(b *testing.B, _, rival string) {
		if rival == plan.Us {
			publishUntilHandled(b, rival, 1, 1, false)
			return
		}
		var handled atomic.Int64
		call := calls[rival](func(context.Context) error {
			handled.Add(1)
			return nil
		})
		begin := warmUp(b.N)
		for range begin {
			call()
		}
		measure(b, func() {
			for range b.N {
				call()
			}
		})
		require.EqualValues(b, begin+b.N, handled.Load())
	})
}
