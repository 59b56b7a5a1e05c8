package admin_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

func TestLetters_AreListedShownAndReplayed(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	letters := bus.die(t, 3, eventbus.Metadata("trace", "t-1"))

	page := get[eventbus.LetterPage](t, h, "/api/v1/letters?limit=2&type=order.*")
	require.Len(t, page.Letters, 2)
	require.Equal(t, 3, page.Total)
	require.Equal(t, letters[2].ID, page.Letters[0].ID)
	page = get[eventbus.LetterPage](t, h, "/api/v1/letters?limit=2&before="+page.Next.String())
	require.Len(t, page.Letters, 1)
	require.Equal(t, "t-1", page.Letters[0].Event.Metadata.Get("trace"))
	require.Equal(t, errDeclined.Error(), page.Letters[0].Failures[0].Error)

	close(bus.healed)
	id := letters[0].ID.String()
	require.Equal(t, letters[0].ID, get[eventbus.DeadLetter](t, h, "/api/v1/letters/"+id).ID)
	post[admin.Done](t, h, "/api/v1/letters/"+id+"/replay", `{"why":"the provider is back"}`)
	require.Equal(t, 2, bus.letters(t))
	e := refused(t, h, request(t, http.MethodPost, "/api/v1/letters/"+id+"/replay", `{}`), admin.CodeConflict)
	require.Contains(t, e.Message, `replay by "anna"`)
	_ = refused(t, h, request(t, http.MethodGet, "/api/v1/letters/"+id, ""), admin.CodeNotFound)

	post[admin.Done](t, h, "/api/v1/letters/"+letters[1].ID.String()+"/edit", `{"payload":{"number":7},"why":"wrong number"}`)
	post[admin.Done](t, h, "/api/v1/letters/"+letters[2].ID.String()+"/purge", `{}`)
	require.Zero(t, bus.letters(t))
}

// The reason of an import is in the query, because the body has the letters. No other query goes with a body.
func TestImport_HasAReason(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	_ = bus.die(t, 1)
	export := serve(h, request(t, http.MethodGet, "/api/v1/letters/export", "")).Body.String()
	bus = newFailing(t)
	h = newHandler(t, bus.Bus)
	r := request(t, http.MethodPost, "/api/v1/letters/import?why=from+the+old+host", export)
	r.Header.Set("Content-Type", "application/jsonl")
	require.Equal(t, http.StatusOK, serve(h, r).Code)
	page, err := bus.Audit(t.Context(), eventbus.AuditQuery{Action: eventbus.AuditImport})
	require.NoError(t, err)
	require.Len(t, page.Entries, 2, "its beginning and its outcome")
	require.Equal(t, "from the old host", page.Entries[0].Why)
	_ = refused(t, h, request(t, http.MethodPost, "/api/v1/subscriptions/billing/pause?until=2030-01-01T00:00:00Z", `{}`), admin.CodeBadRequest)
}
