package contracttest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A line that has room again takes the deliveries in the store before new ones.
func TestD5_NewDeliveriesDoNotOvertakeThoseInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mail := disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Millisecond); return nil })
		require.NoError(t, mail.Pause())
		require.NoError(t, bus.Start(t.Context()))
		var want []string
		publish := func() {
			payload := fmt.Sprint(len(want))
			mustPublish(t, bus, "a", payload, eventbus.Key("k"))
			want = append(want, fmt.Sprintf("mail %s 1", payload))
		}
		for range eventbus.DefaultLineCapacity + 2000 {
			publish()
		}
		require.NoError(t, mail.Resume())
		for range 15 {
			time.Sleep(time.Second)
			publish()
		}
		time.Sleep(time.Minute)
		require.Equal(t, want, disk.took())
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

func TestD12_TheStoreKeepsWhatALineHasNoRoomFor(t *testing.T) {
	ofManyEvents(t)
	for _, crashes := range []bool{false, true} {
		t.Run(fmt.Sprint("crashes ", crashes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				mail := disk.handles(t, bus, "mail", nil)
				require.NoError(t, mail.Pause())
				require.NoError(t, bus.Start(t.Context()))
				const events = eventbus.DefaultLineCapacity + 3000
				want := map[string][]string{}
				for i := range events {
					var options []eventbus.PublishOption
					key := ""
					if i%3 == 0 {
						key = fmt.Sprint("k", i%7)
						options = append(options, eventbus.Key(key))
					}
					mustPublish(t, bus, "a", fmt.Sprintf("%s/%d", key, i), options...)
					want[key] = append(want[key], fmt.Sprintf("mail %s/%d 1", key, i))
				}
				synctest.Wait()
				l := bus.Metrics().Ledger
				require.EqualValues(t, eventbus.DefaultLineCapacity, l.Held)
				require.EqualValues(t, 3000, l.Stored)
				require.Empty(t, letters(t, bus))
				if crashes {
					disk.crash(bus)
					bus, _ = disk.open(t)
					mail = disk.handles(t, bus, "mail", nil)
					require.NoError(t, bus.Start(t.Context()))
					synctest.Wait()
				}
				require.NoError(t, mail.Resume())
				time.Sleep(time.Minute)
				got := map[string][]string{}
				for _, call := range disk.took() {
					key, _, _ := strings.Cut(strings.TrimPrefix(call, "mail "), "/")
					got[key] = append(got[key], call)
				}
				require.ElementsMatch(t, want[""], got[""])
				delete(want, "")
				delete(got, "")
				require.Equal(t, want, got)
				require.Empty(t, disk.Dump().Records)
				require.Zero(t, bus.Metrics().Ledger.Stored)
				shutdown(t, bus)
			})
		})
	}
}

func TestR5_UnsubscribeDeadLettersWhatTheStoreHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		gate := make(chan struct{})
		mail := disk.handles(t, bus, "mail", func(string, int) error { <-gate; return nil })
		require.NoError(t, bus.Start(t.Context()))
		for i := range 10 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		synctest.Wait()
		mail.Unsubscribe()
		close(gate)
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		time.Sleep(time.Hour + time.Second)
		all := letters(t, bus)
		require.Len(t, all, 10)
		for i := range all {
			require.Equal(t, eventbus.ReasonUnsubscribed, all[i].Reason)
		}
		shutdown(t, bus)
	})
}

// The door of a subscription that is made again knows the keys that the store has for its name.
func TestD5_ASubscriptionMadeAgainKeepsTheOrderOfWhatTheStoreHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, mail.Pause())
		const n = eventbus.DefaultLineCapacity + 3000
		for i := range n {
			mustPublish(t, bus, "a", fmt.Sprintf("%06d", i), eventbus.Key(fmt.Sprint(i%7)))
		}
		synctest.Wait()
		require.Empty(t, disk.took())
		mail.Unsubscribe()
		mail = mustSubscribe(t, bus, "*", eventbus.Typed(func(_ context.Context, payload string) error {
			time.Sleep(time.Millisecond)
			disk.note("%s", payload)
			return nil
		}), eventbus.Named("mail"))
		for i := range 20 {
			mustPublish(t, bus, "a", fmt.Sprintf("%06d", n+i), eventbus.Key(fmt.Sprint((n+i)%7)))
		}
		require.NoError(t, mail.Resume())
		time.Sleep(time.Minute)
		last := map[int]int{}
		for _, c := range disk.took() {
			i, err := strconv.Atoi(c)
			require.NoError(t, err)
			require.LessOrEqual(t, last[i%7], i)
			last[i%7] = i
		}
		shutdown(t, bus)
	})
}
