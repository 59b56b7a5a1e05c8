package benchmarks

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// Who takes part in a workload that publishes hands every event to every
// subscriber of its topic, and to no other.
func TestSystems_HandOverEveryEvent(t *testing.T) {
	const events, subscribers = 200, 3
	for rival, waits := range publishing() {
		for _, wait := range []bool{false, true} {
			if wait && !waits {
				continue
			}
			t.Run(fmt.Sprintf("%s,wait=%t", rival, wait), func(t *testing.T) {
				var handled, others atomic.Int64
				var sum atomic.Uint64
				subscriptions := append(
					same(subscribers, "fast.event", func(n uint64) error {
						sum.Add(n)
						handled.Add(1)
						return nil
					}),
					subscription{"slow.event", func(uint64) error {
						others.Add(1)
						return nil
					}})
				s := systems[rival](t, setup{subscriptions: subscriptions, wait: wait})
				publish := s.publisher("fast.event")
				for n := range events {
					publish(newNote(uint64(n)))
				}
				if !wait {
					require.Eventually(t, func() bool { return handled.Load() == events*subscribers }, 10*time.Second, time.Millisecond)
				}
				require.EqualValues(t, events*subscribers, handled.Load())
				require.EqualValues(t, subscribers*events*(events-1)/2, sum.Load())
				require.Zero(t, others.Load())
				s.close()
			})
		}
	}
}

// publishing are the rivals that publish, and whether they are waited for.
func publishing() map[string]bool {
	rivals := make(map[string]bool)
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			for _, rival := range c.Rivals {
				switch w.Name {
				case "Publish", "Publishers", "Neighbour", "NonMatching", "Startup", "Idle":
					rivals[rival] = rivals[rival] || false
				case "Wait":
					rivals[rival] = true
				}
			}
		}
	}
	return rivals
}

// Those of the storm come back after the delay, and not at once.
func TestSystems_RetryAfterTheDelay(t *testing.T) {
	w, _ := plan.WorkloadNamed("Storm")
	for _, rival := range w.Cases[0].Rivals {
		t.Run(rival, func(t *testing.T) {
			const delay = 50 * time.Millisecond
			attempts := make(chan time.Time, 2)
			var failed atomic.Bool
			s := systems[rival](t, setup{retry: delay, subscriptions: same(1, "order.placed", func(uint64) error {
				attempts <- time.Now()
				if !failed.Swap(true) {
					return errOnce
				}
				return nil
			})})
			s.publisher("order.placed")(newNote(1))
			first := <-attempts
			require.GreaterOrEqual(t, (<-attempts).Sub(first), delay)
			s.close()
		})
	}
}

// All matchers find the one pattern that a type of the routing workload matches.
func TestMatchers_FindTheSubscription(t *testing.T) {
	found := map[string]func() int{
		plan.Us:              func() int { return len(routed) },
		"eventbus-all-globs": func() int { return len(routed) },
		"sublist-cache":      inSublist,
		"sublist":            inSublist,
		"globloop":           func() int { return len(matches) },
	}
	for rival, matcher := range matchers {
		shapes := commonShapes
		if rival == "eventbus-all-globs" {
			shapes = allShapes
		}
		for _, unique := range []bool{false, true} {
			r := newRouting(1000, unique, shapes, matcher)
			for range 1000 {
				typ := r.some(1)[0]
				r.match([]string{typ})
				require.Equal(t, 1, found[rival](), "%s: %s", rival, typ)
			}
		}
		newRouting(1000, false, shapes, matcher).match([]string{"nothing.of.the.kind"})
		require.Zero(t, found[rival](), rival)
	}
}

// The types of the routing workload come all in turn, however many are asked for at a time.
func TestRouting_AllTypesInTurn(t *testing.T) {
	const count = 1000
	name := func(k int) string { return fmt.Sprint("type", k%count) }
	var types []string
	for k := range count {
		types = append(types, name(k))
	}
	for kind, some := range map[string]func(int) []string{"again": again(types), "many": manyTypes(count, name)} {
		for met, n := 0, 1; met < 5*count; n = n*7%1009 + 1 {
			handed := some(n)
			require.NotEmpty(t, handed, kind)
			require.LessOrEqual(t, len(handed), n, kind)
			for _, typ := range handed {
				require.Equal(t, name(met), typ, kind)
				met++
			}
		}
	}
}

// Events that are back too early are not counted among those that wait: they wait longer then.
func TestStorm_AllWaitWhenTheyAreCounted(t *testing.T) {
	waiting := testing.Benchmark(func(b *testing.B) { stormWaits(b, "goroutine", 20*time.Millisecond) })
	endLeftover()
	require.InDelta(t, 1, waiting.Extra[plan.GoroutinesWaiting], 0.001, "each has a goroutine")
	require.Greater(t, waiting.Extra[plan.Waiting], 1000.0, "and its stack")
}

func inSublist() int { return reflect.ValueOf(*matched).FieldByName("psubs").Len() }

// What the plan names is there.
func TestPlan_EverybodyHasAnAdapter(t *testing.T) {
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			require.Contains(t, c.Rivals, plan.Us, "%s/%s", w.Name, c.Name)
			for _, rival := range c.Rivals {
				_, known := plan.RivalNamed(rival)
				require.True(t, known, "%s is not among the plan's rivals", rival)
				switch w.Name {
				case plan.Durable, plan.Postgres:
					program, _ := plan.ProgramOf(plan.Run{Workload: w.Name, Case: c.Name, Rival: rival})
					require.FileExists(t, filepath.Join("durable", program, "main.go"), rival)
				case "Routing":
					require.Contains(t, matchers, rival)
				case "Protected":
					if rival != plan.Us {
						require.Contains(t, calls, rival)
					}
				default:
					require.Contains(t, systems, rival)
				}
			}
		}
	}
	for _, rival := range plan.Rivals {
		takesPart := slices.ContainsFunc(plan.Workloads, func(w plan.Workload) bool {
			return slices.ContainsFunc(w.Cases, func(c plan.Case) bool { return slices.Contains(c.Rivals, rival.Name) })
		})
		require.True(t, takesPart, "%s is in no workload", rival.Name)
	}
}

// Protections pass the handler's result on.
func TestCalls_CallTheHandler(t *testing.T) {
	for rival, protect := range calls {
		called := 0
		call := protect(func(ctx context.Context) error {
			called++
			return ctx.Err()
		})
		call()
		call()
		require.Equal(t, 2, called, rival)
	}
}
