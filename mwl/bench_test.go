package mwl_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cel.dev/cel-go/cel"
	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// chain is a definition of n Pass Steps with one expression each.
func chain(n int, expression string) []byte {
	var b strings.Builder
	b.WriteString(`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"s0","steps":{`)
	for i := range n {
		fmt.Fprintf(&b, `"s%d":{"action":"Pass","output":%q,"next":"s%d"},`, i, expression, i+1)
	}
	fmt.Fprintf(&b, `"s%d":{"action":"Return"}}}`, n)
	return []byte(b.String())
}

const (
	chainSteps      = 10
	chainExpression = "{{ {'total': step.input.total + 1.0, 'name': step.input.name} }}"
)

// BenchmarkPassChain runs ten Pass Steps with an expression each. Its metric
// "ratio" is how much longer that takes than the ten evaluations in cel-go alone;
// the bar is 2.
func BenchmarkPassChain(b *testing.B) {
	d, err := mwl.Load(chain(chainSteps, chainExpression))
	require.NoError(b, err)
	input := map[string]any{"total": 0.0, "name": "x"}
	ctx := context.Background()
	execute := func() {
		if r := d.Execute(ctx, input); r.Failure != nil {
			b.Fatal(r.Failure)
		}
	}
	ratio := fastest(execute) / fastest(evaluations(b))
	b.ReportAllocs()
	for b.Loop() {
		execute()
	}
	b.ReportMetric(ratio, "ratio")
}

// BenchmarkTenEvaluations is what BenchmarkPassChain is compared with.
func BenchmarkTenEvaluations(b *testing.B) {
	run := evaluations(b)
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}

// fastest is how many nanoseconds a run takes when nothing disturbs it.
func fastest(run func()) float64 {
	best := time.Duration(math.MaxInt64)
	for range 100 {
		const rounds = 50
		began := time.Now()
		for range rounds {
			run()
		}
		best = min(best, time.Since(began)/rounds)
	}
	return float64(best)
}

// evaluations is the ten evaluations of the chain in cel-go itself, each of what
// the one before gave.
func evaluations(b *testing.B) func() {
	env, err := cel.NewEnv(cel.CrossTypeNumericComparisons(true))
	require.NoError(b, err)
	programs := make([]cel.Program, chainSteps)
	for i := range programs {
		ast, issues := env.Parse(strings.TrimSuffix(strings.TrimPrefix(chainExpression, "{{"), "}}"))
		require.NoError(b, issues.Err())
		programs[i], err = env.Program(ast)
		require.NoError(b, err)
	}
	return func() {
		var in any = map[string]any{"total": 0.0, "name": "x"}
		for _, program := range programs {
			out, _, err := program.Eval(map[string]any{"step": map[string]any{"input": in}})
			if err != nil {
				b.Fatal(err)
			}
			in = out
		}
	}
}

// BenchmarkLoad loads a workflow of the size that the language's guide
// shows end to end; with MWL_REFERENCE_DIR, the directory of the reference, that
// very one. Its metric "best-ms" is the fastest of the runs, in milliseconds; the bar is 5.
func BenchmarkLoad(b *testing.B) {
	source, err := os.ReadFile(filepath.Join("testdata", "newsletter.json"))
	require.NoError(b, err)
	catalog := httpCatalog(b)
	if dir := os.Getenv("MWL_REFERENCE_DIR"); dir != "" {
		text, err := os.ReadFile(filepath.Join(dir, "guide", "end-to-end-example.md"))
		require.NoError(b, err)
		block := regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(text)
		require.NotNil(b, block)
		source = []byte(strings.ReplaceAll(string(block[1]), "/example/http/", "/shop/http/"))
	}
	best := time.Duration(math.MaxInt64)
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		if _, err := mwl.Load(source, mwl.WithCatalog(catalog)); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(began))
	}
	b.ReportMetric(best.Seconds()*1000, "best-ms")
}

// httpCatalog is a catalog with a provider that takes a method and a path.
func httpCatalog(tb testing.TB) *mwl.Catalog {
	catalog, err := mwl.NewCatalog(mwl.CallProvider{
		URI: "mwl:provider.call/shop/http/v1", CodePrefix: "Http",
		Parameters: []byte(`{"type":"object","required":["method","path"],"properties":{"method":{"type":"string"},"path":{"type":"string"}}}`),
		Metadata:   []byte(`{"type":"object","properties":{"requestId":{"type":"string"}}}`),
		Failures:   mwl.FailureCatalog{Closed: []string{"Provider.Call.Http.Throttled", "Provider.Call.Http.ConnectionFailed"}},
		Call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
			return mwl.CallResponse{}, nil
		},
	})
	require.NoError(tb, err)
	return catalog
}

// BenchmarkAsleep has 1,000 executions asleep at once. Its metric "B/flow" is the
// memory that each holds, its goroutine's stack included; the bar is 24 KiB.
func BenchmarkAsleep(b *testing.B) {
	const flows = 1000
	d, err := mwl.Load([]byte(`{"$schema":"https://mwl.dev/v0.1/flow/schema.json",
		"parameters":{"type":"object","properties":{"pause":{"type":"string","default":"PT1H"}}},
		"entrypoint":"pause","steps":{
		"pause":{"action":"Sleep","for":"{{ vars.pause }}","next":"done"},
		"done":{"action":"Return"}}}`), mwl.WithClock(clock.New()))
	require.NoError(b, err)
	var held float64
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		before := inUse()
		var asleep, over sync.WaitGroup
		for i := range flows {
			asleep.Add(1)
			over.Go(func() {
				asleep.Done()
				d.Execute(ctx, map[string]any{"order": strconv.Itoa(i)})
			})
		}
		asleep.Wait()
		// All are asleep when nothing is left to run.
		for range 20 {
			runtime.Gosched()
			time.Sleep(5 * time.Millisecond)
		}
		held = float64(inUse()-before) / flows
		cancel()
		over.Wait()
	}
	b.ReportMetric(held, "B/flow")
	b.ReportMetric(0, "ns/op")
}

// inUse is what heap and stacks hold.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// BenchmarkCall calls a Go function.
func BenchmarkCall(b *testing.B) {
	d, err := mwl.Load([]byte(`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"call","steps":{
		"call":{"action":"Call","call":{"provider":"mwl:provider.call/shop/http/v1","with":{"method":"GET","path":"/"}},"next":"done"},
		"done":{"action":"Return"}}}`), mwl.WithCatalog(httpCatalog(b)))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if r := d.Execute(context.Background(), nil); r.Failure != nil {
			b.Fatal(r.Failure)
		}
	}
}

// BenchmarkGather makes 10,000 calls of a Go function, 100 at once. Its metric
// "ratio" is how much longer that takes than the same calls by 100 goroutines alone,
// where each call gets a context and copies of its arguments too; the bar is 2.
// "goroutines" is the most that ran at once; the bar is 110.
func BenchmarkGather(b *testing.B) {
	const items, atOnce = 10_000, 100
	var most atomic.Int64
	work := func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		if r.Index%1000 == 0 {
			most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
		}
		time.Sleep(100 * time.Microsecond)
		return mwl.CallResponse{Value: r.Input}, nil
	}
	catalog, err := mwl.NewCatalog(mwl.CallProvider{URI: "mwl:provider.call/shop/work/v1", CodePrefix: "Work", Call: work})
	require.NoError(b, err)
	d, err := mwl.Load([]byte(`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"all","steps":{
		"all":{"action":"Gather","over":"{{ step.input }}","concurrency":100,"call":{"provider":"mwl:provider.call/shop/work/v1"},"next":"done"},
		"done":{"action":"Return"}}}`), mwl.WithCatalog(catalog))
	require.NoError(b, err)
	input := make([]any, items)
	for i := range input {
		input[i] = map[string]any{"id": float64(i)}
	}
	alone := func() {
		results, next := make([]any, items), atomic.Int64{}
		var workers sync.WaitGroup
		for range atOnce {
			workers.Go(func() {
				for i := next.Add(1) - 1; i < items; i = next.Add(1) - 1 {
					r, _ := work(context.Background(), mwl.CallRequest{Input: input[i], Index: int(i)})
					results[i] = r.Value
				}
			})
		}
		workers.Wait()
	}
	took := func(run func()) float64 {
		best := math.Inf(1)
		for range 5 {
			began := time.Now()
			run()
			best = min(best, time.Since(began).Seconds())
		}
		return best
	}
	execute := func() {
		if r := d.Execute(context.Background(), input); r.Failure != nil {
			b.Fatal(r.Failure)
		}
	}
	plain := took(alone)
	most.Store(0)
	before := runtime.NumGoroutine()
	ratio := took(execute) / plain
	b.ReportAllocs()
	for b.Loop() {
		execute()
	}
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(float64(most.Load())-float64(before), "goroutines")
}
