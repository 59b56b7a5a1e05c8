package sqlite_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// withLetters makes a file with letters of the payloads "0", "1" and so on, in this order.
func withLetters(t testing.TB, path string, count int) {
	t.Helper()
	p := begin(t, path, eventbus.WithConcurrency(1))
	p.handles("mail", dies)
	p.start()
	for first := 0; first < count; first += 500 {
		var batch []eventbus.Publication
		for i := first; i < min(first+500, count); i++ {
			batch = append(batch, eventbus.Publication{Type: "order.placed", Payload: fmt.Sprint(i)})
		}
		_, err := p.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
	}
	p.settled().end()
}

func TestRow53_ReplayOfWhatIsGone(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 3)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	all := p.list(eventbus.LetterQuery{})
	require.Len(t, all, 3)
	var replays sync.WaitGroup
	var won atomic.Int64
	for range 8 {
		replays.Go(func() {
			err := p.DLQ().Replay(context.Background(), all[0].ID)
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, eventbus.ErrNotFound) {
				t.Error(err)
			}
		})
	}
	replays.Wait()
	require.EqualValues(t, 1, won.Load())
	require.NoError(t, p.DLQ().Purge(t.Context(), all[1].ID))
	unknown := eventbus.LetterID(eventbus.NewEventID())
	p.settled().crash()

	p = begin(t, path)
	p.handles("mail", nil)
	p.start()
	for _, id := range []eventbus.LetterID{all[0].ID, all[1].ID, unknown} {
		require.ErrorIs(t, p.DLQ().Replay(t.Context(), id), eventbus.ErrNotFound)
		require.ErrorIs(t, p.DLQ().Purge(t.Context(), id), eventbus.ErrNotFound)
		_, err := p.DLQ().Get(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrNotFound)
	}
	require.Len(t, p.list(eventbus.LetterQuery{}), 1)
	require.Empty(t, p.called())
	p.end()
}

// A replay keeps the history of the event, over any number of replays and restarts.
func TestRow55_ReplayLoop(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 1)
	for n := range 3 {
		p := begin(t, path)
		p.handles("mail", dies)
		p.start()
		all := p.list(eventbus.LetterQuery{})
		require.Len(t, all, 1)
		require.Equal(t, n, all[0].Replays)
		require.Len(t, all[0].Failures, n+1)
		require.NoError(t, p.DLQ().Replay(t.Context(), all[0].ID))
		p.settled().crash()
	}
}

// A bulk replay of thousands is interrupted by a crash. Each letter is then replayed or still there,
// and a second bulk replay handles the others.
func TestRow56_BulkReplayAndCrash(t *testing.T) {
	t.Parallel()
	count := 2000
	if testing.Short() {
		count = 600
	}
	path := newPath(t)
	withLetters(t, path, count)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	replayed := make(chan eventbus.ReplayReport, 1)
	go func() {
		// The crash ends it. Without a rate, it may come too late.
		report, _ := p.DLQ().ReplayMatching(context.Background(), eventbus.LetterQuery{All: true}, eventbus.Rate(500))
		replayed <- report
	}()
	p.eventually("a third is replayed", func() bool {
		stats, err := p.store.Stats(context.Background())
		return err == nil && int(stats.Letters) < 2*count/3
	})
	p.crash()
	report := <-replayed
	before := p.called()

	p = begin(t, path)
	p.handles("mail", nil)
	stats, err := p.store.Stats(t.Context())
	require.NoError(t, err)
	t.Logf("crash after %d replays; %d letters and %d records remain, %d were handled", report.Replayed, stats.Letters, stats.Unsettled(), len(before))
	require.Positive(t, stats.Letters, "the crash came too late")
	require.LessOrEqual(t, report.Replayed, count-int(stats.Letters), "a reported replay is durable")
	p.start()
	rest, err := p.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
	require.NoError(t, err)
	require.EqualValues(t, stats.Letters, rest.Replayed)
	p.settled()
	require.Empty(t, p.list(eventbus.LetterQuery{}))
	after := p.called()
	for i := range count {
		call := fmt.Sprint("mail ", i)
		require.Positive(t, before[call]+after[call], call)
	}
	p.end()
}

// An interrupted replay knows which letters it has replayed, those in progress included.
func TestRow56_BulkReplayIsInterrupted(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 2000)
	p := begin(t, path)
	p.handles("mail", nil)
	ctx, cancel := context.WithCancel(t.Context())
	report, err := p.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{All: true}, eventbus.OnProgress(func(b eventbus.BulkProgress) {
		if b.Done == 10 {
			cancel()
		}
	}))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, report.Stayed)
	require.Less(t, report.Replayed, 2000)
	page, err := p.DLQ().List(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Equal(t, 2000, report.Replayed+page.Total)
	p.end()
}

func TestRow57_ReplayToAMissingSubscription(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 1)
	p := begin(t, path)
	p.handles("other", nil)
	p.start()
	l := p.list(eventbus.LetterQuery{})[0]
	require.ErrorIs(t, p.DLQ().Replay(t.Context(), l.ID), eventbus.ErrNoSubscription)
	require.Equal(t, []eventbus.DeadLetter{l}, p.list(eventbus.LetterQuery{Event: l.Event.ID}))
	p.handles("post", nil, eventbus.Formerly("mail"))
	require.NoError(t, p.DLQ().Replay(t.Context(), l.ID))
	require.Equal(t, map[string]int{"post 0": 1}, p.settled().called())
	p.end()
}

// Of a purge and a replay of the same letter, one wins.
func TestRow58_PurgeRacingReplay(t *testing.T) {
	const count = 200
	path := newPath(t)
	withLetters(t, path, count)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	all := p.list(eventbus.LetterQuery{})
	var replayed, purged atomic.Int64
	var calls sync.WaitGroup
	for i := range 2 {
		for _, half := range [][]eventbus.DeadLetter{all[:count/2], all[count/2:]} {
			calls.Go(func() {
				for _, l := range half {
					do, won := p.DLQ().Replay, &replayed
					if i == 1 {
						do, won = p.DLQ().Purge, &purged
					}
					if err := do(context.Background(), l.ID); err == nil {
						won.Add(1)
					} else if !errors.Is(err, eventbus.ErrNotFound) {
						t.Error(err)
					}
				}
			})
		}
	}
	calls.Go(func() {
		report, err := p.DLQ().PurgeMatching(context.Background(), eventbus.LetterQuery{All: true})
		if err != nil {
			t.Error(err)
		}
		purged.Add(int64(report.Purged))
	})
	calls.Wait()
	p.settled()
	require.EqualValues(t, count, replayed.Load()+purged.Load())
	require.Len(t, p.called(), int(replayed.Load()))
	require.Empty(t, p.list(eventbus.LetterQuery{}))
	p.end()
}

// The boundary of a purge by age is inclusive.
func TestRow58_PurgeByAge(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 5)
	p := begin(t, path)
	all := p.list(eventbus.LetterQuery{}) // newest first
	n, err := p.DLQ().PurgeUntil(t.Context(), all[4].DiedAt.Add(-1))
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = p.DLQ().PurgeUntil(t.Context(), all[2].DiedAt)
	require.NoError(t, err)
	require.Len(t, p.list(eventbus.LetterQuery{}), 5-n)
	for _, l := range p.list(eventbus.LetterQuery{}) {
		require.True(t, l.DiedAt.After(all[2].DiedAt))
	}
	p.end()
}

// New code cannot decode the payload of a letter: it is listed as it is, and a replay makes a letter
// again.
func TestRow60_LetterOfOldCode(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 1)
	p := begin(t, path)
	type order struct{ Number int }
	_, err := p.Subscribe("order.*", eventbus.Typed(func(context.Context, order) error { return nil }), eventbus.Named("mail"))
	require.NoError(t, err)
	p.start()
	raw := json.RawMessage(`"0"`)
	l := p.list(eventbus.LetterQuery{})[0]
	require.Equal(t, any(raw), l.Event.Payload)
	require.NoError(t, p.DLQ().Replay(t.Context(), l.ID))
	p.settled()
	again := p.list(eventbus.LetterQuery{})
	require.Len(t, again, 1)
	require.NotEqual(t, l.ID, again[0].ID)
	require.Equal(t, eventbus.ReasonPermanent, again[0].Reason)
	require.Equal(t, any(raw), again[0].Event.Payload)
	require.Len(t, again[0].Failures, 2)
	require.Equal(t, "*eventbus.PayloadTypeError", again[0].Failures[1].Class)
	require.NoError(t, p.DLQ().ReplayEdited(t.Context(), again[0].ID, order{7}), "an operator repairs it")
	p.settled()
	require.Empty(t, p.list(eventbus.LetterQuery{}))
	p.end()
}
