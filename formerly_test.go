package eventbus_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A replay that looks for a name finds who has taken it over.
func TestS3_FormerlyTakesOverTheLettersOfAName(t *testing.T) {
	bus, _ := startBus(t)
	old := mustSubscribe(t, bus, "x", failing(eventbus.Permanent(errCore)), eventbus.Named("old"))
	older := mustSubscribe(t, bus, "y", failing(eventbus.Permanent(errCore)), eventbus.Named("older"))
	for _, eventType := range []string{"x", "y"} {
		_, err := bus.PublishAndWait(t.Context(), eventType, nil)
		require.Error(t, err)
	}
	old.Unsubscribe()
	older.Unsubscribe()
	for _, l := range letters(t, bus) {
		require.ErrorIs(t, bus.DLQ().Replay(t.Context(), l.ID), eventbus.ErrNoSubscription)
	}
	got := make(chan string, 2)
	s := mustSubscribe(t, bus, "z", func(_ context.Context, e eventbus.Event) error { got <- e.Type; return nil },
		eventbus.Named("new"), eventbus.Formerly("old"), eventbus.Formerly("older", "oldest"))
	require.Same(t, s, bus.Subscription("old"), "by its former name")
	require.Same(t, s, bus.Subscription("new"))
	for _, l := range letters(t, bus) {
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
	}
	require.ElementsMatch(t, []string{"x", "y"}, []string{<-got, <-got})
	shutdown(t, bus)
}

// Two subscriptions of a letter that have become one get it once.
func TestS3_OneTakesOverSeveralOfALetter(t *testing.T) {
	bus, _ := startBus(t)
	a := mustSubscribe(t, bus, "x", failing(eventbus.Permanent(errCore)), eventbus.Named("a"))
	b := mustSubscribe(t, bus, "x", ok, eventbus.Named("b"))
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.Error(t, err)
	require.Equal(t, []string{"b"}, oneLetter(t, bus).NotReached)
	a.Unsubscribe()
	b.Unsubscribe()
	got := make(chan bool, 10)
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { got <- true; return nil }, eventbus.Formerly("a", "b"))
	require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
	shutdown(t, bus)
	require.Len(t, got, 1)
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
	bRequireOptionError(t, err, "Formerly")
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
