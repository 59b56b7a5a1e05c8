package sqlite_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// crashed returns the number of events that the first entry of a process has about a crash.
func (p *process) crashed() int64 {
	p.t.Helper()
	require.Positive(p.t, p.logs.Len())
	first := p.logs.All()[0]
	require.Equal(p.t, "last process ended without shutdown", first.Message)
	return first.ContextMap()["crashed_events"].(int64)
}

func TestS3_NoShutdown_OverAFile(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	for i := range 3 {
		p.publish(fmt.Sprint(i))
	}
	p.crash()

	p = begin(t, path)
	require.EqualValues(t, 3, countReady(t, p))
	require.Zero(t, p.crashed(), "the process had not started, and none of its events was in memory")
	release := make(chan struct{})
	entered := make(chan struct{}, 3)
	p.handles("mail", func(string) error { entered <- struct{}{}; <-release; return nil })
	p.start()
	for range 3 {
		<-entered
	}
	beside := tool(t, path)
	require.Zero(t, beside.logs.FilterMessage("last process ended without shutdown").Len())
	beside.end()
	p.crash()
	close(release)

	p = begin(t, path)
	require.EqualValues(t, 3, p.crashed())
	p.end()
	p = begin(t, path)
	require.Zero(t, p.logs.FilterMessage("last process ended without shutdown").Len())
	p.end()
}

func countReady(t *testing.T, p *process) int64 {
	t.Helper()
	stats, err := p.store.Stats(context.Background())
	require.NoError(t, err)
	return stats.Ready
}
