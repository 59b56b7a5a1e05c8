package driver_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

func TestRefusedError_NamesTheOffence(t *testing.T) {
	id := driver.ID{1}
	const text = "01000000-0000-0000-0000-000000000000"
	for want, e := range map[string]*driver.RefusedError{
		driver.ErrNotFound.Error() + ": " + text:                            {Letter: id, Err: driver.ErrNotFound},
		driver.ErrNotFound.Error() + ": event " + text:                      {Event: id, Err: driver.ErrNotFound},
		driver.ErrNotLeased.Error() + ": 7":                                 {Ref: 7, Err: driver.ErrNotLeased},
		driver.ErrDuplicateID.Error() + ": \"k\" is known as event " + text: {Known: &driver.Dedupe{Key: "k", Event: id}, Err: driver.ErrDuplicateID},
		driver.ErrTime.Error():                                              {Err: driver.ErrTime},
	} {
		require.EqualError(t, e, want)
		require.ErrorIs(t, e, e.Err)
	}
}

func TestState_HasAName(t *testing.T) {
	require.Equal(t, "ready waiting scheduled parked State(4)",
		fmt.Sprint(driver.Ready, " ", driver.Waiting, " ", driver.Scheduled, " ", driver.Parked, " ", driver.State(4)))
}

// The years that JSON can have.
func TestStorable_Years(t *testing.T) {
	first, next := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
	require.True(t, driver.Storable(first) && driver.Storable(next.Add(-1)))
	require.False(t, driver.Storable(first.Add(-1)) || driver.Storable(next))
}

func TestAuditQuery_Matches(t *testing.T) {
	odd := func(e *driver.AuditEntry) (bool, error) { return e.Number%2 == 1, nil }
	for want, q := range map[string]driver.AuditQuery{
		"1 2 3 4 ": {}, "1 2 ": {Before: 3}, "1 3 ": {Match: odd}, "1 ": {Before: 3, Match: odd},
	} {
		got := ""
		for n := range int64(4) {
			if ok, err := q.Matches(&driver.AuditEntry{Number: n + 1}); ok && err == nil {
				got += fmt.Sprint(n+1, " ")
			}
		}
		require.Equal(t, want, got)
	}
}
