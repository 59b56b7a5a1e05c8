package eventbus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// togetherStep is one random operation on a bus.
type togetherStep struct {
	op    string
	sub   int
	key   string
	fails []int // attempts that fail, for each subscription
	dies  bool  // with Permanent, at the last of them
	after time.Duration
	pick  int
}

// togetherRecord is what has become of the events at the subscriptions.
type togetherRecord struct {
	mu       sync.Mutex
	problems []string
	handled  map[[2]int]int // event and subscription: successes
	last     map[string]int // subscription and key: the last one handled, by the order of its place
	inside   map[string]int // subscription and key: running calls
	replayed map[int]bool   // events
	failed   map[[2]int]int // event and subscription: failures
	events   map[int]*togetherStep
}

func (r *togetherRecord) handler(sub int) eventbus.Handler {
	return func(_ context.Context, e eventbus.Event) error {
		n := e.Payload.(int)
		at := fmt.Sprint(sub, e.Key)
		r.mu.Lock()
		step := r.events[n]
		if r.inside[at]++; e.Key != "" && r.inside[at] > 1 {
			r.problems = append(r.problems, fmt.Sprintf("two at once of %s", at))
		}
		r.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inside[at]--
		if r.failed[[2]int{n, sub}] < step.fails[sub] {
			r.failed[[2]int{n, sub}]++
			if step.dies && r.failed[[2]int{n, sub}] == step.fails[sub] {
				return eventbus.Permanent(errCore)
			}
			return errCore
		}
		r.handled[[2]int{n, sub}]++
		// Delayed and replayed ones take their places later.
		if e.Key != "" && step.after == 0 && !r.replayed[n] {
			if r.last[at] > n {
				r.problems = append(r.problems, fmt.Sprintf("%d after %d at %s", n, r.last[at], at))
			}
			r.last[at] = n
		}
		return nil
	}
}

// Random operations, and at rest the books balance, each key was handled in its
// order, and every event is accounted for at every subscription, exactly once.
func TestO4_EverythingTogether(t *testing.T) {
	const subscriptions = 3
	rapid.Check(t, func(rt *rapid.T) {
		isolated := rapid.Bool().Draw(rt, "isolated")
		capacity := rapid.SampledFrom([]int{2, 1000}).Draw(rt, "hold")
		whenOpen := rapid.SliceOfN(rapid.SampledFrom([]eventbus.WhenOpen{
			eventbus.HoldWhenOpen, eventbus.HoldWhenOpen, eventbus.DropWhenOpen, eventbus.DeadLetterWhenOpen,
		}), subscriptions, subscriptions).Draw(rt, "when open")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) togetherStep {
			return togetherStep{
				op: rapid.SampledFrom([]string{
					"publish", "publish", "publish", "publish", "publish", "batch", "sleep", "sleep", "pause", "resume", "until", "trip", "reset", "cancel", "replay", "unsubscribe",
				}).Draw(rt, "op"),
				sub:   rapid.IntRange(0, subscriptions-1).Draw(rt, "sub"),
				key:   rapid.SampledFrom([]string{"", "k", "k", "l"}).Draw(rt, "key"),
				fails: rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 5}), subscriptions, subscriptions).Draw(rt, "fails"),
				dies:  rapid.IntRange(0, 4).Draw(rt, "dies") == 0,
				after: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 40}).Draw(rt, "after")) * time.Second,
				pick:  rapid.IntRange(0, 1<<20).Draw(rt, "pick"),
			}
		}), 1, 60).Draw(rt, "steps")
		graceful := rapid.Bool().Draw(rt, "graceful")

		var problems []string
		problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		synctest.Test(t, func(t *testing.T) {
			opts := []eventbus.Option{eventbus.WithRetry(retry(3, 2*time.Second)), eventbus.WithCircuit(eventbus.MinEvents(3))}
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			bus, _ := startBus(t, opts...)
			r := &togetherRecord{
				handled: map[[2]int]int{}, last: map[string]int{}, inside: map[string]int{},
				replayed: map[int]bool{}, failed: map[[2]int]int{}, events: map[int]*togetherStep{},
			}
			subs := make([]*eventbus.Subscription, subscriptions)
			gone := make([]bool, subscriptions)
			targets := make(map[int][]int) // of each event
			for i := range subs {
				subs[i] = mustSubscribe(t, bus, "*", r.handler(i), eventbus.Named(fmt.Sprint(i)), whenOpen[i], eventbus.HoldCapacity(capacity))
			}
			events := 0
			var scheduled []eventbus.EventID
			numbers := make(map[eventbus.EventID]int)
			cancelled := make(map[int]bool)
			prepare := func(s *togetherStep) eventbus.Publication {
				events++
				r.mu.Lock()
				r.events[events] = s
				r.mu.Unlock()
				for i := range subs {
					if !gone[i] {
						targets[events] = append(targets[events], i)
					}
				}
				return eventbus.Publication{Type: "x", Payload: events, Options: []eventbus.PublishOption{eventbus.Key(s.key), eventbus.After(s.after)}}
			}
			check := func(err error, gone bool) {
				if (err != nil) != gone {
					problem("control: %v", err)
				}
			}
			for i := range steps {
				s := &steps[i]
				sub := subs[s.sub]
				switch s.op {
				case "publish":
					p := prepare(s)
					id := mustPublish(t, bus, p.Type, p.Payload, p.Options...)
					numbers[id] = events
					if s.after > 0 {
						scheduled = append(scheduled, id)
					}
				case "batch":
					var batch []eventbus.Publication
					for range 1 + s.pick%8 {
						batch = append(batch, prepare(s))
					}
					if _, err := bus.PublishBatch(t.Context(), batch); err != nil {
						problem("batch: %v", err)
					}
				case "sleep":
					time.Sleep(time.Duration(s.pick%40_000) * time.Millisecond)
				case "pause":
					check(sub.Pause(), gone[s.sub])
				case "resume":
					check(sub.Resume(), gone[s.sub])
				case "until":
					check(sub.HoldUntil(time.Now().Add(time.Duration(1+s.pick%60)*time.Second)), gone[s.sub])
				case "trip":
					check(sub.Trip(), gone[s.sub])
				case "reset":
					check(sub.Reset(), gone[s.sub])
				case "cancel":
					if len(scheduled) > 0 {
						id := scheduled[s.pick%len(scheduled)]
						if bus.Cancel(t.Context(), id) == nil {
							cancelled[numbers[id]] = true
						}
					}
				case "replay":
					if all := letters(t, bus); len(all) > 0 {
						l := all[s.pick%len(all)]
						r.mu.Lock()
						r.replayed[l.Event.Payload.(int)] = true
						r.mu.Unlock()
						_ = bus.DLQ().Replay(t.Context(), l.ID)
					}
				case "unsubscribe":
					if s.pick%8 == 0 {
						sub.Unsubscribe()
						gone[s.sub] = true
					}
				}
			}
			if graceful {
				time.Sleep(time.Minute)
				for i, s := range subs {
					if !gone[i] {
						check(s.Resume(), false)
					}
				}
				time.Sleep(4 * time.Hour)
				m := bus.Metrics()
				if n := m.Held + m.Scheduled + m.QueueDepth + m.WaitingRetries + m.RunningDispatches; n > 0 {
					problem("stuck: %+v", m.Ledger)
				}
				if !m.Ledger.Balanced() {
					problem("unbalanced at rest: %+v", m.Ledger)
				}
			}
			err := bus.Shutdown(context.Background())
			if err != nil && (graceful || !leftHeld(err)) {
				problem("shutdown: %v", err)
			}
			l := bus.Metrics().Ledger
			if !l.Balanced() {
				problem("unbalanced: %+v", l)
			}
			if l.Held+l.Queued+l.Running+l.Waiting+l.Scheduled != 0 {
				problem("left: %+v", l)
			}
			named := make(map[[2]int]int) // in letters
			for _, l := range letters(t, bus) {
				for _, name := range append([]string{l.Subscription}, l.NotReached...) {
					named[[2]int{l.Event.Payload.(int), int(name[0] - '0')}]++
				}
			}
			dropped := int64(0)
			for n := 1; n <= events; n++ {
				for _, i := range targets[n] {
					at := [2]int{n, i}
					switch total := r.handled[at] + named[at]; {
					case cancelled[n] && total != 0:
						problem("event %d was cancelled, and %d times at %d", n, total, i)
					case cancelled[n]:
					case total == 0 && whenOpen[i] == eventbus.DropWhenOpen:
						dropped++
					case total != 1:
						problem("event %d at %d: handled %d times, in %d letters", n, i, r.handled[at], named[at])
					}
				}
			}
			if dropped != l.Dropped {
				problem("%d are missing, and %d were dropped", dropped, l.Dropped)
			}
			if int64(len(cancelled)) != l.Cancelled {
				problem("cancelled %d, in the ledger %d", len(cancelled), l.Cancelled)
			}
			r.mu.Lock()
			problems = append(problems, r.problems...)
			r.mu.Unlock()
		})
		require.Empty(rt, problems)
	})
}
