package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// incoming returns a new incoming event that is ready.
func incoming(opts ...func(*driver.Record)) *driver.Incoming {
	return &driver.Incoming{Record: ready(opts...), Codec: "json"}
}

// request returns a new request.
func request() *driver.Request { return &driver.Request{Body: []byte(`{"cancel":"ü'\u003c"}`)} }

// incomingOf returns the incoming events that match, page by page.
func incomingOf(t *testing.T, s driver.Store, q driver.IncomingQuery) (all []*driver.Incoming) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	for {
		page, err := s.Incoming(t.Context(), q)
		require.NoError(t, err, "Incoming")
		require.LessOrEqual(t, len(page.Events), q.Limit, "Incoming returned more than Limit")
		all = append(all, page.Events...)
		if !page.More {
			return all
		}
		require.NotEmpty(t, page.Events, "a page without events has More")
		q.After = page.Events[len(page.Events)-1].ID
	}
}

// requireIncoming requires that these incoming events match, in this order.
func requireIncoming(t *testing.T, s driver.Store, q driver.IncomingQuery, want ...*driver.Incoming) {
	t.Helper()
	got := incomingOf(t, s, q)
	require.Len(t, got, len(want), "the number of incoming events")
	for i, in := range got {
		require.Equal(t, [3]any{want[i].ID, want[i].Given, want[i].Codec}, [3]any{in.ID, in.Given, in.Codec}, "ID, Given and Codec of an incoming event")
		requireSame(t, []*driver.Record{want[i].Record}, []*driver.Record{in.Record}, "the Record of incoming event %d", in.ID)
	}
}
