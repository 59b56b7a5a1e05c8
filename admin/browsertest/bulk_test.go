package browsertest_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

const manyLetters = 10_000

// newFullShop returns a shop with 10,000 letters, and a bank that answers now.
func newFullShop(t *testing.T) *shop {
	t.Helper()
	s := newShop(t, eventbus.WithDeadLetterCapacity(manyLetters+100))
	for i := range manyLetters {
		_, err := s.Publish(t.Context(), "order.paid", order{Number: i})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return s.Metrics().DeadLetters == manyLetters }, patience, time.Millisecond)
	s.bank.Store(true)
	return s
}

// begin begins to replay all letters of the group, and returns the path of the progress page.
func (b *tab) begin(rate string) string {
	b.t.Helper()
	b.visit("/groups")
	b.do("Replay…", "10,000 letters match")
	b.fill("Rate, in letters per second", rate)
	b.fill("Why (in the audit)", "the bank answers")
	b.do("Replay 10,000 letters", "of 10,000 letters")
	return b.path()
}

// progress is the value of the bar.
const progress = `document.querySelector("progress").value`

// The page of a bulk replay shows its progress without a reload, and survives one.
func TestBulk_WatchedToItsEnd(t *testing.T) {
	s := newFullShop(t)
	b := open(t, s, "anna")
	at := b.begin("2500")
	_ = eval[bool](b, `window.first = true`)
	last := 0
	for range 2 { // it moves while the page is the same one
		b.until("more progress", progress+" > "+strconv.Itoa(last))
		last = eval[int](b, progress)
		assert.True(b.t, eval[bool](b, `window.first === true`), "the page was loaded again")
		assert.Less(t, last, manyLetters)
		assert.Contains(t, b.text(), "running")
	}
	b.reload()
	require.Equal(t, at, b.path())
	require.False(t, eval[bool](b, `window.first === true`))
	assert.GreaterOrEqual(t, eval[int](b, progress), last, "the reload lost progress")
	b.until("the end", progress+" === 10000")
	b.untilText("done: 10,000 of 10,000 letters, 0 failures")
	b.untilText("Replayed 10,000")
	b.until("no button to cancel", `!document.querySelector("main form")`)
	assert.Zero(t, s.lettersLeft())
	b.do("Letters that match now", "No letter matches.")
	s.requireAudit(eventbus.AuditReplayMatching, "anna", "the bank answers")
}

// Letters that die while the operator reads the form do not refuse it. The finished operation links the letters that died again.
func TestBulk_WhileLettersArrive(t *testing.T) {
	s := newShop(t)
	_ = s.die(20)
	b := open(t, s, "anna")
	b.visit("/groups")
	b.do("Replay…", "20 letters match")
	_ = s.die(5)
	b.do("Replay 20 letters", "of 20 letters")
	b.untilText("done: 20 of 20 letters")
	b.untilText("Duration")
	require.Eventually(t, func() bool { return s.lettersLeft() == 25 }, patience, time.Millisecond)
	b.reload()
	b.do("20 letters", "Replayed before")
}

// Without JavaScript, the page loads itself again until the operation has ended.
func TestBulk_WatchedWithoutJavaScript(t *testing.T) {
	s := newFullShop(t)
	b := openPlain(t, s, "anna")
	b.begin("4000")
	b.until("progress", progress+" > 0 && "+progress+" < 10000")
	b.untilText("done: 10,000 of 10,000 letters, 0 failures")
	assert.Zero(t, s.lettersLeft())
}

// Two operators see the same operation. The second cannot begin it again, and may cancel it.
func TestBulk_TwoOperators(t *testing.T) {
	s := newFullShop(t)
	anna, boris := open(t, s, "anna"), open(t, s, "boris")
	boris.visit("/groups")
	boris.do("Replay…", "10,000 letters match")
	at := anna.begin("500")
	anna.until("progress", progress+" > 0")

	require.Equal(t, http.StatusConflict, boris.click("Replay 10,000 letters"))
	boris.refused(http.StatusConflict)
	require.Contains(t, boris.text(), `of "anna" does the same already`)
	boris.do("Operations", "Replay matching running")
	boris.do("Replay matching", "By anna")
	require.Equal(t, at, boris.path())
	boris.until("progress", progress+" > 0")
	boris.do("Cancel the operation", "")
	for _, b := range []*tab{anna, boris} {
		b.untilText("cancelled:")
		b.until("no button to cancel", `!document.querySelector("main form")`)
	}
	done := eval[int](anna, progress)
	assert.Equal(t, done, eval[int](boris, progress))
	assert.Equal(t, manyLetters-done, s.lettersLeft(), "letters that were not processed are unchanged")
}

// Of two operators who replay one letter, the second is told that it is gone.
func TestBulk_TwoOperatorsOneLetter(t *testing.T) {
	s := newShop(t)
	letters := s.die(1)
	s.bank.Store(true)
	anna, boris := open(t, s, "anna"), openPlain(t, s, "boris")
	anna.visit("/letters/" + letters[0])
	boris.visit("/letters/" + letters[0])
	anna.do("Replay", "The letter was replayed.")
	require.Equal(t, http.StatusConflict, boris.click("Replay"))
	boris.refused(http.StatusConflict)
	assert.Contains(t, boris.text(), "the letter is gone")
	assert.Equal(t, int64(1), s.Metrics().Ledger.Replays)
}
