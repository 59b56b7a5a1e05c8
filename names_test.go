package eventbus_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// Every name finds its subscription, and nobody else's, whatever has come and gone, also
// one that looks as if it had been made up.
func TestR3_NamesFindTheirSubscriptions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bus, err := eventbus.New()
		require.NoError(t, err)
		var order []*eventbus.Subscription
		owners := map[string]*eventbus.Subscription{} // nil for a name that is free again
		anyName := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("a#%d", rapid.IntRange(1, 40).Draw(t, "number"))
		})
		subscribe := func(t *rapid.T) {
			var opts []eventbus.SubscribeOption
			var names []string
			if rapid.Bool().Draw(t, "named") {
				names = append(names, anyName.Draw(t, "name"))
				opts = append(opts, eventbus.Named(names[0]))
			}
			if former := rapid.SliceOfN(anyName, 0, 2).Draw(t, "formerly"); len(former) > 0 {
				names = append(names, former...)
				opts = append(opts, eventbus.Formerly(former...))
			}
			taken := false
			for i, name := range names {
				taken = taken || owners[name] != nil || slices.Contains(names[:i], name)
			}
			s, err := bus.Subscribe("a", ok, opts...)
			if taken {
				require.ErrorIs(t, err, eventbus.ErrDuplicateName)
				return
			}
			require.NoError(t, err)
			require.Nil(t, owners[s.ID()], "%s was somebody's", s.ID())
			order = append(order, s)
			for _, name := range append(names, s.ID()) {
				owners[name] = s
			}
		}
		unsubscribe := func(i int) {
			order[i].Unsubscribe()
			for name, s := range owners {
				if s == order[i] {
					owners[name] = nil
				}
			}
			order = slices.Delete(order, i, i+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"subscribe":       subscribe,
			"subscribe, too":  subscribe,
			"subscribe again": subscribe,
			"unsubscribe": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip()
				}
				unsubscribe(rapid.IntRange(0, len(order)-1).Draw(t, "which"))
			},
			"unsubscribe many": func(*rapid.T) {
				for len(order) > 2 {
					unsubscribe(1)
				}
			},
			"": func(t *rapid.T) {
				for name, s := range owners {
					if found := bus.Subscription(name); s != nil {
						require.Same(t, s, found, name)
					} else {
						require.False(t, found.Exists(), name)
					}
				}
				for _, name := range []string{"", "#", "a", "a#", "a#0", "a#01", "a#+1", "b#1", "a#99999999999999999999", "a##1"} {
					require.False(t, bus.Subscription(name).Exists(), name)
				}
				var ids []string
				for _, s := range order {
					ids = append(ids, s.ID())
				}
				var listed []string
				for _, s := range bus.Metrics().Subscriptions {
					listed = append(listed, s.Subscription)
				}
				require.Equal(t, ids, listed)
			},
		})
	})
}
