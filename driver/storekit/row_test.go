package storekit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

func TestBody_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		instant := func(name string) time.Time {
			return time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, name), rapid.Int64Range(0, 999_999_999).Draw(t, name)).UTC()
		}
		r := &driver.Record{
			Type: rapid.String().Draw(t, "type"), Key: rapid.String().Draw(t, "key"), Published: instant("published"),
			Targets: rapid.SliceOf(rapid.String()).Draw(t, "targets"), Slot: driver.Slot(rapid.Byte().Draw(t, "slot")),
		}
		if rapid.Bool().Draw(t, "scheduled") {
			r.Scheduled = instant("scheduled")
		}
		if rapid.Bool().Draw(t, "idempotency") {
			r.IdempotencyKey, r.KeyExpires = rapid.String().Draw(t, "idempotency key"), instant("key expires")
			r.UntilSettled = rapid.Bool().Draw(t, "until settled")
		}
		if rapid.Bool().Draw(t, "expiry") {
			r.Expires = instant("expires")
		}
		if rapid.Bool().Draw(t, "metadata") {
			r.Metadata = []byte(`{"a":"b"}`)
		}
		if rapid.Bool().Draw(t, "replay") {
			r.Replay = []byte(`{"letter":1}`)
		}
		if rapid.Bool().Draw(t, "payload") {
			r.Payload = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		}
		body := storekit.AppendBody(nil, r)
		var got driver.Record
		require.NoError(t, storekit.DecodeBody(body, &got))
		require.Equal(t, r, &got)
		for n := range len(body) - len(r.Payload) {
			require.Error(t, storekit.DecodeBody(body[:n], new(driver.Record)), "a body that is cut off")
		}
	})
}

func TestTimeText_SortsAsTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) time.Time {
			return time.Unix(rapid.Int64Range(-62167219200, 253402300799).Draw(t, name), rapid.Int64Range(0, 999_999_999).Draw(t, name))
		}
		x, y := draw("x"), draw("y")
		require.Equal(t, x.Before(y), storekit.TimeText(x) < storekit.TimeText(y))
		back, err := storekit.ParseTime(storekit.TimeText(x))
		require.NoError(t, err)
		require.True(t, x.Equal(back))
	})
}

// A time that no column can have is before or behind all that they can.
func TestTimeBound_OutsideOfTheYears(t *testing.T) {
	first, last := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	require.Less(t, storekit.TimeBound(first.Add(-1)), storekit.TimeText(first))
	require.Greater(t, storekit.TimeBound(last.Add(1)), storekit.TimeText(last))
	require.Equal(t, storekit.TimeText(first), storekit.TimeBound(first))
}
