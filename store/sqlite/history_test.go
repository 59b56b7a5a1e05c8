package sqlite_test

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

func TestStore_History(t *testing.T) {
	path := newPath(t)
	mock := clock.NewMock()
	mock.Set(time.Date(2026, 11, 24, 10, 0, 0, 5, time.UTC))
	p := begin(t, path, sqlite.WithHistory(time.Hour), eventbus.WithClock(mock))
	fails := true
	p.handles("mail", func(payload string) error {
		if payload == "dies" && fails {
			return errPermanent
		}
		return nil
	}, eventbus.Concurrency(1))
	p.start()
	began := mock.Now().UTC()
	handled := p.publish("x", eventbus.Key("k"))
	dead := p.publish("dies")
	scheduled := p.publish("later", eventbus.After(time.Minute))
	cancelled := p.publish("never", eventbus.After(time.Minute))
	_, err := p.Cancel(t.Context(), cancelled)
	require.NoError(t, err)
	p.eventually("the scheduled event settles", func() bool {
		mock.Add(time.Second)
		stats, err := p.store.Stats(t.Context())
		return err == nil && stats.Unsettled() == 0
	})
	outcomes := func(id eventbus.EventID) (outcomes []sqlite.SettledOutcome) {
		history, err := p.store.History(t.Context(), driver.ID(id))
		require.NoError(t, err)
		for _, s := range history {
			require.Equal(t, driver.ID(id), s.Event)
			require.Equal(t, "order.placed", s.Type)
			require.False(t, s.At.Before(began))
			outcomes = append(outcomes, s.Outcome)
		}
		return outcomes
	}
	history, err := p.store.History(t.Context(), driver.ID(handled))
	require.NoError(t, err)
	require.Len(t, history, 1)
	require.Equal(t, "k", history[0].Key)
	for _, id := range []eventbus.EventID{handled, scheduled, cancelled} {
		require.Equal(t, []sqlite.SettledOutcome{sqlite.OutcomeSettled}, outcomes(id))
	}
	require.Equal(t, []sqlite.SettledOutcome{sqlite.OutcomeDeadLettered}, outcomes(dead))
	fails = false
	require.NoError(t, p.DLQ().Replay(t.Context(), p.list(eventbus.LetterQuery{})[0].ID))
	p.settled()
	require.Equal(t, []sqlite.SettledOutcome{sqlite.OutcomeDeadLettered, sqlite.OutcomeSettled}, outcomes(dead))
	p.end()

	p = begin(t, path, eventbus.WithClock(mock))
	p.handles("mail", nil)
	p.start()
	require.Len(t, outcomes(dead), 2, "it survives the process")
	unknown := p.publish("without the option")
	require.Empty(t, func() []sqlite.SettledOutcome { p.settled(); return outcomes(unknown) }())
	p.end()

	mock.Add(2 * time.Hour)
	p = begin(t, path, sqlite.WithHistory(time.Hour), eventbus.WithClock(mock))
	p.handles("mail", nil)
	p.start()
	last := p.publish("last")
	p.settled()
	require.Empty(t, outcomes(dead), "its retention has ended")
	require.Len(t, outcomes(last), 1)
	p.end()
	_, err = sqlite.Open(t.Context(), path, sqlite.WithHistory(0))
	var bad *sqlite.OptionError
	require.ErrorAs(t, err, &bad)
}
