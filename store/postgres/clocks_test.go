//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// shiftedClock is a clock that is wrong.
type shiftedClock struct {
	clock.Clock
	by time.Duration
}

func (c shiftedClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// skewOf returns how wrong the clock of a process of the cluster is.
func skewOf(member string) time.Duration {
	var n int
	if _, err := fmt.Sscanf(member, "p%d", &n); err != nil {
		return 0
	}
	return time.Duration(n%3-1) * time.Hour
}

// The clocks of the processes differ by an hour from that of the server. The lease is not affected. A scheduled event is
// early or late by the difference between the clocks of its publisher and of the bus with the lease, and is not lost.
func TestS6_ClocksOfProcessesAnHourApart(t *testing.T) {
	t.Parallel()
	dsn, schema := postgrestest.Shared(t).DSN(), postgrestest.NewSchema()
	handled := make(chan string, 10)
	open := func(by time.Duration) *eventbus.Bus {
		s, err := postgres.Open(t.Context(), dsn, postgres.WithSchema(schema), postgres.WithLeaseTime(clusterLease))
		require.NoError(t, err)
		bus, err := eventbus.New(eventbus.WithStore(s), eventbus.WithStandby(), eventbus.WithClock(shiftedClock{clock.New(), by}))
		require.NoError(t, err)
		_, err = bus.Subscribe("a", eventbus.Typed(func(_ context.Context, payload string) error {
			handled <- payload
			return nil
		}), eventbus.Named("work"))
		require.NoError(t, err)
		return bus
	}
	publish := func(bus *eventbus.Bus, payload string, after time.Duration) {
		var opts []eventbus.PublishOption
		if after > 0 {
			opts = append(opts, eventbus.After(after))
		}
		_, err := bus.Publish(t.Context(), "a", payload, opts...)
		require.NoError(t, err)
	}
	ahead, behind, furtherAhead := open(time.Hour), open(-time.Hour), open(3*time.Hour)
	require.NoError(t, ahead.Start(t.Context()))
	started := make(chan error, 1)
	go func() { started <- behind.Start(context.Background()) }()
	publish(ahead, "of the bus with the lease", 0)
	require.Equal(t, "of the bus with the lease", <-handled)
	publish(ahead, "after 100 ms", 100*time.Millisecond)
	require.Equal(t, "after 100 ms", <-handled)
	publish(behind, "of the standby", 0)
	require.Equal(t, "of the standby", <-handled)
	publish(behind, "early", time.Hour) // it is due by the clock that is ahead
	require.Equal(t, "early", <-handled)
	publish(ahead, "late", 30*time.Minute)
	time.Sleep(clusterLease + time.Second)
	require.Empty(t, started, "the lease ends by the server's clock, and it is renewed")

	require.NoError(t, ahead.Shutdown(t.Context()))
	require.NoError(t, <-started)
	publish(behind, "next", 0)
	require.Equal(t, "next", <-handled)
	require.EqualValues(t, 1, behind.Metrics().Store.Scheduled)
	require.NoError(t, behind.Shutdown(t.Context()))
	require.NoError(t, furtherAhead.Start(t.Context()))
	require.Equal(t, "late", <-handled)
	require.NoError(t, furtherAhead.Shutdown(t.Context()))
	require.Empty(t, handled)
}
