package browsertest_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// bothWays runs a test in a browser with JavaScript and in one without.
func bothWays(t *testing.T, test func(t *testing.T, s *shop, b *tab)) {
	t.Helper()
	for name, opening := range map[string]func(*testing.T, *shop, string) *tab{"with JavaScript": open, "without JavaScript": openPlain} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			test(t, s, opening(t, s, "anna"))
		})
	}
}

func (s *shop) requireAudit(action eventbus.AuditAction, by, why string) {
	s.t.Helper()
	entry := s.lastAudit()
	assert.Equal(s.t, action, entry.Action)
	assert.Equal(s.t, by, entry.By)
	assert.Equal(s.t, why, entry.Why)
}

// From the overview to the letter by links, and back to life.
func TestActions_Replay(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		letters := s.die(1)
		s.bank.Store(true)
		b.reload()
		b.do("the bank refused card #", "1 letter")
		b.do("order.paid", "Attempt 1 failed at billing")
		assert.Equal(t, "/letters/"+letters[0], b.path())
		b.fill("Why (in the audit)", "the bank answers")
		b.do("Replay", "The letter was replayed.")
		s.requireAudit(eventbus.AuditReplay, "anna", "the bank answers")
		require.Eventually(t, func() bool { return s.Metrics().Ledger.Replays == 1 && s.lettersLeft() == 0 }, patience, time.Millisecond)
		b.reload()
		assert.Contains(t, b.text(), "The letter was replayed.", "a reload does not replay again")
		b.do("What operators did to this event", "the bank answers")
	})
}

// The difference is shown before the edited payload is replayed.
func TestActions_EditAndReplay(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		letters := s.die(1)
		b.visit("/letters/" + letters[0])
		b.do("Edit and replay…", "First look at the difference")
		b.fill("Payload, as JSON", `{"number": 1,`)
		require.Equal(t, http.StatusBadRequest, b.click("Show the difference"))
		b.refused(http.StatusBadRequest)
		require.Contains(t, b.text(), "the payload is not valid JSON")
		b.fill("Payload, as JSON", "{\n  \"number\": 70,\n  \"customer\": \"c-17\",\n  \"cents\": 4200\n}")
		b.fill("Why (in the audit)", "a typo")
		b.do("Show the difference", `- "number": 1, + "number": 70,`)
		s.bank.Store(true)
		b.do("Replay with this payload", "replayed with the new payload")
		s.requireAudit(eventbus.AuditReplayEdited, "anna", "a typo")
		require.Eventually(t, func() bool { return s.lettersLeft() == 0 }, patience, time.Millisecond)
	})
}

func TestActions_PurgeALetter(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		letters := s.die(2)
		b.visit("/letters/" + letters[0])
		b.do("Purge…", "cannot be restored")
		b.do("Keep", "What happened")
		b.do("Purge…", "cannot be restored")
		b.fill("Why (in the audit)", "a test order")
		b.do("Purge", "The letter was purged.")
		s.requireAudit(eventbus.AuditPurge, "anna", "a test order")
		assert.Equal(t, 1, s.lettersLeft())
	})
}

// A group is replayed at a rate, which leaves time to cancel.
func TestActions_BulkReplayAndCancel(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		s.die(40)
		s.bank.Store(true)
		b.visit("/groups")
		b.do("Replay…", "40 letters match")
		b.fill("Rate, in letters per second", "fast")
		require.Equal(t, http.StatusBadRequest, b.click("Replay 40 letters"))
		b.refused(http.StatusBadRequest)
		b.fill("Rate, in letters per second", "0.01")
		b.fill("Stop after this number of failures", "3")
		b.fill("Why (in the audit)", "the bank answers")
		b.do("Replay 40 letters", "of 40 letters")
		b.do("Cancel the operation", "")
		b.untilText("cancelled: 1 of 40 letters")
		assert.Equal(t, 39, s.lettersLeft())
		b.do("Letters that match now", "39 letters")
		b.do("Replay all matching…", "39 letters match")
		b.fill("Why (in the audit)", "the rest")
		b.do("Replay 39 letters", "of 39 letters")
		b.untilText("done: 39 of 39 letters")
		assert.Zero(t, s.lettersLeft())
		s.requireAudit(eventbus.AuditReplayMatching, "anna", "the rest")
		b.do("Operations", "Replay matching done")
		b.do("Replay matching", "Every letter of the set was processed")
	})
}

// Purging everything needs the number and a tick.
func TestActions_BulkPurge(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		s.die(12)
		b.visit("/letters")
		b.do("Purge all matching…", "cannot be restored")
		b.fill("Type the number of letters, 12", "11")
		b.tick()
		require.Equal(t, http.StatusBadRequest, b.click("Purge 12 letters"))
		b.refused(http.StatusBadRequest)
		require.Contains(t, b.text(), "type 12 to purge")
		b.fill("Type the number of letters, 12", "12")
		b.fill("Why (in the audit)", "test orders")
		b.tick()
		b.do("Purge 12 letters", "of 12 letters")
		b.untilText("done: 12 of 12 letters")
		assert.Zero(t, s.lettersLeft())
		s.requireAudit(eventbus.AuditPurgeMatching, "anna", "test orders")
	})
}

func TestActions_Orders(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		b.do("Subscriptions", "In the order of delivery")
		b.do("mail", "Pattern order.*")
		for _, o := range []struct {
			button, expect string
			action         eventbus.AuditAction
		}{
			{"Pause", "The subscription is paused.", eventbus.AuditPause},
			{"Resume", "The subscription is resumed.", eventbus.AuditResume},
			{"Hold until then", "The subscription is paused until", eventbus.AuditHoldUntil},
			{"Resume", "The subscription is resumed.", eventbus.AuditResume},
			{"Trip the circuit", "The circuit is open.", eventbus.AuditTrip},
			{"Reset the circuit", "The circuit is closed.", eventbus.AuditReset},
		} {
			b.fill("Why (in the audit)", "drill: "+o.button)
			b.do(o.button, o.expect)
			s.requireAudit(o.action, "anna", "drill: "+o.button)
		}
		b.fill("Hold until, RFC 3339", "yesterday")
		require.Equal(t, http.StatusBadRequest, b.click("Hold until then"))
		b.refused(http.StatusBadRequest)
		b.do("Audit", "drill: Trip the circuit")
	})
}

func TestActions_FindAndCancelAnEvent(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		id := s.schedule()
		b.do("Events", "order.reminded")
		b.fill("Find an event by its id", id)
		b.do("Find", "1 dispatch has not settled.")
		assert.Equal(t, "/events/"+id, b.path())
		b.do("Cancel…", "cannot be restored")
		b.do("Keep", "1 dispatch has not settled.")
		b.do("Cancel…", "cannot be restored")
		b.fill("Why (in the audit)", "sent by hand")
		b.do("Cancel the event", "It was cancelled.")
		assert.Contains(t, b.text(), "Cancel found 1 delivery: done 1, left 0")
		s.requireAudit(eventbus.AuditCancel, "anna", "sent by hand")
		assert.Zero(t, s.Metrics().Scheduled)
	})
}

// What is held is tried from its row, and given up from the page that asks. The report stays while the page is live.
func TestActions_RetryAndGiveUp(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		require.NoError(t, s.Subscription("stock").Trip())
		for range 2 {
			_, err := s.Publish(t.Context(), "stock.moved", order{})
			require.NoError(t, err)
		}
		b.visit("/events")
		require.Equal(t, http.StatusConflict, b.click("Retry now"))
		b.refused(http.StatusConflict)
		require.Contains(t, b.text(), "it is held; Probe tries it nevertheless")
		b.do("Give up…", "can be replayed")
		b.fill("Why (in the audit)", "no such article")
		b.do("Give up the event", "What waited became dead letters")
		s.requireAudit(eventbus.AuditGiveUp, "anna", "no such article")
		assert.Equal(t, 1, s.lettersLeft())
		b.do("Events", "stock.moved")
		b.tick()
		b.do("Retry now", "What waited goes on now.")
		s.requireAudit(eventbus.AuditRetryNow, "anna", "")
		require.Eventually(t, func() bool { return s.Metrics().Held == 0 }, patience, time.Millisecond)
		if b.js {
			b.untilText("has settled")
		}
		assert.Contains(t, b.text(), "Retry now found 1 delivery: done 1, left 0")
	})
}

// Filters are in the address; with the script, only those that are set.
func TestActions_Filters(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		s.die(30, eventbus.Key("o-1"), eventbus.Metadata("channel", "web"))
		s.hold(2)
		b.visit("/letters")
		b.do("Next page", "First page")
		b.do("First page", "Next page")
		b.fill("Type, a pattern", "order.*")
		b.choose("Reason", "perm")
		b.press("More filters")
		b.fill("Metadata name", "channel")
		b.fill("Metadata value", "web")
		b.do("Filter", "30 letters")
		query := b.path()
		assert.Contains(t, query, "metadata_value=web")
		assert.Contains(t, query, "reason=permanent")
		assert.Equal(t, !b.js, strings.Contains(query, "key=&"), query)
		b.fill("Error contains", "no such text")
		b.do("Filter", "No letter matches.")
		b.do("Clear", "30 letters")
		b.do("hour", "30 letters")

		b.do("Events", "stock.moved")
		b.choose("State", "park")
		b.do("Show", "paused")
		b.do("Explain", "Enter a type")
		b.fill("Event type", "order.paid")
		b.do("Explain", "2 subscriptions")
		b.do("Audit", "the warehouse moves")
		b.choose("Action", "purge")
		b.do("Filter", "No entry matches.")
	})
}

// The payload and the export arrive as files.
func TestActions_Downloads(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		letters := s.die(3)
		dir, events := t.TempDir(), true
		profile := chromedp.FromContext(b.ctx).BrowserContextID
		done := make(chan string, 1)
		require.NoError(t, chromedp.ListenBrowser(b.ctx, func(event any) {
			if e, ok := event.(*browser.EventDownloadProgress); ok && e.State == browser.DownloadProgressStateCompleted {
				done <- e.GUID
			}
		}))
		_, err := chromedp.Run(b.ctx, func(ctx context.Context, _ *chromedp.Target) (cdp.Empty, error) {
			return cdp.Call(ctx, chromedp.FromContext(ctx).Browser, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
				Behavior: browser.SetDownloadBehaviorBehaviorAllowAndName, BrowserContextID: profile, DownloadPath: dir, EventsEnabled: &events,
			})
		})
		require.NoError(t, err)
		download := func(link string) string {
			b.press(link)
			select {
			case name := <-done:
				text, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				return string(text)
			case <-time.After(patience):
				require.Fail(t, "no download", link)
				return ""
			}
		}
		b.visit("/letters/" + letters[2])
		assert.JSONEq(t, `{"number": 3, "customer": "c-17", "cents": 4200}`, download("Download"))
		b.visit("/letters")
		export := strings.TrimSpace(download("Export as JSON lines"))
		for _, id := range letters {
			assert.Contains(t, export, id)
		}
	})
}

// An operator who may only look is offered nothing else.
func TestActions_OfferWhatIsPermitted(t *testing.T) {
	s := newShop(t)
	letters := s.die(1)
	id := s.schedule()
	b := open(t, s, "guest")
	for _, page := range []string{"/", "/groups", "/letters", "/letters/" + letters[0], "/subscriptions/mail", "/events/" + id} {
		b.visit(page)
		assert.Zero(t, eval[int](b, `document.querySelectorAll("form[method=post]").length`), page)
		assert.NotContains(t, b.text(), "c-17", page)
	}
	require.Equal(t, http.StatusForbidden, b.load(s.url+"/letters/"+letters[0]+"/purge"))
	b.refused(http.StatusForbidden)
}
