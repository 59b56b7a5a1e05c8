package contracttest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// Cancel finds two replays of an event in incoming, of which the bus has begun to take one in: it reports the one that it ends.
func TestV1_AReplayThatIsTakenInMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Accept) > 0 && len(b.New) > 0 { // the feeder takes one in
				f.Delay = time.Second
			}
			return f
		}))
		bus, _ := disk.open(t, eventbus.WithIsolation(), eventbus.WithRetry(retry(0, time.Second)))
		var sick atomic.Bool
		var calls atomic.Int64
		sick.Store(true)
		for _, name := range []string{"stock", "mail"} {
			mustSubscribe(t, bus, "placed", func(context.Context, eventbus.Event) error {
				if sick.Load() {
					return errBoom
				}
				calls.Add(1)
				return nil
			}, eventbus.Named(name))
		}
		start(t, bus)
		id := mustPublish(t, bus, "placed", nil)
		time.Sleep(time.Second)
		sick.Store(false)
		tool := disk.tool(t)
		replayed, err := tool.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, 2, replayed.Replayed)
		time.Sleep(500 * time.Millisecond) // the first is on its way
		report, err := bus.Cancel(t.Context(), id)
		require.True(t, err == nil || nothingLeft(err), err) // it may have taken in the other one, too
		time.Sleep(time.Minute)
		done := int64(0)
		for _, d := range report.Deliveries {
			if d.Done {
				done++
			}
		}
		require.EqualValues(t, 2, done+calls.Load(), "%+v", report)
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Incoming)
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// More replays of an event are incoming than one read returns, and the bus has no room for them: Cancel ends all, and reports each.
func TestV1_ManyIncomingReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1100
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithIsolation(), eventbus.WithMaxUnsettled(n), eventbus.WithRetry(retry(0, time.Second)))
		var calls atomic.Int64
		for i := range n {
			mustSubscribe(t, bus, "placed", func(context.Context, eventbus.Event) error {
				calls.Add(1)
				return errBoom
			}, eventbus.Named(fmt.Sprint("s", i)))
		}
		full := mustSubscribe(t, bus, "fills", ok, eventbus.Named("fills"))
		start(t, bus)
		id := mustPublish(t, bus, "placed", nil)
		time.Sleep(time.Second)
		require.EqualValues(t, n, calls.Load())
		require.NoError(t, full.Pause())
		for range n {
			mustPublish(t, bus, "fills", nil)
		}
		tool := disk.tool(t)
		replayed, err := tool.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, n, replayed.Replayed)
		report, err := bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, report.Deliveries, n)
		require.Empty(t, disk.Dump().Incoming)
		require.NoError(t, full.Resume())
		time.Sleep(time.Minute)
		require.EqualValues(t, n, calls.Load())
		shutdown(t, tool)
		shutdown(t, bus)
	})
}
