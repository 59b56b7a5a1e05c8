package sqlite_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// crashed returns the number of events that the entry of a process has about a crash.
func (p *process) crashed() int64 {
	p.t.Helper()
	entries := p.logs.FilterMessage("last process ended without shutdown").All()
	require.Len(p.t, entries, 1)
	return entries[0].ContextMap()["crashed_events"].(int64)
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
	require.EqualValues(t, 3, countIncoming(t, p), "the process had not started, and had no lease")
	release := make(chan struct{})
	entered := make(chan struct{}, 3)
	p.handles("mail", func(string) error { entered <- struct{}{}; <-release; return nil })
	p.start()
	require.Zero(t, p.logs.FilterMessage("last process ended without shutdown").Len())
	for range 3 {
		<-entered
	}
	beside := tool(t, path)
	require.Zero(t, beside.logs.FilterMessage("last process ended without shutdown").Len())
	beside.end()
	p.crash()
	close(release)

	p = begin(t, path)
	p.handles("mail", nil)
	p.start()
	require.EqualValues(t, 3, p.crashed())
	p.end()
	p = begin(t, path)
	p.handles("mail", nil)
	p.start()
	require.Zero(t, p.logs.FilterMessage("last process ended without shutdown").Len())
	p.end()
}

func countIncoming(t *testing.T, p *process) int64 {
	t.Helper()
	stats, err := p.store.Stats(context.Background())
	require.NoError(t, err)
	return stats.Incoming
}
