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

// note is a payload: rivals hand over the pointer, or the eight bytes if bytes are
// what they carry.
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

// subscription is a handler, and the topic whose events it gets.
type subscription struct {
	topic  string
	handle func(n uint64) error
}

// glob is a pattern that matches the topic and others.
func (s subscription) glob() string { return s.topic[:strings.LastIndexByte(s.topic, '.')] + ".*" }

// setup is what a rival is to be made for.
type setup struct {
	subscriptions []subscription
	// wait: publishers are to return when all have handled the event.
	wait bool
	// retry is the delay before a retry, without jitter; circuits are not to open.
	// 0 leaves all that as it is.
	retry time.Duration
}

// system is a rival with its subscribers in place.
type system struct {
	// publisher makes the function that publishes events of a topic. Several
	// goroutines may call it.
	publisher func(topic string) func(*note)
	// unbounded: it takes whatever it is given, and must not be given all at once.
	unbounded bool
	// few is how many events at a time suit it better than inFlight, where that has been seen.
	few   int
	close func()
}

// systems make the rivals that events can be published to.
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

// leftover waits until a benchmark that has measured what it is for has come to its end. What is
// measured next does so first; in a process of its own that does it once, there is none.
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

// memStats is on no stack: new goroutines get one as large as others are on average, so
// rivals that start many would be faster for being measured.
var memStats runtime.MemStats

func mallocs() uint64 {
	runtime.ReadMemStats(&memStats)
	return memStats.Mallocs
}

// measure times f, and counts what it allocates to the fraction, which testing drops.
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

// keep is what build returns the first time that a process asks for key. A
// benchmark function is called with larger and larger numbers, and some have a lot
// to build.
func keep[T any](key string, build func() T) T {
	if v, ok := kept.Load(key); ok {
		return v.(T)
	}
	v := build()
	kept.Store(key, v)
	return v
}

// tally counts what handlers have done, and tells when it is all.
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

// inFlight is how many events those get at a time who have no bound of their own.
const inFlight = 4096

// drive publishes n events, from several publishers, and waits until each of the
// subscribers has handled them.
func (t *tally) drive(n, publishers, subscribers int, s system, publish func(*note)) {
	t.driveFew(n, publishers, subscribers, inFlight, s, publish)
}

// driveFew does so with a number of events at a time.
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

// warmUp is how many events are published before the measurement: what is grown,
// started and remembered is, then.
func warmUp(n int) int { return min(n, max(n/10, 20_000)) }

// same is a number of subscriptions to one topic.
func same(n int, topic string, handle func(uint64) error) []subscription {
	return slices.Repeat([]subscription{{topic, handle}}, n)
}

// held is what the process holds: heap in use and stacks, after a collection.
func held() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// check ends the program: what is measured must not fail.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// number is that of a case: 10 in subscribers=10.
func number(tb testing.TB, kase string) int {
	tb.Helper()
	_, s, _ := strings.Cut(kase, "=")
	n, err := strconv.Atoi(s)
	if err != nil {
		tb.Fatalf("case %q has no number", kase)
	}
	return n
}
