package eventbus

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

type codeError string

func (e codeError) Error() string { return string(e) }
func (e codeError) Code() string  { return string(e) }

// spentStore notes what a store is shown of a dispatch's budgets.
type spentStore struct {
	*spyStore
	spent [][]spent
}

func (s *spentStore) settle(d *dispatch, what settlement) *DeadLetter {
	var now []spent
	if d.story != nil && d.rare() != nil {
		now = append(now, d.rare().spent...)
	}
	s.spent = append(s.spent, now)
	return s.spyStore.settle(d, what)
}

// What is spent passes the seam with the rest of the progress, and what comes back
// from there is gone on with.
func TestA8_WhatRulesHaveSpentPassesTheSeam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := []RetryRule{
			{Match: ErrorMatch{Codes: []string{"X"}}, Attempts: 4, BaseDelay: time.Second, BackoffMultiplier: 2, Jitter: NoJitter},
			{Match: ErrorMatch{Codes: []string{"Y"}}, Attempts: 9},
		}
		b, spy := newSpied(t, WithRetryRules(rules[1]))
		store := &spentStore{spyStore: spy}
		b.store = store
		script := []error{codeError("X"), codeError("X"), errors.New("other"), codeError("X"), codeError("Y")}
		s, err := b.Subscribe("a", func(context.Context, Event) error {
			next := script[0]
			script = script[1:]
			return next
		}, RetryRules(rules...))
		require.NoError(t, err)
		other, err := b.Subscribe("b", func(context.Context, Event) error { return codeError("Y") })
		require.NoError(t, err)
		began := time.Now()
		left := func(eventType string, attempt int32, what ...spent) *dispatch {
			return &dispatch{
				opening: opening{id: b.ids.Next(began.UnixMilli()), to: b.routes.Lookup(eventType), wall: 0},
				attempt: attempt,
				story:   &story{rest: &rest{rare: &rarities{spent: what}}},
			}
		}
		spy.left = []*dispatch{
			left("a", 1, spent{of: s, rule: 0, failures: 1, previous: time.Second}),
			left("b", 8, spent{rule: 0, failures: 8}),
		}
		require.NoError(t, b.Start(t.Context()))
		require.NoError(t, b.Shutdown(t.Context()))
		page, err := b.DLQ().List(t.Context(), LetterQuery{})
		require.NoError(t, err)
		require.Len(t, page.Letters, 2)
		byType := map[string]DeadLetter{}
		for _, l := range page.Letters {
			byType[l.Event.Type] = l
		}
		require.Equal(t, 9, byType["b"].Attempts)
		require.Equal(t, &RuleRef{}, byType["b"].Rule)
		require.Equal(t, 5, byType["a"].Attempts)
		require.Equal(t, &RuleRef{Subscription: s.ID()}, byType["a"].Rule)
		// 2 s and 4 s by the rule, 1 s by the policy.
		require.Equal(t, began.UTC().Add(7*time.Second), byType["a"].DiedAt)
		var ofA [][]spent
		for _, now := range store.spent {
			if len(now) > 0 && now[0].of == s {
				ofA = append(ofA, now)
			}
		}
		require.Equal(t, [][]spent{
			{{s, 0, 2, 2 * time.Second}},
			{{s, 0, 3, 4 * time.Second}},
			{{s, 0, 3, 4 * time.Second}},
			{{s, 0, 4, 4 * time.Second}},
		}, ofA)
		require.NotNil(t, other)
	})
}

// A change is forgotten with the last dispatch that was published before it.
func TestP5_EarlierSettingsAreNotKept(t *testing.T) {
	b, err := New()
	require.NoError(t, err)
	s, err := b.Subscribe("a", func(context.Context, Event) error { return nil })
	require.NoError(t, err)
	var eras []weak.Pointer[era]
	func() {
		first := b.routes.Lookup("a")
		for i := range 5 {
			eras = append(eras, weak.Make(b.era.Load()))
			require.NoError(t, s.SetRetry(MaxRetries(i)))
		}
		runtime.GC()
		require.NotNil(t, eras[0].Value(), "a dispatch may go by it")
		require.Equal(t, 3, b.policy(first).MaxRetries)
	}()
	runtime.GC()
	for i := range eras {
		require.Nil(t, eras[i].Value(), "era %d", i)
	}
	require.Equal(t, 4, b.policy(b.routes.Lookup("a")).MaxRetries)
}

// A dispatch that does not fail pays nothing for rules.
func TestP7_SuccessCostsNothing(t *testing.T) {
	require.LessOrEqual(t, publishAllocs(t, WithRetryRules(RetryRule{Match: ErrorMatch{Codes: []string{"*"}}, Attempts: 3})), publishAllocs(t)+0.01)
}

// publishAllocs is what an event costs from Publish until it is handled.
func publishAllocs(t *testing.T, opts ...Option) float64 {
	t.Helper()
	b, err := New(opts...)
	require.NoError(t, err)
	_, err = b.Subscribe("a", func(context.Context, Event) error { return nil })
	require.NoError(t, err)
	for range 10_000 {
		if _, err := b.Publish(t.Context(), "a", nil); err != nil {
			t.Fatal(err)
		}
	}
	w := b.openWorker()
	defer b.closeWorker(w)
	return testing.AllocsPerRun(5000, func() {
		if b.lanes.TryTake(&w.places[0].opening) {
			b.run(w, func(*opening) bool { return false })
		}
	})
}
