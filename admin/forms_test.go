package admin_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

// lastAudit returns the newest entry of the audit.
func lastAudit(t *testing.T, bus *eventbus.Bus) eventbus.AuditEntry {
	t.Helper()
	page, err := bus.Audit(t.Context(), eventbus.AuditQuery{Limit: 1})
	require.NoError(t, err)
	require.NotEmpty(t, page.Entries)
	return page.Entries[0]
}

func TestForms_ReplayALetter(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	letter := prefix + "/letters/" + bus.letters[0].ID.String()
	f := v.visit(letter).formWith(t, "Replay")
	d := v.follow(v.submit(f, "Replay", map[string]string{"why": "the bank answers"}))
	assert.Contains(t, d.text(), "The letter was replayed.")
	assert.Contains(t, d.text(), bus.letters[0].Event.ID.String())
	entry := lastAudit(t, bus.Bus)
	assert.Equal(t, eventbus.AuditReplay, entry.Action)
	assert.Equal(t, "anna", entry.By)
	assert.Equal(t, "the bank answers", entry.Why)
	assert.Contains(t, v.visit(letter).text(), "A replayed letter")

	again := v.submit(f, "Replay", nil)
	assert.Equal(t, http.StatusConflict, again.Code, "another operator was faster")
	assert.Contains(t, again.text(), "the letter is gone: replay by")
}

// The operator sees what an edit changes before it is replayed, and exactly that payload is replayed.
func TestForms_EditAndReplay(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	edit := prefix + "/letters/" + bus.letters[7].ID.String() + "/edit"

	f := v.visit(edit).formWith(t, "Show the difference")
	assert.Equal(t, "{\n  \"number\": 7\n}", f.values.Get("payload"))
	d := v.submit(f, "Show the difference", map[string]string{"payload": "{\r\n  \"number\": 70\r\n}", "why": "a typo"})
	assert.Equal(t, http.StatusOK, d.Code)
	assert.Contains(t, d.text(), `{ - "number": 7 + "number": 70 }`)
	f = d.formWith(t, "Replay with this payload")
	assert.Equal(t, "a typo", f.values.Get("why"))

	d = v.submit(f, "Replay with this payload", map[string]string{"payload": `{"number": 700}`})
	assert.Equal(t, http.StatusOK, d.Code, "its difference was not shown")
	assert.Contains(t, d.text(), `+ "number": 700`)
	d = v.submit(d.formWith(t, "Replay with this payload"), "Replay with this payload", nil)
	assert.Contains(t, v.follow(d).text(), "replayed with the new payload")
	entry := lastAudit(t, bus.Bus)
	assert.Equal(t, eventbus.AuditReplayEdited, entry.Action)
	assert.Equal(t, "a typo", entry.Why)

	// It fails again: the new letter has both payloads.
	var page eventbus.LetterPage
	require.Eventually(t, func() bool {
		var err error
		page, err = bus.DLQ().List(t.Context(), eventbus.LetterQuery{Event: bus.letters[7].Event.ID})
		return err == nil && len(page.Letters) == 1
	}, 10*time.Second, time.Millisecond)
	assert.JSONEq(t, `{"number": 700}`, string(page.Letters[0].Event.Payload.(json.RawMessage)))
	text := v.visit(prefix + "/letters/" + page.Letters[0].ID.String()).text()
	assert.Contains(t, text, `"number": 700`)
	assert.Contains(t, text, `Published payload, before an edit { "number": 7 }`)
	assert.Contains(t, text, "Replay 1")
}

// What was typed stays on the page when it is refused.
func TestForms_KeepWhatWasTyped(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	letter := prefix + "/letters/" + bus.letters[0].ID.String()

	d := v.submit(v.visit(letter+"/edit").formWith(t, "Show the difference"), "Show the difference", map[string]string{"payload": `{"number": `, "why": "a <b>"})
	assert.Equal(t, http.StatusBadRequest, d.Code)
	assert.Contains(t, d.text(), "not valid JSON")
	assert.Equal(t, `{"number": `, d.formWith(t, "Show the difference").values.Get("payload"))
	assert.Equal(t, "a <b>", d.formWith(t, "Show the difference").values.Get("why"))

	long := strings.Repeat("x", 300)
	for path, button := range map[string]string{letter: "Replay", letter + "/purge": "Purge"} {
		d = v.submit(v.visit(path).formWith(t, button), button, map[string]string{"why": long})
		assert.Equal(t, http.StatusBadRequest, d.Code)
		assert.Contains(t, d.text(), "longer than 255 bytes")
		assert.Equal(t, long, d.formWith(t, button).values.Get("why"))
	}
	_, err := bus.DLQ().Get(t.Context(), bus.letters[0].ID)
	require.NoError(t, err, "nothing was changed")

	stock := v.visit(prefix+"/subscriptions/stock").formWith(t, "Pause")
	d = v.submit(stock, "Hold until then", map[string]string{"until": "2001-01-01T00:00:00Z", "why": "maintenance"})
	assert.Equal(t, http.StatusBadRequest, d.Code)
	assert.Contains(t, d.text(), "is not in the future")
	assert.Equal(t, "2001-01-01T00:00:00Z", d.formWith(t, "Pause").values.Get("until"))
	assert.Equal(t, "maintenance", d.formWith(t, "Pause").values.Get("why"))

	d = v.submit(v.visit(prefix+"/bulk?action=replay_matching&key=k-1").formWith(t, "Replay 60 letters"), "Replay 60 letters", map[string]string{"rate": "fast", "stop_after": "3"})
	assert.Equal(t, http.StatusBadRequest, d.Code)
	assert.Equal(t, "fast", d.formWith(t, "Replay 60 letters").values.Get("rate"))
	assert.Equal(t, "3", d.formWith(t, "Replay 60 letters").values.Get("stop_after"))
	assert.Equal(t, "k-1", d.formWith(t, "Replay 60 letters").values.Get("key"))
}

func TestForms_PurgeALetterInTwoSteps(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	d := v.visit(prefix + "/letters/" + bus.letters[0].ID.String() + "/purge")
	assert.Contains(t, d.text(), "cannot be restored")
	f := d.formWith(t, "Purge")
	assert.Contains(t, v.follow(v.submit(f, "Purge", map[string]string{"why": "a test order"})).text(), "The letter was purged.")
	assert.Equal(t, eventbus.AuditPurge, lastAudit(t, bus.Bus).Action)
	assert.Equal(t, http.StatusConflict, v.submit(f, "Purge", nil).Code, "another operator was faster")
}

func TestForms_Orders(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	at := prefix + "/subscriptions/mail%2Feu"
	give := func(button string, changes map[string]string) *document {
		return v.follow(v.submit(v.visit(at).formWith(t, button), button, changes))
	}
	assert.Contains(t, give("Resume", map[string]string{"why": "it has moved"}).text(), "The subscription is resumed.")
	assert.False(t, bus.Metrics().Subscriptions[1].Paused)
	assert.Equal(t, "it has moved", lastAudit(t, bus.Bus).Why)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	d := give("Hold until then", map[string]string{"until": until.Format(time.RFC3339)})
	assert.Contains(t, d.text(), "paused until "+until.Format(time.RFC3339))
	give("Resume", nil)
	assert.Contains(t, give("Pause", nil).text(), "The subscription is paused.")
	assert.Contains(t, give("Trip the circuit", nil).text(), "circuit open")
	assert.Contains(t, give("Reset the circuit", nil).text(), "circuit closed")
	assert.Empty(t, v.visit(prefix+"/subscriptions/billing").formWith(t, "Pause").values.Get("why"))
	assert.NotContains(t, v.visit(prefix+"/subscriptions/billing").text(), "Trip the circuit", "it has none")
}

func TestForms_CancelAScheduledEvent(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	at := prefix + "/events/" + bus.scheduled.String()
	assert.Equal(t, at, v.load(prefix+"/events?id="+bus.scheduled.String()).Header().Get("Location"))
	f := v.visit(v.visit(at).linkWith(t, "Cancel…")).formWith(t, "Cancel the event")
	long := v.submit(f, "Cancel the event", map[string]string{"why": strings.Repeat("x", 300)})
	assert.Equal(t, http.StatusBadRequest, long.Code)
	assert.Len(t, long.formWith(t, "Cancel the event").values.Get("why"), 300, "what was typed stays")
	assert.Contains(t, v.follow(v.submit(f, "Cancel the event", map[string]string{"why": "sent by hand"})).text(), "It was cancelled.")
	assert.Equal(t, "sent by hand", lastAudit(t, bus.Bus).Why)
	assert.Equal(t, http.StatusConflict, v.submit(f, "Cancel the event", nil).Code, "it has settled")
}

// A form without JavaScript begins a bulk replay; its page shows the progress, also after a reload.
func TestForms_BulkReplay(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	d := v.visit(prefix + "/bulk?action=replay_matching&key=k-1&reason=permanent")
	for _, text := range []string{"60 letters match", "Key k-1", "Reason permanent", "billing 60 circuit disabled", "Sample: the newest letters"} {
		assert.Contains(t, d.text(), text)
	}
	f := d.formWith(t, "Replay 60 letters")
	require.NoError(t, bus.DLQ().Purge(t.Context(), bus.letters[0].ID))
	d = v.submit(f, "Replay 60 letters", map[string]string{"why": "the bank answers"})
	assert.Equal(t, http.StatusConflict, d.Code)
	assert.Contains(t, d.text(), "59 letters match now, not 60")
	d = v.submit(d.formWith(t, "Replay 59 letters"), "Replay 59 letters", map[string]string{"rate": "0.001"})
	at := d.Header().Get("Location")
	d = v.follow(d)
	assert.Contains(t, d.text(), "running")
	assert.Contains(t, d.text(), "of 59 letters")
	assert.Contains(t, d.text(), "the bank answers")
	assert.Contains(t, d.Body.String(), `<noscript><meta http-equiv="refresh" content="2">`)
	assert.Contains(t, v.visit(prefix+"/operations").text(), "Replay matching running")

	d = v.follow(v.submit(d.formWith(t, "Cancel the operation"), "Cancel the operation", nil))
	assert.Contains(t, d.text(), "being cancelled")
	require.Eventually(t, func() bool {
		d = v.visit(at)
		return strings.Contains(d.text(), "cancelled :")
	}, 10*time.Second, time.Millisecond)
	assert.Regexp(t, `Replayed [01] `, d.text())
	assert.NotContains(t, d.Body.String(), "refresh")
	assert.Empty(t, d.forms)
}

// Letters that die while the operator reads the form do not refuse it, and do not belong to its set.
func TestZ14_TheFormFixesItsSet(t *testing.T) {
	for _, action := range []string{"replay_matching", "purge_matching"} {
		for _, filter := range []string{"&type=order.*", "", "&type=order.*&until=2099-01-01T00:00:00Z"} {
			synctest.Test(t, func(t *testing.T) {
				bus := newFailing(t)
				v := newVisitor(t, bus.Bus)
				_ = bus.die(t, 3)
				time.Sleep(time.Second)
				button := map[string]string{"replay_matching": "Replay 3 letters", "purge_matching": "Purge 3 letters"}[action]
				f := v.visit(prefix+"/bulk?action="+action+filter).formWith(t, button)
				_ = bus.die(t, 1) // the clock of the bus is the one that counts
				time.Sleep(time.Second)
				typed := map[string]string{"confirm": "3", "rate": "1"}
				if filter == "" {
					d := v.submit(f, button, typed)
					require.Equal(t, http.StatusBadRequest, d.Code, "the fixed time is no filter")
					require.NotEmpty(t, d.formWith(t, button))
					typed["all"] = "true"
				}
				d := v.follow(v.submit(f, button, typed))
				require.Contains(t, d.text(), "of 3 letters")
				_ = bus.die(t, 1)
				time.Sleep(time.Minute)
				op := get[admin.OperationPage](t, v.h, prefix+"/api/v1/operations").Operations[0]
				require.Equal(t, admin.OperationDone, op.State)
				require.Equal(t, 3, op.Done)
				left := map[string]int{"replay_matching": 5, "purge_matching": 2}[action] // replays die again
				require.Equal(t, left, bus.letters(t))
			})
		}
	}
}

// A form whose set has changed keeps its time, and offers the letters that died since.
func TestZ14_AChangedSetIsShownAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newFailing(t)
		v := newVisitor(t, bus.Bus)
		letters := bus.die(t, 3)
		f := v.visit(prefix+"/bulk?action=purge_matching&type=order.*").formWith(t, "Purge 3 letters")
		require.NoError(t, bus.DLQ().Purge(t.Context(), letters[0].ID))
		time.Sleep(time.Second)
		_ = bus.die(t, 4)
		d := v.submit(f, "Purge 3 letters", map[string]string{"confirm": "3"})
		require.Equal(t, http.StatusConflict, d.Code)
		require.Contains(t, d.text(), "2 letters match now, not 3")
		require.Equal(t, f.values.Get("as_of"), d.formWith(t, "Purge 2 letters").values.Get("as_of"))
		i := slices.IndexFunc(d.all("a"), func(e *element) bool { return e.text == "Take in those that died since." })
		require.NotEmpty(t, v.visit(d.all("a")[i].attrs["href"]).formWith(t, "Purge 6 letters"))
		f.values.Del("as_of")
		require.Equal(t, http.StatusBadRequest, v.submit(f, "Purge 3 letters", nil).Code, "a form of an earlier version")
	})
}

// Purging asks for the number, and every letter at once for a confirmation.
func TestForms_BulkPurge(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	f := v.visit(prefix+"/bulk?action=purge_matching").formWith(t, "Purge 60 letters")
	d := v.submit(f, "Purge 60 letters", map[string]string{"all": "true", "confirm": "59"})
	assert.Equal(t, http.StatusBadRequest, d.Code)
	assert.Contains(t, d.text(), "type 60 to purge")
	d = v.submit(f, "Purge 60 letters", map[string]string{"confirm": "60"})
	assert.Equal(t, http.StatusBadRequest, d.Code, "all is not set")
	d = v.submit(f, "Purge 60 letters", map[string]string{"all": "true", "confirm": "60"})
	at := d.Header().Get("Location")
	v.follow(d)
	require.Eventually(t, func() bool {
		d = v.visit(at)
		return strings.Contains(d.text(), "done : 60 of 60 letters")
	}, 10*time.Second, time.Millisecond)
	assert.Contains(t, d.text(), "Purged 60")
	assert.Zero(t, bus.Metrics().DeadLetters)
}

// A payload that does not fit into a form, or is not JSON, is shown but not edited.
func TestForms_EditRefusesWhatItCannotShow(t *testing.T) {
	bus := newBus(t)
	_, err := bus.Subscribe("**", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(assert.AnError)
	}, eventbus.Named("billing"), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	v := newVisitor(t, bus)
	for _, payload := range []any{strings.Repeat("long ", 20_000), make(chan int)} {
		_, err = bus.PublishAndWait(t.Context(), "order.placed", payload)
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed)
		letter := prefix + "/letters/" + failed.Letters[0].ID.String()
		w := serve(v.h, request(t, http.MethodGet, letter, ""))
		require.Equal(t, http.StatusOK, w.Code)
		assert.NotContains(t, w.Body.String(), letter+"/edit")
		assert.Equal(t, http.StatusUnprocessableEntity, v.load(letter+"/edit").Code)
	}
}

// A form that a page of another site sends changes nothing.
func TestZ6_FormsOfOtherSites(t *testing.T) {
	bus := newBusy(t)
	v := newVisitor(t, bus.Bus)
	letter := prefix + "/letters/" + bus.letters[0].ID.String()
	for _, headers := range []map[string]string{
		{}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}, {"Origin": "http://evil.test"},
	} {
		for _, path := range []string{letter + "/replay", letter + "/purge", letter + "/edit", prefix + "/subscriptions/stock/pause", prefix + "/operations"} {
			r := request(t, http.MethodPost, path, "why=x")
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			for name, value := range headers {
				r.Header.Set(name, value)
			}
			d := v.check(path, serve(v.h, r))
			assert.Equal(t, http.StatusForbidden, d.Code, "%s %v", path, headers)
			assert.Contains(t, d.text(), "another site")
		}
	}
	_, err := bus.DLQ().Get(t.Context(), bus.letters[0].ID)
	require.NoError(t, err)
	r := request(t, http.MethodPost, letter+"/replay", `{"why":"x"}`) // JSON is for the API
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	assert.Equal(t, http.StatusUnsupportedMediaType, v.check(letter, serve(v.h, r)).Code)
}
