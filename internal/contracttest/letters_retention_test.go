package contracttest

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/wallclock"
	"github.com/surebus/eventbus/storetest"
)

// deadAt makes a letter that died at the present time.
func deadAt(t *testing.T, bus *eventbus.Bus) eventbus.LetterID {
	t.Helper()
	_, err := bus.PublishAndWait(t.Context(), "a", "x")
	require.Error(t, err)
	return letters(t, bus)[0].ID
}

// Letters go once they are older than WithLetterRetention: by an hour at most, with an entry in the audit, and no others.
func TestL7_LettersGoByAge(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errBoom)), eventbus.Named("a"), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, bus.Start(t.Context()))
		first := deadAt(t, bus)
		time.Sleep(90 * time.Minute)
		second := deadAt(t, bus)
		time.Sleep(22*time.Hour + 30*time.Minute - time.Second)
		require.Len(t, letters(t, bus), 2, "the first is less than a day old")
		time.Sleep(time.Hour)
		all := letters(t, bus)
		require.Len(t, all, 1)
		require.Equal(t, second, all[0].ID)
		_, err := bus.DLQ().Get(t.Context(), first)
		require.ErrorIs(t, err, eventbus.ErrNotFound)

		audit, err := bus.Audit(t.Context(), eventbus.AuditQuery{})
		require.NoError(t, err)
		require.Len(t, audit.Entries, 2, "the purge and its outcome, and none of purges that found nothing")
		require.Equal(t, eventbus.AuditPurgeMatching, audit.Entries[0].Action)
		require.Equal(t, "retention", audit.Entries[0].By)
		require.Contains(t, audit.Entries[0].Why, "WithLetterRetention")
		require.Equal(t, 1, audit.Entries[0].Outcome.Done)
		time.Sleep(48 * time.Hour)
		require.Empty(t, letters(t, bus))
	}, eventbus.WithLetterRetention(24*time.Hour))
}

// Without the option, letters stay.
func TestL7_LettersStayByDefault(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errBoom)), eventbus.Named("a"))
		require.NoError(t, bus.Start(t.Context()))
		deadAt(t, bus)
		time.Sleep(10 * 365 * 24 * time.Hour)
		require.Len(t, letters(t, bus), 1)
	})
}

// Only the bus with the lease purges by age: old letters go when the bus with the option has it, and no more when it has handed it
// over.
func TestL7_TheBusWithTheLeasePurgesByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		dies := failing(eventbus.Permanent(errBoom))
		open := func(names []string, opts ...eventbus.Option) *eventbus.Bus {
			bus, _ := disk.open(t, append(opts, eventbus.WithStandby())...)
			for _, name := range names {
				mustSubscribe(t, bus, "a", dies, eventbus.Named(name), eventbus.Circuit(eventbus.NoCircuit()))
			}
			return bus
		}
		first := open([]string{"mail"})
		start(t, first)
		deadAt(t, first)
		time.Sleep(time.Minute)
		purging := open([]string{"mail", "audit"}, eventbus.WithLetterRetention(time.Hour))
		began := startLater(t, purging)
		time.Sleep(time.Second)
		require.NoError(t, <-began)
		require.Len(t, letters(t, purging), 1, "it is young")
		time.Sleep(2 * time.Hour)
		require.Empty(t, letters(t, purging))

		last := open([]string{"mail", "audit", "invoice"})
		began = startLater(t, last)
		time.Sleep(time.Second)
		require.NoError(t, <-began)
		deadAt(t, last)
		n := len(letters(t, last))
		time.Sleep(3 * time.Hour)
		require.Len(t, letters(t, last), n, "the bus with the lease keeps letters")
		for _, bus := range []*eventbus.Bus{first, purging, last} {
			shutdown(t, bus)
		}
	})
}

// A step of the wall clock is no age: nothing goes for an hour.
func TestL7_AStepOfTheClockIsNoAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := wallclock.New()
		bus, _ := newBus(t, eventbus.WithClock(wall), eventbus.WithLetterRetention(48*time.Hour))
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errBoom)))
		start(t, bus)
		deadAt(t, bus)
		time.Sleep(90 * time.Minute)
		wall.Advance(72 * time.Hour)
		time.Sleep(45 * time.Minute)
		require.Len(t, letters(t, bus), 1)
		time.Sleep(2 * time.Hour)
		require.Empty(t, letters(t, bus), "then the clock is believed")
		shutdown(t, bus)
	})
}

// A purge that fails is a warning and is repeated, and Shutdown does not wait for the next.
func TestL7_APurgeByAgeThatFailsIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if fails.Load() && len(b.Audit) > 0 {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, logs := disk.open(t, eventbus.WithLetterRetention(time.Hour))
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errBoom)), eventbus.Named("a"))
		start(t, bus)
		deadAt(t, bus)
		fails.Store(true)
		time.Sleep(3*time.Hour + 10*time.Minute) // the store is open again
		require.Len(t, letters(t, bus), 1)
		require.NotEmpty(t, logs.FilterMessage("dead letters were not purged by age").All())
		fails.Store(false)
		time.Sleep(time.Hour)
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}

func TestL7_ARetentionBelowAnHourIsRefused(t *testing.T) {
	for _, age := range []time.Duration{-time.Hour, 0, 30, time.Hour - 1} {
		_, err := eventbus.New(eventbus.WithLetterRetention(age))
		requireOptionError(t, err, "WithLetterRetention")
	}
	_, err := eventbus.New(eventbus.WithLetterRetention(time.Hour), eventbus.WithStore(newDisk().Open()), eventbus.WithoutHandlers())
	requireOptionError(t, err, "WithLetterRetention")
}
