package admin_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/storetest"
)

// Pages stay open over a restart of the process. Each is told that the process stops. The next process, which knows nothing of
// them, has streams for them, and takes the forms that the process before has made.
func TestLive_ARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		bus := newRefusing(t, eventbus.WithStore(model.Open()))
		refuse(t, bus, 3, "card declined")
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Limit: 1})
		require.NoError(t, err)
		letter := page.Letters[0]
		paths := []string{"/", "/groups", "/letters", "/letters/" + letter.ID.String(), "/subscriptions/billing", "/events/" + letter.Event.ID.String(), "/operations", "/audit"}
		v := newVisitor(t, bus)
		bulk := v.visit(prefix+"/bulk?action=replay_matching&subscription=billing").formWith(t, "Replay 3 letters")
		pause := v.visit(prefix+"/subscriptions/billing").formWith(t, "Pause")
		open := func() (all []*watcher) {
			for _, path := range paths {
				all = append(all, watchPage(t, v.h, prefix+path, "anna"))
			}
			tick()
			return all
		}
		before := open()
		require.NoError(t, bus.Shutdown(t.Context()))
		for i, w := range before {
			<-w.ended
			_, ending, events := w.said()
			require.Equal(t, "stopping", ending, paths[i])
			require.NotZero(t, events, paths[i])
		}

		time.Sleep(time.Minute)
		bus = newRefusing(t, eventbus.WithStore(model.Open()))
		v = newVisitor(t, bus)
		refuse(t, bus, 1, "bank is closed")
		for i, w := range open() {
			problem, ending, events := w.said()
			require.Empty(t, problem, paths[i])
			require.Empty(t, ending, paths[i])
			require.NotZero(t, events, "%s gets its whole content", paths[i])
			fresh := parse(t, serve(v.h, request(t, http.MethodGet, prefix+paths[i], "")))
			require.Contains(t, w.shows(t), fresh.text(), paths[i])
		}
		require.Contains(t, v.follow(v.submit(pause, "Pause", nil)).text(), "paused")
		require.NoError(t, bus.Subscription("billing").Resume())
		require.Contains(t, v.follow(v.submit(bulk, "Replay 3 letters", map[string]string{"confirm": "3"})).text(), "of 3 letters", "the set is that of the form")
		time.Sleep(time.Minute)
		op := get[admin.OperationPage](t, v.h, prefix+"/api/v1/operations").Operations[0]
		require.Equal(t, 3, op.Done)
	})
}
