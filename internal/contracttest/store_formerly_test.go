package contracttest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// What an operator ordered under the old name holds under the new one, and Resume ends it for both.
func TestC6_FormerlyKeepsOrders(t *testing.T) {
	for name, order := range map[string]func(*eventbus.Subscription) error{
		"Pause":     func(s *eventbus.Subscription) error { return s.Pause() },
		"HoldUntil": func(s *eventbus.Subscription) error { return s.HoldUntil(time.Now().Add(time.Hour)) },
		"Trip":      func(s *eventbus.Subscription) error { return s.Trip() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				first, _ := disk.open(t)
				require.NoError(t, order(disk.handles(t, first, "post", nil)))
				disk.crash(first)

				renamed, _ := disk.open(t)
				mail := disk.handles(t, renamed, "mail", nil, eventbus.Formerly("letters", "post"))
				require.NoError(t, renamed.Start(t.Context()))
				mustPublish(t, renamed, "a", "x")
				require.Empty(t, disk.took())
				orders := catalog(t, renamed).Directives
				require.Len(t, orders, 1)
				require.Equal(t, "mail", orders[0].Subscription)
				if name == "Trip" {
					require.NoError(t, mail.Reset())
				} else {
					require.NoError(t, mail.Resume())
				}
				require.Equal(t, []string{"mail x 1"}, disk.took())
				require.Empty(t, catalog(t, renamed).Directives)
				disk.crash(renamed)

				back, _ := disk.open(t) // the new version is rolled back
				disk.handles(t, back, "post", nil)
				require.NoError(t, back.Start(t.Context()))
				mustPublish(t, back, "a", "y")
				require.Equal(t, []string{"post y 1"}, disk.took())
				shutdown(t, back)
			})
		})
	}
}

// Of orders under several names, the latest counts, also one that resumes.
func TestC6_FormerlyTheLatestOrderCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		process := func(name string, former ...eventbus.SubscribeOption) (*eventbus.Bus, *eventbus.Subscription) {
			time.Sleep(time.Second)
			bus, _ := disk.open(t)
			s := disk.handles(t, bus, name, nil, former...)
			require.NoError(t, bus.Start(t.Context()))
			return bus, s
		}
		renamed, mail := process("mail", eventbus.Formerly("post"))
		require.NoError(t, mail.Pause())
		disk.crash(renamed)

		back, post := process("post")
		mustPublish(t, back, "a", "x")
		require.Empty(t, disk.took(), "the new version has paused it")
		require.NoError(t, post.Resume())
		require.Equal(t, []string{"post x 1"}, disk.took())
		disk.crash(back)

		again, _ := process("mail", eventbus.Formerly("post"))
		mustPublish(t, again, "a", "y")
		require.Equal(t, []string{"mail y 1"}, disk.took(), "the old version has resumed it")
		disk.crash(again)

		back, post = process("post")
		require.NoError(t, post.Pause())
		disk.crash(back)
		again, _ = process("mail", eventbus.Formerly("post"))
		mustPublish(t, again, "a", "z")
		require.Empty(t, disk.took(), "the old version has paused it")
		disk.crash(again)
	})
}

// A tool orders under any name, and the bus obeys.
func TestC6_FormerlyForATool(t *testing.T) {
	for _, name := range []string{"mail", "post"} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t)
			mail := disk.handles(t, bus, "mail", nil, eventbus.Formerly("post"))
			require.NoError(t, bus.Start(t.Context()))
			require.NoError(t, mail.Pause())
			mustPublish(t, bus, "a", "x")
			time.Sleep(time.Second)
			tool := disk.tool(t)
			require.NoError(t, tool.Subscription(name).Resume())
			time.Sleep(time.Second)
			require.Equal(t, []string{"mail x 1"}, disk.took())
			require.NoError(t, tool.Subscription(name).Pause(eventbus.By("ann")))
			time.Sleep(time.Second)
			require.Equal(t, "ann", catalog(t, bus).Directives[0].By)
			require.Equal(t, "mail", catalog(t, tool).Directives[0].Subscription)
			mustPublish(t, bus, "a", "y")
			require.Empty(t, disk.took())
			for _, any := range []string{"mail", "post"} {
				for _, b := range []*eventbus.Bus{bus, tool} {
					page, err := b.Audit(t.Context(), eventbus.AuditQuery{Subscription: any})
					require.NoError(t, err)
					require.Len(t, page.Entries, 3)
				}
			}
			require.NoError(t, tool.Shutdown(t.Context()))
			require.NoError(t, mail.Resume())
			require.Equal(t, []string{"mail y 1"}, disk.took())
			shutdown(t, bus)
		})
	}
}

// Letters, groups, dispatches and the audit of the old name are found under the new one, and the other way round.
func TestC6_FormerlyKeepsLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithRetry(retry(0, 0)))
		disk.handles(t, first, "post", always(errBroken))
		disk.handles(t, first, "other", always(errBroken))
		require.NoError(t, first.Start(t.Context()))
		mustPublish(t, first, "a", "x")
		synctest.Wait()
		disk.crash(first)

		renamed, _ := disk.open(t, eventbus.WithRetry(retry(0, 0)))
		mail := disk.handles(t, renamed, "mail", always(errBroken), eventbus.Formerly("post"))
		require.NoError(t, renamed.Start(t.Context()))
		mustPublish(t, renamed, "a", "y")
		synctest.Wait()
		require.NoError(t, mail.Pause())
		mustPublish(t, renamed, "b", "z")
		time.Sleep(time.Second)
		tool := disk.tool(t)
		for _, bus := range []*eventbus.Bus{renamed, tool} {
			for _, name := range []string{"mail", "post"} {
				for reason, n := range map[eventbus.Reason]int{"": 2, eventbus.ReasonExhausted: 2, eventbus.ReasonOverflow: 0} {
					q := eventbus.LetterQuery{Subscription: name, Reason: reason}
					page, err := bus.DLQ().List(t.Context(), q)
					require.NoError(t, err)
					require.Len(t, page.Letters, n)
					require.Equal(t, n, page.Total)
					groups, err := bus.DLQ().Groups(t.Context(), q)
					require.NoError(t, err)
					require.Len(t, groups, n)
				}
				waiting, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{Subscription: name})
				require.NoError(t, err)
				require.Len(t, waiting.Dispatches, 1)
			}
		}
		require.NoError(t, tool.Shutdown(t.Context()))
		n, err := renamed.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Subscription: "mail"})
		require.NoError(t, err)
		require.Equal(t, 2, n.Purged)
		disk.crash(renamed)
	})
}

// In memory too: a subscription that takes the place of another one has its letters.
func TestC6_FormerlyInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(0, 0)))
		fails := disk{}
		first := fails.handles(t, bus, "post", always(errBroken))
		mustPublish(t, bus, "a", "x")
		synctest.Wait()
		first.Unsubscribe()
		fails.handles(t, bus, "mail", always(errBroken), eventbus.Formerly("post"))
		mustPublish(t, bus, "a", "y")
		synctest.Wait()
		for _, q := range []eventbus.LetterQuery{{Subscription: "mail"}, {Subscription: "post"}, {Subscription: "mail", Reason: eventbus.ReasonExhausted}} {
			page, err := bus.DLQ().List(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, 2, page.Total)
			require.Len(t, page.Letters, 2)
		}
		shutdown(t, bus)
	})
}
