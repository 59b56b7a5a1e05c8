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
