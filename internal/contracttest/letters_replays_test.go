package contracttest

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A letter lists the replays before it: when, by whom, of which letter, with an edit or in bulk. So does Event.
func TestL3_ALetterListsItsReplays(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "a", 1)
		time.Sleep(time.Second)
		first := oneLetter(t, bus)
		require.Empty(t, first.ReplayLog)
		require.NoError(t, bus.DLQ().Replay(t.Context(), first.ID, eventbus.By("ann")))
		replayed := time.Now()
		time.Sleep(time.Second)
		second := oneLetter(t, bus)
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), second.ID, 2))
		time.Sleep(time.Second)
		third := oneLetter(t, bus)
		_, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true}, eventbus.By("bob"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		log := oneLetter(t, bus).ReplayLog
		require.Len(t, log, 3)
		require.WithinDuration(t, replayed, log[0].At, time.Millisecond)
		require.Equal(t, time.UTC, log[0].At.Location())
		require.Equal(t, []any{"ann", first.ID, false, true}, []any{log[0].By, log[0].Letter, log[0].Edited, log[0].Bulk.IsZero()})
		require.Equal(t, []any{"", second.ID, true, true}, []any{log[1].By, log[1].Letter, log[1].Edited, log[1].Bulk.IsZero()})
		require.Equal(t, []any{"bob", third.ID, false, false}, []any{log[2].By, log[2].Letter, log[2].Edited, log[2].Bulk.IsZero()})
		page, err := bus.Audit(t.Context(), eventbus.AuditQuery{Action: eventbus.AuditReplayMatching, Since: log[2].Bulk, Until: log[2].Bulk})
		require.NoError(t, err)
		require.NotEmpty(t, page.Entries, "the time names the operation")
		require.Equal(t, "bob", page.Entries[0].By)
		status, err := bus.Event(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, log, status.Replays)
	}, withoutCircuit)
}

// An event that was replayed and has not settled lists its replays, also beside the bus and after a restart. The letter lists the last 10.
func TestL3_AReplayedEventListsItsReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, withoutCircuit)
		s := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "a", 1)
		time.Sleep(time.Second)
		for range 12 {
			require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID, eventbus.By("ann")))
			time.Sleep(time.Second)
		}
		last := oneLetter(t, bus)
		require.Equal(t, 12, last.Replays)
		require.Len(t, last.ReplayLog, 10)
		require.NoError(t, s.Pause())
		require.NoError(t, bus.DLQ().Replay(t.Context(), last.ID, eventbus.By("bob")))
		time.Sleep(time.Second)
		lists := func(bus *eventbus.Bus) {
			status, err := bus.Event(t.Context(), id)
			require.NoError(t, err)
			require.Len(t, status.Dispatches, 1)
			require.Len(t, status.Replays, 10)
			require.Equal(t, []any{"bob", last.ID}, []any{status.Replays[9].By, status.Replays[9].Letter})
			require.Equal(t, last.ReplayLog[1:], status.Replays[:9])
		}
		lists(bus)
		tool := disk.tool(t)
		lists(tool)
		shutdown(t, tool)
		shutdown(t, bus)
		bus, _ = disk.open(t, withoutCircuit)
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Second)
		lists(bus)
		require.NoError(t, bus.Subscription("s").Resume())
		time.Sleep(time.Second)
		require.Equal(t, "bob", oneLetter(t, bus).ReplayLog[9].By)
		shutdown(t, bus)
	})
}

// An import bounds the replays that a line lists, and refuses those that a store could not keep.
func TestL3_ImportBoundsTheReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		line := func(replays string) string {
			return `{"id":"01940000-0000-7000-8000-000000000001","event":{"id":"01930000-0000-7000-8000-000000000001","type":"a","time":"2025-01-01T00:00:00Z"},` +
				`"reason":"exhausted","subscription":"s","attempts":1,"died_at":"2025-01-01T00:00:00Z","replay_log":[` + replays + `]}`
		}
		for _, bad := range []string{`{"at":"9999-12-31T23:00:00-05:00"}`, `{"at":"2025-01-01T00:00:00Z","bulk":"0000-01-01T00:00:00+05:00"}`, `1`} {
			_, err := bus.DLQ().Import(t.Context(), strings.NewReader(line(bad)))
			require.ErrorAs(t, err, new(*eventbus.ImportError), bad)
		}
		many := strings.Repeat(`{"at":"2025-01-01T00:00:00Z","by":"x"},`, 1000) + `{"at":"2025-01-01T00:00:00Z","by":"` + strings.Repeat("y", 9000) + `"}`
		_, err := bus.DLQ().Import(t.Context(), strings.NewReader(line(many)))
		require.NoError(t, err)
		log := oneLetter(t, bus).ReplayLog
		require.Len(t, log, 10)
		require.LessOrEqual(t, len(log[9].By), 260)
		var out bytes.Buffer
		_, err = bus.DLQ().Export(context.Background(), &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Equal(t, 10, strings.Count(out.String(), `"letter_id"`))
		shutdown(t, bus)
	})
}
