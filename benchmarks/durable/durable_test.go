package durable

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// fake keeps nothing. Its handler runs when the event is accepted, and the event settles later.
func fake(handle func(), settles time.Duration) *System {
	var last atomic.Int64
	return &System{
		Accept: func(Event) error {
			time.Sleep(100 * time.Microsecond)
			if handle != nil {
				handle()
				last.Store(time.Now().UnixNano())
			}
			return nil
		},
		Settled: func() (bool, error) { return time.Since(time.Unix(0, last.Load())) > settles, nil },
	}
}

func TestMeasurement_CountsTheEventsAfterTheWarmUp(t *testing.T) {
	m := &measurement{publishers: 64, duration: 20 * time.Millisecond}
	events, took, err := m.run(fake(nil, 0), false)
	require.NoError(t, err)
	require.GreaterOrEqual(t, events, 64, "each publisher accepts an event")
	require.Greater(t, int(m.published.Load()), events)
	require.GreaterOrEqual(t, took, m.duration)
}

// The time of a case that settles ends when the last completion is durable.
func TestMeasurement_WaitsUntilAllIsSettled(t *testing.T) {
	m := &measurement{publishers: 2, duration: 10 * time.Millisecond}
	const settles = 50 * time.Millisecond
	_, took, err := m.run(fake(m.handle, settles), true)
	require.NoError(t, err)
	require.GreaterOrEqual(t, took, m.duration+settles)
	require.Equal(t, m.published.Load(), m.handled.Load())
}

func TestMeasurement_EndsWithTheFirstError(t *testing.T) {
	full := errors.New("disk full")
	m := &measurement{publishers: 4, duration: time.Hour}
	_, _, err := m.run(&System{Accept: func(Event) error { return full }}, false)
	require.ErrorIs(t, err, full)
}

func TestGroup_CommitsWhatGatheredDuringTheLastCommit(t *testing.T) {
	var mu sync.Mutex
	var commits [][]int
	first, release := make(chan struct{}), make(chan struct{})
	g := NewGroup(MaxGroup, func(ops []int) error {
		mu.Lock()
		commits = append(commits, slices.Clone(ops))
		n := len(commits)
		mu.Unlock()
		if n == 1 {
			close(first)
			<-release
		}
		return nil
	})
	g.Add(0)
	<-first
	for i := range MaxGroup + 1 {
		g.Add(i + 1)
	}
	close(release)
	require.NoError(t, g.Do(MaxGroup+2))
	g.Close()
	require.Len(t, commits, 3)
	require.Equal(t, []int{0}, commits[0])
	require.Len(t, commits[1], MaxGroup)
	require.Equal(t, []int{MaxGroup + 1, MaxGroup + 2}, commits[2])
}

func TestGroup_ReturnsTheErrorOfItsCommit(t *testing.T) {
	full := errors.New("disk full")
	g := NewGroup(MaxGroup, func([]int) error { return full })
	require.ErrorIs(t, g.Do(1), full)
	g.Close()
}

func TestFileSystem_RefusesMemory(t *testing.T) {
	const shared = "/dev/shm"
	if _, memory, err := fileSystem(shared); err != nil || !memory {
		t.Skipf("%s is no file system in memory", shared)
	}
	_, err := FileSystem(shared)
	require.ErrorContains(t, err, DirVariable)
	err = run(plan.Durable, map[string]Open{"insert": nil}, []string{"-rival", "insert", "-case", "accept,publishers=1", "-dir", shared})
	require.ErrorContains(t, err, "in memory")
	_, err = FileSystem(t.TempDir() + "/none")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A rival that runs with another setting than planned is not measured.
func TestRun_ChecksWhatWasReadBack(t *testing.T) {
	dir := diskDir(t)
	var asked Options
	opens := map[string]Open{"insert": func(o Options) (*System, error) {
		asked = o
		return &System{Synchronous: "NORMAL"}, nil
	}}
	err := run(plan.Durable, opens, []string{"-rival", "insert", "-case", "accept,publishers=64", "-dir", dir})
	require.ErrorContains(t, err, `synchronous="NORMAL", want "FULL"`)
	require.Equal(t, "FULL", asked.Synchronous)
	require.Equal(t, 64, asked.Publishers)
	require.Nil(t, asked.Handle)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)

	require.ErrorContains(t, run(plan.Durable, opens, []string{"-rival", "goqite"}), "no such rival")
	require.ErrorContains(t, run(plan.Durable, opens, []string{"-rival", "insert", "-case", "accept"}), "accept,publishers=64")
}

// diskDir returns a directory of the test on a disk.
func diskDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := FileSystem(dir); err != nil {
		t.Skip(err)
	}
	return dir
}

func TestFlushTime(t *testing.T) {
	dir := t.TempDir()
	median, err := FlushTime(dir)
	require.NoError(t, err)
	require.Positive(t, median)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestEvent_HasAbout150Bytes(t *testing.T) {
	body, err := newEvent(1).JSON()
	require.NoError(t, err)
	require.InDelta(t, 150, len(body), 15)
}
