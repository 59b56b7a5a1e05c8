package contracttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func groupsOf(t *testing.T, bus *eventbus.Bus, q eventbus.LetterQuery) []eventbus.LetterGroup {
	t.Helper()
	groups, err := bus.DLQ().Groups(t.Context(), q)
	require.NoError(t, err)
	return groups
}

func TestL2_GroupsAreWhatLettersDiedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit, eventbus.WithRetry(eventbus.MaxRetries(0)))
		fail := func(_ context.Context, e eventbus.Event) error { return e.Payload.(error) }
		mustSubscribe(t, bus, "a", fail, eventbus.Named("mail"))
		mustSubscribe(t, bus, "b", fail, eventbus.Named("billing"))
		began := time.Now().UTC()
		publish := func(eventType string, err error) {
			mustPublish(t, bus, eventType, err)
			synctest.Wait()
			time.Sleep(time.Minute)
		}
		publish("a", fmt.Errorf("smtp: code 421 after 1.5s"))
		publish("b", &fs.PathError{Op: "open", Path: "/tmp/17", Err: fs.ErrNotExist})
		publish("a", eventbus.Permanent(errors.New("smtp: code 550 after 20s")))
		publish("b", errors.New("smtp: code 421 after 1.5s"))
		publish("b", fmt.Errorf("%w", eventbus.RetryAfter(&fs.PathError{Op: "open", Path: "/tmp/18", Err: fs.ErrNotExist}, time.Hour)))
		publish("a", errors.New("smtp: code 421 after 3s"))
		all := letters(t, bus)
		groups := groupsOf(t, bus, eventbus.LetterQuery{})
		require.Len(t, groups, 3)
		for i, want := range []eventbus.LetterGroup{
			{
				Subscription: "mail", Class: "*errors.errorString", Message: "smtp: code # after #s", Count: 3,
				First: began, Last: began.Add(5 * time.Minute), Newest: all[0].ID,
			},
			{
				Subscription: "billing", Class: "*fs.PathError", Message: "open /tmp/#: file does not exist", Count: 2,
				First: began.Add(time.Minute), Last: began.Add(4 * time.Minute), Newest: all[1].ID,
			},
			{
				Subscription: "billing", Class: "*errors.errorString", Message: "smtp: code # after #s", Count: 1,
				First: began.Add(3 * time.Minute), Last: began.Add(3 * time.Minute), Newest: all[2].ID,
			},
		} {
			want.Fingerprint = groups[i].Fingerprint
			require.Equal(t, want, groups[i])
			page := list(t, bus, eventbus.LetterQuery{Fingerprint: want.Fingerprint})
			require.Len(t, page.Letters, want.Count)
			require.Equal(t, want.Count, page.Total)
			require.Equal(t, want.Fingerprint, page.Letters[0].Fingerprint)
		}
		// Stable across processes: it is stored, and sent about.
		require.Equal(t, "17f7c0b786f2bc8bf37b63dc42ea852f", groups[1].Fingerprint)

		require.Len(t, groupsOf(t, bus, eventbus.LetterQuery{Subscription: "billing"}), 2)
		require.Empty(t, groupsOf(t, bus, eventbus.LetterQuery{Fingerprint: groups[0].Fingerprint, Subscription: "billing"}))
		report, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Fingerprint: groups[0].Fingerprint})
		require.NoError(t, err)
		require.Equal(t, 3, report.Purged)
		require.Equal(t, groups[1:], groupsOf(t, bus, eventbus.LetterQuery{}))
		shutdown(t, bus)
	})
}

// A letter without a failure has a group too, by its reason; and its last failure
// counts, whatever the ones before were.
func TestL2_GroupsOfLettersWithoutAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit, eventbus.WithConcurrency(1))
		s := mustSubscribe(t, bus, "a", ok, eventbus.Named("s"))
		release := blockWorker(t, bus)
		mustPublish(t, bus, "a", 1)
		mustPublish(t, bus, "a", 2)
		s.Unsubscribe()
		release()
		synctest.Wait()
		groups := groupsOf(t, bus, eventbus.LetterQuery{})
		require.Len(t, groups, 1)
		require.Equal(t, "unsubscribed", groups[0].Message)
		require.Empty(t, groups[0].Class)
		require.Equal(t, 2, groups[0].Count)
		mustSubscribe(t, bus, "b", failing(eventbus.Permanent(errors.New("unsubscribed"))), eventbus.Named("s"))
		mustPublish(t, bus, "b", nil)
		synctest.Wait()
		require.Len(t, groupsOf(t, bus, eventbus.LetterQuery{}), 2, "an error of that text is another group")
		shutdown(t, bus)
	})
}

type hostileLetterError struct{}

func (hostileLetterError) Error() string      { panic("no") }
func (hostileLetterError) Unwrap() error      { panic("no") }
func (hostileLetterError) Is(error) bool      { panic("no") }
func (*nilError) Error() string               { return "nil" }
func (uncomparableError) Error() string       { return "uncomparable" }
func (e wrapperError) Error() string          { return e.err.Error() }
func (e wrapperError) Unwrap() error          { return e.err }
func (e genericLetterError[T]) Error() string { return "generic" }

type (
	nilError                  struct{}
	uncomparableError         []int
	wrapperError              struct{ err error }
	genericLetterError[T any] struct{}
)

func TestL2_Classes(t *testing.T) {
	for name, c := range map[string]struct {
		handler eventbus.Handler
		class   string
	}{
		"plain":          {failing(errDead), "*errors.errorString"},
		"wrapped":        {failing(fmt.Errorf("a: %w", fmt.Errorf("b: %w", &fs.PathError{Err: errDead}))), "*fs.PathError"},
		"wrapped twice":  {failing(fmt.Errorf("%w %w", eventbus.Permanent(&fs.PathError{Err: errDead}), errDead)), "*fs.PathError"},
		"joined":         {failing(errors.Join(nil, &fs.PathError{Err: errDead}, errDead)), "*fs.PathError"},
		"nothing inside": {failing(fmt.Errorf("%w", error(nil))), "*fmt.wrapError"},
		"nobody inside":  {failing(fmt.Errorf("%w %w", nil, nil)), "*fmt.wrapErrors"},
		"own wrapper":    {failing(wrapperError{&fs.PathError{Err: errDead}}), "contracttest.wrapperError"},
		"panic":          {func(context.Context, eventbus.Event) error { panic(fmt.Errorf("%w", errDead)) }, "*eventbus.PanicError"},
		"hostile":        {failing(hostileLetterError{}), "contracttest.hostileLetterError"},
		"in hostile":     {failing(fmt.Errorf("%w", hostileLetterError{})), "contracttest.hostileLetterError"},
		"typed nil":      {failing((*nilError)(nil)), "*contracttest.nilError"},
		"uncomparable":   {failing(uncomparableError{1}), "contracttest.uncomparableError"},
		"generic":        {failing(genericLetterError[int]{}), "contracttest.genericLetterError[int]"},
		"timeout":        {func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }, "*eventbus.TimeoutError"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
				mustSubscribe(t, bus, "a", c.handler)
				_, _ = bus.PublishAndWait(t.Context(), "a", nil)
				require.Equal(t, c.class, oneLetter(t, bus).Failures[0].Class)
				require.Equal(t, c.class, groupsOf(t, bus, eventbus.LetterQuery{})[0].Class)
				shutdown(t, bus)
			})
		})
	}
}

// Each of its parts makes another group, and where one ends and the next begins.
func TestL2_FingerprintsTellGroupsApart(t *testing.T) {
	const maxMessage = 1 << 10
	seen := make(map[string]eventbus.LetterGroup)
	for _, l := range []eventbus.DeadLetter{
		{Subscription: "a", Reason: eventbus.ReasonShutdown},
		{Subscription: "a", Reason: eventbus.ReasonExpired},
		{Subscription: "b", Reason: eventbus.ReasonExpired},
		{Subscription: "a", Failures: []eventbus.Failure{{Class: "c", Error: "expired"}}},
		{Subscription: "a", Failures: []eventbus.Failure{{Class: "", Error: "expired"}}},
		{Subscription: "a", Failures: []eventbus.Failure{{Class: "c", Error: "d"}}},
		{Subscription: "a c", Failures: []eventbus.Failure{{Class: "", Error: "d"}}},
		{Subscription: "a", Failures: []eventbus.Failure{{Class: "c d", Error: ""}}},
		{Subscription: "a", Failures: []eventbus.Failure{{Class: "c", Error: strings.Repeat("x", maxMessage)}}},
		{Subscription: "a", Failures: []eventbus.Failure{{Class: "c", Error: strings.Repeat("x", maxMessage) + "y"}}},
	} {
		g := l.Group()
		require.Regexp(t, "^[0-9a-f]{32}$", g.Fingerprint)
		require.LessOrEqual(t, len(g.Message), maxMessage+len("…"))
		require.NotContains(t, seen, g.Fingerprint, "%+v and %+v", g, seen[g.Fingerprint])
		seen[g.Fingerprint] = g
	}
}

func TestL2_GroupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit, eventbus.WithDeadLetterCapacity(20_000), eventbus.WithRetry(eventbus.MaxRetries(0)))
		letter := func(n int) string { // no digits, and no two alike
			text := []byte("error ")
			for range 4 {
				text = append(text, byte('g'+n%20))
				n /= 20
			}
			return string(text)
		}
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error { return errors.New(letter(e.Payload.(int))) })
		for i := range 10_500 {
			mustPublish(t, bus, "a", i)
		}
		synctest.Wait()
		groups := groupsOf(t, bus, eventbus.LetterQuery{})
		require.Len(t, groups, 10_001)
		others := groups[10_000]
		require.Equal(t, 500, others.Count)
		require.Empty(t, others.Fingerprint)
		require.Empty(t, others.Subscription)
		newest := letters(t, bus)
		for i, l := range newest[:10] {
			require.Equal(t, l.ID, groups[i].Newest, "ties: the newest first")
		}
		require.Equal(t, groups, groupsOf(t, bus, eventbus.LetterQuery{}))
		shutdown(t, bus)
	})
}

func TestL2_BadGroupQueries(t *testing.T) {
	bus, _ := startBus(t)
	for option, q := range map[string]eventbus.LetterQuery{
		"LetterQuery.Limit":       {Limit: 1},
		"LetterQuery.Before":      {Before: eventbus.LetterID{1}},
		"LetterQuery.Fingerprint": {Fingerprint: "00000000000000000000000000000ABC"},
		"LetterQuery.Reason":      {Reason: "bored"},
	} {
		_, err := bus.DLQ().Groups(t.Context(), q)
		requireOptionError(t, err, option)
	}
	_, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Fingerprint: "17"})
	requireOptionError(t, err, "LetterQuery.Fingerprint")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = bus.DLQ().Groups(ctx, eventbus.LetterQuery{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = (*eventbus.Bus)(nil).DLQ().Groups(t.Context(), eventbus.LetterQuery{})
	require.ErrorIs(t, err, eventbus.ErrUninitialized)
	shutdown(t, bus)
}

// Observers are given the failure that the letter has.
func TestO2_ObserversAreToldTheClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended journal[eventbus.EndedAttempt]
		var retried journal[eventbus.ScheduledRetry]
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(1)), eventbus.WithObserver(eventbus.Observer{
			AttemptEnded: ended.add, RetryScheduled: retried.add,
		}))
		mustSubscribe(t, bus, "a", failing(&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, "*fs.PathError", l.Failures[0].Class)
		require.Equal(t, l.Failures[0], retried.all()[0].Failure)
		require.Equal(t, l.Failures[0], *ended.all()[0].Failure)
		require.Equal(t, l.Failures[1], *ended.all()[1].Failure)
		shutdown(t, bus)
	})
}
