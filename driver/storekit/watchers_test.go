package storekit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

func TestWatchers_RunsWhileThereAreWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := make(chan (<-chan struct{}), 9)
		s := storekit.Watchers{Run: func(stop <-chan struct{}) {
			runs <- stop
			<-stop
		}}
		var a, b driver.Change
		stopA := s.Add(func(c driver.Change) { a |= c })
		stopB := s.Add(func(c driver.Change) { b |= c })
		first := <-runs
		require.Empty(t, runs, "one goroutine for all watchers")
		require.True(t, s.Call(first, driver.ChangedIncoming))
		stopA()
		stopA()
		require.True(t, s.Call(first, driver.ChangedRequests))
		require.Equal(t, driver.ChangedIncoming, a)
		require.Equal(t, driver.ChangedIncoming|driver.ChangedRequests, b)
		stopB()
		<-first
		require.True(t, s.Call(nil, driver.ChangedLease))
		s.Add(func(driver.Change) {})
		second := <-runs
		s.Close()
		<-second
		require.False(t, s.Call(second, driver.ChangedLease))
		s.Add(func(driver.Change) { t.Error("called after Close") })()
		synctest.Wait()
		require.Empty(t, runs, "Close ends it for ever")
	})
}

// stop waits for a call in progress.
func TestWatchers_StopWaitsForTheCall(t *testing.T) {
	var s storekit.Watchers
	s.Run = func(stop <-chan struct{}) { s.Call(stop, driver.AnyChange) }
	called, hold := make(chan struct{}), make(chan struct{})
	returned := false
	stop := s.Add(func(driver.Change) {
		close(called)
		<-hold
		returned = true
	})
	<-called
	time.AfterFunc(time.Millisecond, func() { close(hold) })
	stop()
	require.True(t, returned, "stop returned during a call")
}
