package contracttest

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// If all targets of a dispatch have been visited, and the process ended before it settled, no delivery is left in it. An action on its
// event has the deliveries that were split off, and lets it settle.
func TestV4_NothingIsLeftOfAVisitedDispatch(t *testing.T) {
	type verb func(*eventbus.Bus, context.Context, eventbus.EventID, ...eventbus.ActionOption) (eventbus.ActionReport, error)
	for _, x := range []struct {
		name  string
		act   verb
		first error // of the action on the whole event, which has a delivery that is held for mail
		then  error
	}{
		{"Cancel", (*eventbus.Bus).Cancel, nil, eventbus.ErrSettled},
		{"GiveUp", (*eventbus.Bus).GiveUp, nil, eventbus.ErrSettled},
		{"RetryNow", (*eventbus.Bus).RetryNow, eventbus.ErrNothingDone, eventbus.ErrNothingDone},
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, running %v", x.name, running), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					disk, crashes := crashingAtSettlement(t, "slow")
					crashes.Store(false)
					var visited eventbus.EventID
					for _, r := range disk.Dump().Records {
						if len(r.Targets) == 1 && string(r.Payload) == `"x"` { // the part that is held
							visited = eventbus.EventID(r.ID)
						}
					}
					require.NotZero(t, visited)
					bus := disk.tool(t) // no process has the lease
					if running {
						shutdown(t, bus)
						bus, _ = disk.startsTwo(t, eventbus.WithConcurrency(1))
						require.Equal(t, []string{"stock slow 1"}, disk.took(), "the other dispatch waits for the only worker")
					}
					of := func(want error, deliveries int, opts ...eventbus.ActionOption) {
						t.Helper()
						report, err := x.act(bus, t.Context(), visited, opts...)
						require.ErrorIs(t, err, want)
						require.Len(t, report.Deliveries, deliveries)
						for _, d := range report.Deliveries {
							require.Equal(t, "mail", d.Subscription)
						}
					}
					of(eventbus.ErrSettled, 0, eventbus.OfSubscription("stock"))
					of(x.first, 1)
					left := 0
					if x.then != eventbus.ErrSettled { //nolint:errorlint // of the table
						left = 1
					}
					of(x.then, left)
					of(x.then, left, eventbus.OfSubscription("mail"))
					if !running {
						shutdown(t, bus)
						bus, _ = disk.startsTwo(t)
					}
					time.Sleep(10 * time.Hour)
					requireBalanced(t, bus)
					require.NotContains(t, disk.took(), "stock x 1")
					shutdown(t, bus)
					require.Len(t, disk.Dump().Records, left)
					for _, r := range disk.Dump().Records {
						require.Equal(t, []string{"mail"}, r.Targets)
					}
				})
			})
		}
	}
}
