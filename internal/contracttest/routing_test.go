package contracttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// An option by value is one by pointer too, and a pointer may be nil.
func TestR3_NilPointersAsOptions(t *testing.T) {
	bus, _ := newBus(t)
	var (
		policy *eventbus.RetryPolicy
		jitter *eventbus.Jitter
		open   *eventbus.WhenOpen
		mock   *clock.Mock
	)
	for _, opts := range [][]eventbus.SubscribeOption{
		{eventbus.Retry(policy)}, {eventbus.Retry(jitter)}, {open},
	} {
		_, err := bus.Subscribe("a", ok, opts...)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	}
	for _, opt := range []eventbus.Option{eventbus.WithRetry(policy), eventbus.WithClock(mock)} {
		_, err := eventbus.New(opt)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	}
}

func with(opts ...eventbus.SubscribeOption) []eventbus.SubscribeOption { return opts }

func TestR3_ARefusedSubscriptionChangesNothing(t *testing.T) {
	null := func(eventbus.Handler) eventbus.Handler { return nil }
	var noOption eventbus.SubscribeOption
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "a.*", ok, eventbus.Named("first"))
	plan := bus.Explain("a.b")
	for name, c := range map[string]struct {
		pattern string
		handler eventbus.Handler
		opts    []eventbus.SubscribeOption
		want    error
		says    string
	}{
		"empty segment":         {"a..b", ok, nil, eventbus.ErrInvalidPattern, "byte 2"},
		"leading dot":           {".a", ok, nil, eventbus.ErrInvalidPattern, "byte 0"},
		"open class":            {"a.[bc", ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"open braces":           {"a.{b,c", ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"white space":           {"a b", ok, nil, eventbus.ErrInvalidPattern, "byte 1"},
		"NUL":                   {"a.\x00", ok, nil, eventbus.ErrInvalidPattern, "byte 2"},
		"invalid UTF-8":         {"\xff", ok, nil, eventbus.ErrInvalidPattern, "byte 0"},
		"too long":              {strings.Repeat("a", 1<<20), ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"too many alternatives": {strings.Repeat("{a,b}", 20), ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"nil handler":           {"a.b", nil, nil, eventbus.ErrNilHandler, "nil handler"},
		"nil typed handler":     {"a.b", eventbus.Typed[int](nil), nil, eventbus.ErrNilHandler, "nil handler"},
		"middleware makes none": {"a.b", ok, with(eventbus.Use(null)), eventbus.ErrNilHandler, "middleware"},
		"nil middleware":        {"a.b", ok, with(eventbus.Use(nil)), eventbus.ErrInvalidOption, "Use"},
		"nil option":            {"a.b", ok, with(noOption), eventbus.ErrInvalidOption, "option 1"},
		"duplicate name":        {"a.b", ok, with(eventbus.Named("first")), eventbus.ErrDuplicateName, `"first"`},
		"empty name":            {"a.b", ok, with(eventbus.Named("")), eventbus.ErrInvalidOption, "Named"},
		"long name":             {"a.b", ok, with(eventbus.Named(strings.Repeat("n", 256))), eventbus.ErrInvalidOption, "255"},
		"name with a NUL":       {"a.b", ok, with(eventbus.Named("a\x00")), eventbus.ErrInvalidOption, "control"},
		"name not UTF-8":        {"a.b", ok, with(eventbus.Named("\xff")), eventbus.ErrInvalidOption, "UTF-8"},
		"no timeout":            {"a.b", ok, with(eventbus.Timeout(0)), eventbus.ErrInvalidOption, "Timeout(0s)"},
		"negative timeout":      {"a.b", ok, with(eventbus.Timeout(-1)), eventbus.ErrInvalidOption, "Timeout(-1ns)"},
		"bad policy":            {"a.b", ok, with(eventbus.Retry(eventbus.MaxRetries(-2))), eventbus.ErrInvalidOption, "Retry.MaxRetries"},
		"bad circuit":           {"a.b", ok, with(eventbus.Circuit(eventbus.MinEvents(0))), eventbus.ErrInvalidOption, "Circuit.MinEvents"},
		"bad WhenOpen":          {"a.b", ok, with(eventbus.WhenOpen(99)), eventbus.ErrInvalidOption, "WhenOpen"},
		"good and then bad":     {"a.b", ok, with(eventbus.Named("x"), eventbus.Timeout(0)), eventbus.ErrInvalidOption, "Timeout"},
	} {
		s, err := bus.Subscribe(c.pattern, c.handler, c.opts...)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.says, name)
		require.Less(t, len(err.Error()), 700, name)
		require.Nil(t, s, name)
		require.Equal(t, plan, bus.Explain("a.b"), name)
		require.Len(t, bus.Metrics().Subscriptions, 1, name)
		if errors.Is(c.want, eventbus.ErrInvalidPattern) {
			var offence *eventbus.PatternError
			require.ErrorAs(t, err, &offence, name)
			require.NotEmpty(t, offence.Reason, name)
		}
		if errors.Is(c.want, eventbus.ErrInvalidOption) {
			var offence *eventbus.OptionError
			require.ErrorAs(t, err, &offence, name)
			require.NotEmpty(t, offence.Reason, name)
		}
	}
	// Names that the bus makes up are part of what it is.
	require.Equal(t, "a.b#2", mustSubscribe(t, bus, "a.b", ok).ID())
}

func TestR3_NamesAreFreeAgainAndNeverTaken(t *testing.T) {
	bus, _ := newBus(t)
	s := mustSubscribe(t, bus, "a", ok, eventbus.Named("n"))
	require.Equal(t, "n", s.ID())
	require.Equal(t, "a", s.Pattern())
	s.Unsubscribe()
	mustSubscribe(t, bus, "a", ok, eventbus.Named("n"))

	// A user gives somebody the name that the bus would have made up.
	mustSubscribe(t, bus, "b", ok, eventbus.Named("a#4"))
	mustSubscribe(t, bus, "b", ok, eventbus.Named("a#5"))
	made := mustSubscribe(t, bus, "a", ok)
	require.NotContains(t, []string{"", "n", "a#4", "a#5"}, made.ID())
	require.NotEmpty(t, mustSubscribe(t, bus, "", ok).ID())
}

func TestR3_FormerNamesAreOneOfAKind(t *testing.T) {
	bus, _ := newBus(t)
	s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"), eventbus.Formerly("was"))
	for name, opts := range map[string][]eventbus.SubscribeOption{
		"a name that is":       with(eventbus.Formerly("s")),
		"one taken over":       with(eventbus.Formerly("was")),
		"named as one that is": with(eventbus.Named("was")),
		"its own":              with(eventbus.Named("t"), eventbus.Formerly("t")),
		"twice":                with(eventbus.Formerly("t", "t")),
		"twice, apart":         with(eventbus.Formerly("t"), eventbus.Formerly("t")),
	} {
		_, err := bus.Subscribe("*", ok, opts...)
		require.ErrorIs(t, err, eventbus.ErrDuplicateName, name)
	}
	for _, bad := range []string{"", "a\nb", "\xff", strings.Repeat("n", 256)} {
		_, err := bus.Subscribe("*", ok, eventbus.Formerly("fine", bad))
		var refused *eventbus.OptionError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "Formerly", refused.Option)
	}
	_, err := bus.Subscribe("*", ok, eventbus.Formerly())
	requireOptionError(t, err, "Formerly")
	require.Len(t, bus.Metrics().Subscriptions, 1)
	mustSubscribe(t, bus, "*", ok, eventbus.Named("fine"), eventbus.Formerly("t"))
	s.Unsubscribe()
	mustSubscribe(t, bus, "*", ok, eventbus.Named("was"), eventbus.Formerly("s"))
}

// A name that stands for a nameless subscription is nobody's former name.
func TestR3_AMadeUpNameIsNoFormerOne(t *testing.T) {
	bus, _ := newBus(t)
	mustSubscribe(t, bus, "*", ok, eventbus.Named("first"), eventbus.Formerly("a.b#2"))
	s := mustSubscribe(t, bus, "a.b", ok)
	require.NotEqual(t, "a.b#2", s.ID())
	require.Same(t, s, bus.Subscription(s.ID()))
}

// Every name finds its subscription, and nobody else's, whatever has come and gone, also
// one that looks as if it had been made up.
func TestR3_NamesFindTheirSubscriptions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bus, err := eventbus.New()
		require.NoError(t, err)
		var order []*eventbus.Subscription
		owners := map[string]*eventbus.Subscription{} // nil for a name that is free again
		anyName := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("a#%d", rapid.IntRange(1, 40).Draw(t, "number"))
		})
		subscribe := func(t *rapid.T) {
			var opts []eventbus.SubscribeOption
			var names []string
			if rapid.Bool().Draw(t, "named") {
				names = append(names, anyName.Draw(t, "name"))
				opts = append(opts, eventbus.Named(names[0]))
			}
			if former := rapid.SliceOfN(anyName, 0, 2).Draw(t, "formerly"); len(former) > 0 {
				names = append(names, former...)
				opts = append(opts, eventbus.Formerly(former...))
			}
			taken := false
			for i, name := range names {
				taken = taken || owners[name] != nil || slices.Contains(names[:i], name)
			}
			s, err := bus.Subscribe("a", ok, opts...)
			if taken {
				require.ErrorIs(t, err, eventbus.ErrDuplicateName)
				return
			}
			require.NoError(t, err)
			require.Nil(t, owners[s.ID()], "%s was somebody's", s.ID())
			order = append(order, s)
			for _, name := range append(names, s.ID()) {
				owners[name] = s
			}
		}
		unsubscribe := func(i int) {
			order[i].Unsubscribe()
			for name, s := range owners {
				if s == order[i] {
					owners[name] = nil
				}
			}
			order = slices.Delete(order, i, i+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"subscribe":       subscribe,
			"subscribe, too":  subscribe,
			"subscribe again": subscribe,
			"unsubscribe": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip()
				}
				unsubscribe(rapid.IntRange(0, len(order)-1).Draw(t, "which"))
			},
			"unsubscribe many": func(*rapid.T) {
				for len(order) > 2 {
					unsubscribe(1)
				}
			},
			"": func(t *rapid.T) {
				for name, s := range owners {
					if found := bus.Subscription(name); s != nil {
						require.Same(t, s, found, name)
					} else {
						require.False(t, found.Exists(), name)
					}
				}
				for _, name := range []string{"", "#", "a", "a#", "a#0", "a#01", "a#+1", "b#1", "a#99999999999999999999", "a##1"} {
					require.False(t, bus.Subscription(name).Exists(), name)
				}
				var ids []string
				for _, s := range order {
					ids = append(ids, s.ID())
				}
				var listed []string
				for _, s := range bus.Metrics().Subscriptions {
					listed = append(listed, s.Subscription)
				}
				require.Equal(t, ids, listed)
			},
		})
	})
}

func TestR4_SubscriptionsAreVisitedInTheOrderInWhichTheyWereMade(t *testing.T) {
	bus, _ := startBus(t)
	var visited []int
	patterns := []string{"**", "order.*", "order.placed", "*.placed", "", "{order,user}.placed", "order.placed", "order.p[la]*", "*", "order.placed.**"}
	var want []int
	for i := range 50 {
		pattern := patterns[i%len(patterns)]
		mustSubscribe(t, bus, pattern, func(context.Context, eventbus.Event) error {
			visited = append(visited, i)
			return nil
		})
		want = append(want, i)
	}
	_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.NoError(t, err)
	require.Equal(t, want, visited)
	shutdown(t, bus)
}

func TestR5_AnEventGoesToTheSubscriptionsThatWereThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls journal[string]
		note := func(name string) eventbus.Handler {
			return func(context.Context, eventbus.Event) error {
				calls.add(name)
				return nil
			}
		}
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			calls.add("first")
			if calls.len() == 1 { // in the middle of the dispatch
				mustSubscribe(t, bus, "x", note("late"))
			}
			return nil
		})
		mustSubscribe(t, bus, "x", note("second"))
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		require.Equal(t, []string{"first", "second"}, calls.all())
		mustPublish(t, bus, "x", nil)
		shutdown(t, bus)
		require.Equal(t, []string{"first", "second", "first", "second", "late"}, calls.all())
	})
}

func TestR5_WaitingWorkOfAnEndedSubscriptionIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		calls := 0
		gone := mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls++; return nil }, eventbus.Named("gone"))
		stays := 0
		id := mustPublish(t, bus, "x", 1)
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { stays++; return nil }, eventbus.Named("stays"))
		both := mustPublish(t, bus, "x", 2)
		gone.Unsubscribe()
		gone.Unsubscribe()
		afterwards := mustPublish(t, bus, "x", 3)
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
		require.Zero(t, calls)
		require.Equal(t, 2, stays)
		all := letters(t, bus)
		require.Len(t, all, 2)
		for i, want := range []eventbus.EventID{both, id} { // newest first
			require.Equal(t, want, all[i].Event.ID)
			require.Equal(t, eventbus.ReasonUnsubscribed, all[i].Reason)
			require.Equal(t, "gone", all[i].Subscription)
			require.Zero(t, all[i].Attempts)
			require.Empty(t, all[i].Failures)
			require.NotEqual(t, afterwards, all[i].Event.ID)
		}
	})
}

func TestR5_ARetryOfAnEndedSubscriptionKeepsItsStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls, others := 0, 0
		s := mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls++; return errBoom },
			eventbus.Named("gone"), eventbus.Retry(retry(9, time.Minute)))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { others++; return nil }, eventbus.Named("after"))
		mustPublish(t, bus, "x", nil)
		time.Sleep(90 * time.Second)
		synctest.Wait()
		require.Equal(t, 2, calls)
		s.Unsubscribe()
		shutdown(t, bus)
		require.Equal(t, 2, calls)
		require.Equal(t, 1, others)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
		require.Equal(t, "gone", l.Subscription)
		require.Equal(t, 2, l.Attempts)
		require.Len(t, l.Failures, 2)
	})
}

// After Unsubscribe has returned, no call starts but those that a worker had
// begun already: at most one for each.
func TestR5_UnsubscribeUnderLoad(t *testing.T) {
	const workers, publishers, rounds = 4, 60, 50
	bus, _ := startBus(t, eventbus.WithConcurrency(workers), eventbus.WithQueueCapacity(256))
	var stop atomic.Bool
	var wg, subscribers sync.WaitGroup
	var published, handled atomic.Int64
	mustSubscribe(t, bus, "load.*", func(context.Context, eventbus.Event) error { handled.Add(1); return nil }, eventbus.Named("stays"))
	for i := range publishers {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := bus.Publish(context.Background(), fmt.Sprintf("load.%d", i%8), nil); err == nil {
					published.Add(1)
				}
			}
		})
	}
	tooLate := make([]int64, 4)
	for g := range 4 {
		subscribers.Go(func() {
			for round := range rounds {
				var ended atomic.Bool
				var after atomic.Int64
				s, err := bus.Subscribe("load.*", func(context.Context, eventbus.Event) error {
					if ended.Load() {
						after.Add(1)
					}
					return nil
				}, eventbus.Named(fmt.Sprintf("s-%d-%d", g, round)))
				if err != nil {
					tooLate[g] = -1
					return
				}
				for begun := handled.Load(); handled.Load() < begun+16; {
					runtime.Gosched()
				}
				s.Unsubscribe()
				ended.Store(true)
				for before := handled.Load(); handled.Load() < before+64; {
					runtime.Gosched()
				}
				tooLate[g] = max(tooLate[g], after.Load())
			}
		})
	}
	subscribers.Wait()
	stop.Store(true)
	wg.Wait()
	shutdown(t, bus)
	for _, n := range tooLate {
		require.GreaterOrEqual(t, n, int64(0))
		require.LessOrEqual(t, n, int64(workers))
	}
	require.Equal(t, published.Load(), handled.Load(), "the one that stayed got all")
	for _, l := range letters(t, bus) {
		require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
		require.NotEqual(t, "stays", l.Subscription)
	}
	require.Len(t, bus.Explain("load.1").Targets, 1)
}

func TestR5_AnUnsubscribeStopsTheNextHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil)
		s.handle[2] = func(context.Context, eventbus.Event) error { s.subscriptions[3].Unsubscribe(); return nil }
		s.publish(t)
		require.Equal(t, []int{0, 1, 2, 4}, s.ran.all())
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, s.bus).Reason)
		shutdown(t, s.bus)
	})
}

// Fault 37: what waits for a retry, or for Start, has its targets already.
func TestFault37_PendingEventsDoNotGetNewSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		n, late := 0, 0
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			if n++; n == 1 {
				return errBoom
			}
			return nil
		}, eventbus.Retry(retry(1, time.Minute)))
		mustPublish(t, bus, "x", nil) // before Start
		lateHandler := func(context.Context, eventbus.Event) error { late++; return nil }
		mustSubscribe(t, bus, "x", lateHandler)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait() // waits for its retry
		mustSubscribe(t, bus, "x", lateHandler)
		shutdown(t, bus)
		require.Equal(t, 2, n)
		require.Zero(t, late)
	})
}

func TestFault28_AHandlerMayUnsubscribeItselfAndOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls journal[string]
		var self, other *eventbus.Subscription
		self = mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			calls.add("self")
			self.Unsubscribe()
			other.Unsubscribe()
			return nil
		})
		other = mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls.add("other"); return nil })
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls.add("third"); return nil })
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		mustPublish(t, bus, "x", nil)
		shutdown(t, bus)
		require.Equal(t, []string{"self", "third", "third"}, calls.all())
		require.Equal(t, other.ID(), oneLetter(t, bus).Subscription)
	})
}

func TestFault16_UnsubscribingTwiceOrAfterShutdown(t *testing.T) {
	bus, _ := startBus(t)
	s := mustSubscribe(t, bus, "x", ok)
	again := mustSubscribe(t, bus, "x", ok)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(s.Unsubscribe)
	}
	wg.Wait()
	require.Len(t, bus.Explain("x").Targets, 1)
	shutdown(t, bus)
	again.Unsubscribe()
	again.Unsubscribe()
	require.Empty(t, bus.Explain("x").Targets)
	(*eventbus.Subscription)(nil).Unsubscribe()
}

// Wildcards and separators of other systems would match nothing: the error has the pattern that was meant.
func TestR3_PatternsOfOtherSystems(t *testing.T) {
	bus, _ := newBus(t)
	for pattern, meant := range map[string]string{
		">":                 "**",
		"order.>":           "order.**",
		"order.#":           "order.**",
		"#.created":         "**.created",
		"order.+.created":   "order.*.created",
		"order/*":           "order.*",
		"order:*":           "order.*",
		"order/#":           "order.**",
		"*:created":         "*.created",
		"shop/+/order/+":    "shop.*.order.*",
		"shop.order/**":     "shop.order.**",
		"{order,cart}:*":    "{order,cart}.*",
		"order/created.*/x": "order.created.*.x",
	} {
		_, err := bus.Subscribe(pattern, ok)
		var bad *eventbus.PatternError
		require.ErrorAs(t, err, &bad, pattern)
		require.Contains(t, bad.Reason, fmt.Sprintf("%q", meant), pattern)
		require.Empty(t, bus.Metrics().Subscriptions)
		_, err = bus.Subscribe(meant, ok)
		require.NoError(t, err, "what it says is right")
		for _, s := range bus.Metrics().Subscriptions {
			bus.Subscription(s.Subscription).Unsubscribe()
		}
	}
}

// These characters are part of a type where they are no wildcard and beside none.
func TestR3_CharactersOfOtherSystems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var got journal[string]
		for _, pattern := range []string{"a/b", "a:b.*", "c+", "d#1.**", "x>y", "http://*.org"} {
			mustSubscribe(t, bus, pattern, func(_ context.Context, e eventbus.Event) error { got.add(e.Type); return nil })
		}
		want := []string{"a/b", "a:b.c", "c+", "d#1.e.f", "x>y"}
		for _, typ := range want {
			mustPublish(t, bus, typ, 1)
		}
		shutdown(t, bus)
		require.ElementsMatch(t, want, got.all())
	})
}
