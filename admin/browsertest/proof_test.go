package browsertest_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// Three clicks lead from the cause on the overview to its bulk replay, which runs, and no more than one to the proof that it is handled.
func TestProof_ThreeClicksToAReplay(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		s.die(3)
		b.visit("/")
		s.bank.Store(true)
		require.Equal(t, http.StatusOK, b.click("Replay…"))
		require.Equal(t, http.StatusOK, b.click("Replay 3 letters"))
		assert.True(t, strings.HasPrefix(b.path(), "/operations/"), "two clicks: %s", b.path())
		b.untilText("done: 3 of 3 letters, 0 failures")
		b.untilText("Died again 0 letters")
		b.do("Letters that match now", "No letter matches.")
	})
}

// After the replay of a letter, its event's page proves that it is handled, without a click. So does the page of the letter, which other operators
// have as a link.
func TestProof_ALetterIsHandled(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		letters := s.die(1)
		s.bank.Store(true)
		b.visit("/letters/" + letters[0])
		b.do("Replay", "The letter was replayed.")
		require.True(t, strings.HasPrefix(b.path(), "/events/"), b.path())
		require.Eventually(t, func() bool { return s.lettersLeft() == 0 && s.Metrics().Ledger.Balanced() }, patience, time.Millisecond)
		if !b.js {
			b.reload()
		}
		b.untilText("The event has settled without a dead letter.")
		handled := "handled by billing at "
		b.untilText(handled)
		require.Contains(t, b.text(), "attempt 1, replayed by anna")
		b.visit("/letters/" + letters[0])
		require.Contains(t, b.text(), "A replayed letter")
		require.Contains(t, b.text(), handled)
	})
}

// A replay that fails again makes a new letter, which lists it. The operation links the letters that died again.
func TestProof_ALetterThatDiesAgain(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		s.die(2)
		b.visit("/")
		b.do("Replay…", "2 letters match")
		b.fill("Why (in the audit)", "perhaps")
		b.do("Replay 2 letters", "of 2 letters")
		b.untilText("done: 2 of 2 letters")
		require.Eventually(t, func() bool { return s.lettersLeft() == 2 }, patience, time.Millisecond)
		b.reload()
		b.do("2 letters", "Replayed before")
		b.do("order.paid", "Replays, oldest first")
		require.Contains(t, b.text(), "bulk replay")
		b.do("bulk replay", "By anna")
	})
}

// Events that have not settled are retried, given up and cancelled in bulk, each with a preview and an operation of its own.
func TestProof_BulkVerbs(t *testing.T) {
	bothWays(t, func(t *testing.T, s *shop, b *tab) {
		s.hold(4)
		b.visit("/events?subscription=stock")
		b.do("Retry now all matching…", "4 events match")
		b.do("Retry now: 4 events", "of 4 events")
		b.untilText("done: 4 of 4 events")
		b.untilText("Why deliveries were left")

		b.do("Events that match now", "stock.moved")
		b.do("Give up all matching…", "4 events match")
		b.fill("Rate, in events per second", "0.01")
		b.fill("Why (in the audit)", "no such article")
		b.do("Give up: 4 events", "of 4 events")
		b.do("Cancel the operation", "")
		b.untilText("cancelled: 1 of 4 events")
		s.requireAudit(eventbus.AuditGiveUp, "anna", "no such article")
		b.do("Go on with the rest", "3 events match")
		b.fill("Rate, in events per second", "")
		b.do("Give up: 3 events", "of 3 events")
		b.untilText("done: 3 of 3 events")
		require.Equal(t, 4, s.lettersLeft())

		_ = s.schedule()
		b.visit("/events?type=order.reminded")
		b.do("Cancel all matching…", "1 event matches")
		b.fill("Type the number of events, 1", "2")
		require.Equal(t, http.StatusBadRequest, b.click("Cancel: 1 event"))
		b.refused(http.StatusBadRequest)
		b.fill("Type the number of events, 1", "1")
		b.do("Cancel: 1 event", "of 1 events")
		b.untilText("done: 1 of 1 events")
		assert.Zero(t, s.Metrics().Scheduled)
		b.do("Events that match now", "No unsettled dispatch matches.")
	})
}
