package timeline_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/timeline"
)

func TestReminder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r, cancelled, late timeline.Reminder
		tl, calls := timeline.New(clock.New()), 0
		count := func() { calls++ }
		for range 2 {
			r.Arm(tl, time.Second, count)
		}
		cancelled.Arm(tl, time.Second, count)
		cancelled.Cancel()
		late.Cancel()
		late.Arm(tl, time.Second, count)
		time.Sleep(time.Hour)
		r.Arm(tl, time.Second, count)
		r.Cancel()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, calls)
		tl.Stop()
	})
}
