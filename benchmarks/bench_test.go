package benchmarks

import (
	"encoding/binary"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// note is a payload. Rivals pass the pointer, or the eight bytes if they carry bytes.
type note struct {
	n     uint64
	bytes [8]byte
}

func newNote(n uint64) *note {
	x := &note{n: n}
	binary.LittleEndian.PutUint64(x.bytes[:], n)
	return x
}

func numberIn(bytes []byte) uint64 { return binary.LittleEndian.Uint64(bytes) }

// subscription is a handler with the topic of its events.
type subscription struct {
	topic  string
	handle func(n uint64) error
}

// glob returns a pattern that matches the topic and others.
func (s subscription) glob() string { return s.topic[:strings.LastIndexByte(s.topic, '.')] + ".*" }

// setup describes the system that a rival creates.
type setup struct {
	subscriptions []subscription
	// wait makes publishers return after all subscribers have handled the event.
	wait bool
	// retry is the delay before a retry, without jitter and with circuits that never open. 0 keeps
	// the defaults of the rival.
	retry time.Duration
}

// system is a rival with its subscribers in place.
type system struct {
	// publisher returns a function that publishes events of a topic, for any number of goroutines.
	publisher func(topic string) func(*note)
	// unbounded says that the rival has no backpressure, so the driver limits the events in flight.
	unbounded bool
	// few is a number of events in flight that is faster than inFlight, where one was found.
	few   int
	close func()
}

// systems create the rivals that publish events.
var systems = map[string]func(testing.TB, setup) system{
	plan.Us:            openEventbus,
	"call":             openCall,
	"channel":          openChannel,
	"goroutine":        openGoroutine,
	"kelindar":         openKelindar,
	"cskr":             openCskr,
	"nats":             openNATS,
	"asaskevich":       openAsaskevich,
	"tailscale":        openTailscale,
	"watermill":        openWatermill,
	"watermill-router": openWatermillRouter,
	"failsafe":         openFailsafe,
}

// leftover waits for the end of a benchmark that has already reported its figures. The next
// benchmark of the process calls it first. With one benchmark per process nothing waits.
var leftover func()

func endLeftover() {
	if leftover != nil {
		leftover()
		leftover = nil
	}
}

// run runs a benchmark for each case and rival of a workload.
func run(b *testing.B, workload string, f func(b *testing.B, kase, rival string)) {
	b.Helper()
	w, ok := plan.WorkloadNamed(workload)
	if !ok {
		b.Fatalf("no workload %s in the plan", workload)
	}
	for _, c := range w.Cases {
		b.Run(c.Name, func(b *testing.B) {
			for _, rival := range c.Rivals {
				b.Run(rival, func(b *testing.B) {
					endLeftover()
					f(b, c.Name, rival)
				})
			}
		})
	}
}

// memStats is a global variable to keep it off the stack. New goroutines get a stack of average
// size, so a large stack here would speed up rivals that start many goroutines.
var memStats runtime.MemStats

func mallocs() uint64 {
	runtime.ReadMemStats(&memStats)
	return memStats.Mallocs
}

// measure times f and reports its allocations with their fraction, which testing drops.
func measure(b *testing.B, f func()) {
	b.Helper()
	b.ReportAllocs()
	before := mallocs()
	b.ResetTimer()
	f()
	b.StopTimer()
	b.ReportMetric(float64(mallocs()-before)/float64(b.N), plan.Allocs)
}

var kept sync.Map

// keep returns the result of the first call of build for a key. Testing calls a benchmark several
// times with a growing b.N, and some benchmarks are expensive to set up.
func keep[T any](key string, build func() T) T {
	if v, ok := kept.Load(key); ok {
		return v.(T)
	}
	v := build()
	kept.Store(key, v)
	return v
}

// tally counts handled events and signals when their number reaches the target.
type tally struct {
	done   atomic.Int64
	_      [56]byte // publishers read target, not done
	target atomic.Int64
	all    chan struct{}
}

func newTally() *tally { return &tally{all: make(chan struct{}, 1)} }

func (t *tally) handle(uint64) error {
	if t.done.Add(1) == t.target.Load() {
		t.all <- struct{}{}
	}
	return nil
}

// inFlight is the limit of events in flight for rivals without a bound of their own.
const inFlight = 4096

// drive publishes n events, from several publishers, and waits until each of the
// subscribers has handled them.
func (t *tally) drive(n, publishers, subscribers int, s system, publish func(*note)) {
	t.driveFew(n, publishers, subscribers, inFlight, s, publish)
}

// driveFew is drive with a limit of events in flight.
func (t *tally) driveFew(n, publishers, subscribers, inFlight int, s system, publish func(*note)) {
	begun := t.done.Load()
	t.target.Store(begun + int64(n)*int64(subscribers))
	var sent atomic.Int64
	some := func(n int) {
		x := newNote(1)
		if !s.unbounded {
			for range n {
				publish(x)
			}
			return
		}
		// A few at a time, as to look at what has been handled costs as much as an event.
		for most := max(inFlight/64, 1); n > 0; n -= most {
			few := min(n, most)
			for at := sent.Add(int64(few)); at-(t.done.Load()-begun)/int64(subscribers) > int64(inFlight); {
				runtime.Gosched()
			}
			for range few {
				publish(x)
			}
		}
	}
	if publishers == 1 {
		some(n)
	} else {
		var wg sync.WaitGroup
		for i := range publishers {
			wg.Go(func() { some((n + i) / publishers) })
		}
		wg.Wait()
	}
	if n > 0 {
		<-t.all
	}
}

// warmUp returns the number of events to publish before the measurement, until buffers, goroutines
// and caches have grown.
func warmUp(n int) int { return min(n, max(n/10, 20_000)) }

// same returns n subscriptions to one topic.
func same(n int, topic string, handle func(uint64) error) []subscription {
	return slices.Repeat([]subscription{{topic, handle}}, n)
}

// held returns the heap in use and the stacks of the process, after a garbage collection.
func held() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// check panics on an error: a benchmark must not fail.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// number returns the number in the name of a case: 10 in subscribers=10.
func number(tb testing.TB, kase string) int {
	tb.Helper()
	_, s, _ := strings.Cut(kase, "=")
	n, err := strconv.Atoi(s)
	if err != nil {
		tb.Fatalf("case %q has no number", kase)
	}
	return n
}
