package browsertest_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// deadLetters is the number of dead letters on the overview.
const deadLetters = `document.getElementById("dead-letters").textContent`

// connection is what the page says about its connection.
const connection = `document.getElementById("connection").textContent`

// live waits until the page updates itself, and marks it: a page that was loaded again has no mark.
func (b *tab) live() {
	b.t.Helper()
	b.until("a live page", connection+` === "Live"`)
	_ = eval[bool](b, `window.first = true`)
}

// stays requires that the page was not loaded again.
func (b *tab) stays() {
	b.t.Helper()
	require.True(b.t, eval[bool](b, `window.first === true`), "the page was loaded again")
}

// The figures of the overview change while the page is open, and what needs attention appears.
func TestLive_Overview(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	b.live()
	require.Contains(t, b.text(), "Nothing: every circuit is closed")
	require.Equal(t, "0", eval[string](b, deadLetters))
	s.die(3)
	b.until("three letters", deadLetters+` === "3"`)
	b.untilText("the bank refused card # *errors.errorString")
	require.NoError(t, s.Subscription("mail").Trip(eventbus.By("boris")))
	b.untilText("mail has its circuit open")
	b.until("the badge", `document.getElementById("attention-count").textContent === "3 causes need attention"`)
	b.until("the ledger", `document.getElementById("ledger-dead_lettered").textContent === "3"`)
	b.stays()
}

// Every page that shows figures updates itself.
func TestLive_EveryPage(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	dies := func() { s.die(1) }
	for _, p := range []struct {
		path, before, after string
		change              func()
	}{
		{"/groups", "There is no dead letter.", "1 group", dies},
		{"/letters", "1 letter", "2 letters", dies},
		{"/subscriptions", "billing circuit closed 100 % fail 2 2", "billing circuit closed 100 % fail 3 3", dies},
		{"/subscriptions/billing", "3 failed calls", "4 failed calls", dies},
		{"/events?state=scheduled", "", "order.reminded", func() { s.schedule() }},
		{"/audit", "No operator has done anything yet.", "the warehouse moves", func() { s.hold(1) }},
		{"/subscriptions/stock", "1 parked now", "2 parked now", func() { s.hold(1) }},
	} {
		b.visit(p.path)
		b.live()
		require.Contains(t, b.text(), p.before, p.path)
		p.change()
		b.untilText(p.after)
		b.stays()
	}
}

// What another operator does appears on the open pages of the operations, the event and the letter.
func TestLive_WhatOthersDo(t *testing.T) {
	s := newShop(t)
	letters := s.die(2)
	id, err := eventbus.ParseLetterID(letters[0])
	require.NoError(t, err)
	letter, err := s.DLQ().Get(t.Context(), id)
	require.NoError(t, err)
	anna, boris := open(t, s, "anna"), open(t, s, "boris")
	s.bank.Store(true)
	for _, p := range []struct {
		path, before, after string
		change              func()
	}{
		{"/events/" + letter.Event.ID.String(), "dead-lettered at billing", "handled by billing at", func() {
			boris.visit("/letters/" + letters[0])
			boris.do("Replay", "The letter was replayed.")
		}},
		{"/letters/" + letters[1], "What happened", "the letter is gone", func() {
			boris.visit("/letters/" + letters[1])
			boris.do("Replay", "The letter was replayed.")
		}},
		{"/operations", "No bulk operation ran in this process.", "Replay matching running", func() {
			s.bank.Store(false)
			s.die(2)
			boris.operate("/bulk?action=replay_matching&subscription=billing", "Replay 2 letters", "0.001")
		}},
	} {
		anna.visit(p.path)
		anna.live()
		require.Contains(t, anna.text(), p.before, p.path)
		p.change()
		anna.until(p.after, `document.body.innerText.replace(/\s+/g, " ").includes(`+quoted(p.after)+`)`) // also beside the name of the operator
		anna.stays()
	}
}

// Without JavaScript, the overview loads itself again, and a reload renews every page.
func TestLive_WithoutJavaScript(t *testing.T) {
	s := newShop(t)
	b := openPlain(t, s, "anna")
	s.die(3)
	b.untilText("the bank refused card # *errors.errorString")
	assert.NotContains(t, b.text(), "Nothing: every circuit is closed")
	b.visit("/subscriptions")
	b.do("Failures", "Sorted.")
	b.do("billing", "3 failed calls")
	b.do("24 hours", "3 failed calls")
	s.die(1)
	b.reload()
	assert.Contains(t, b.text(), "4 failed calls")
}

// What has changed is marked, and what has not is not.
func TestLive_MarksWhatHasChanged(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	b.live()
	_ = eval[bool](b, `window.marked = [], Element.prototype.animate = function () { marked.push(this.textContent) }, true`)
	s.die(2)
	b.until("two letters", deadLetters+` === "2"`)
	assert.True(t, eval[bool](b, `marked.includes("2")`))
	assert.False(t, eval[bool](b, `marked.some((text) => /^[-0-9T:Z]+( now| .* ago)?$/.test(text.trim()) && text.includes("Z"))`), "the time passes all the time")
}

// The page says that it has lost its connection, since when, and that it has it again, from a process that knows nothing of it.
func TestLive_ARestartOfTheProcess(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	b.live()
	s.down()
	b.until("the loss", connection+`.startsWith("Connection lost at ")`)
	assert.True(t, eval[bool](b, `document.getElementById("live").classList.contains("stale")`))
	s.die(2)
	s.up(password)
	b.until("the connection", connection+`.startsWith("Connected again at ")`)
	b.until("two letters", deadLetters+` === "2"`)
	assert.False(t, eval[bool](b, `document.getElementById("live").classList.contains("stale")`))
	b.stays()
	b.failed()
}

// After a restart with another password, the page asks to sign in, and shows nothing new.
func TestLive_AChangedPassword(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	b.live()
	s.down()
	s.up("another password")
	s.die(1)
	b.until("the end", connection+`.startsWith("Signed out at ")`)
	assert.Equal(t, "0", eval[string](b, deadLetters))
	b.stays()
	b.failed()
}

// A page that is not looked at has no stream, and is up to date when it is looked at again.
func TestLive_PausesWhileHidden(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	b.live()
	require.EqualValues(t, 1, s.streams.Load())
	hide := func(hidden bool) {
		_ = eval[bool](b, `Object.defineProperty(document, "hidden", {value: `+strconv.FormatBool(hidden)+`, configurable: true}),
			document.dispatchEvent(new Event("visibilitychange")), true`)
	}
	hide(true)
	require.Eventually(t, func() bool { return s.streams.Load() == 0 }, patience, time.Millisecond)
	s.die(2)
	assert.Equal(t, "0", eval[string](b, deadLetters))
	hide(false)
	b.until("two letters", deadLetters+` === "2"`)
	assert.EqualValues(t, 1, s.streams.Load())
	assert.Equal(t, "Live", eval[string](b, connection), "this was no loss")
	b.stays()
}

// The focus stays where it is while the page around it changes, and so does what was typed.
func TestLive_KeepsFocusAndInput(t *testing.T) {
	s := newShop(t)
	s.die(1)
	b := open(t, s, "anna")
	b.live()
	_ = eval[bool](b, `document.querySelector("#live .causes a").focus(), document.activeElement.mark = true`)
	require.NoError(t, s.Subscription("mail").Trip())
	s.die(1)
	b.untilText("mail has its circuit open")
	b.until("two letters", deadLetters+` === "2"`)
	assert.True(t, eval[bool](b, `document.activeElement.mark === true`))

	b.visit("/subscriptions/billing")
	b.live()
	b.fill("Why (in the audit)", "half a sente")
	s.die(1)
	b.untilText("3 failed calls")
	require.NoError(t, s.Subscription("billing").Pause())
	b.untilText("paused")
	assert.Equal(t, "half a sente", eval[string](b, `document.activeElement.value`))
	assert.NotNil(t, eval[*bool](b, `(() => { const e = `+named("Pause")+`; return e ? true : null; })()`), "a button does not change under the pointer")
}

// A text that the reader selects stays until it is selected no more.
func TestLive_KeepsTheSelection(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	b.live()
	_ = eval[bool](b, `getSelection().selectAllChildren(document.querySelector("h1")), true`)
	s.die(1)
	require.Eventually(t, func() bool { return s.streams.Load() == 1 }, patience, time.Millisecond)
	b.until("the page hears of it", `performance.now() > 3000`)
	assert.Equal(t, "0", eval[string](b, deadLetters))
	assert.Equal(t, "Overview", eval[string](b, `String(getSelection())`))
	_ = eval[bool](b, `getSelection().removeAllRanges(), true`)
	b.until("one letter", deadLetters+` === "1"`)
}

// What is under the pointer stays there while causes appear above it. A row under it stays, too.
func TestLive_NothingMovesUnderThePointer(t *testing.T) {
	s := newShop(t)
	s.die(1)
	b := open(t, s, "anna")
	b.live()
	over := func(expression string) float64 {
		p := b.middle("the link", expression)
		_, err := call(b, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: p.X, Y: p.Y})
		require.NoError(t, err)
		b.until("the pointer", `(`+expression+`).matches(":hover")`)
		return eval[float64](b, `(`+expression+`).getBoundingClientRect().top`)
	}
	const letters = `document.getElementById("dead-letters")`
	before := over(letters)
	for _, name := range []string{"mail", "billing", "stock"} {
		require.NoError(t, s.Subscription(name).Trip())
	}
	b.untilText("stock has its circuit open")
	assert.InDelta(t, before, eval[float64](b, letters+`.getBoundingClientRect().top`), 1)

	const replay = `[...document.querySelectorAll(".causes a")].find((e) => e.textContent === "Replay…")`
	before = over(replay)
	_, err := s.DLQ().PurgeMatching(context.Background(), eventbus.LetterQuery{All: true})
	require.NoError(t, err)
	b.until("no letter", deadLetters+` === "0"`)
	assert.InDelta(t, before, eval[float64](b, `(`+replay+`).getBoundingClientRect().top`), 1)
	assert.True(t, eval[bool](b, `!!(`+replay+`).closest(".gone")`))
	require.NoError(t, chromedp.Do(b.ctx, chromedp.MouseClickXY(5, 5)))
	b.until("the row goes", `!document.querySelector(".causes")`)
}

// With the keyboard alone, every link and control of each page is reached in the order of the page, and is seen to have the
// focus, on a wide screen and on a phone.
func TestKeyboard_ReachesEverything(t *testing.T) {
	s, pages := newFullOfPages(t)
	b := open(t, s, "anna")
	for _, p := range pages {
		for _, width := range []int64{1440, 375} {
			require.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 900)))
			b.open(p)
			want := eval[int](b, `(window.all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
				.filter((e) => e.checkVisibility())).length`)
			for i := range want {
				require.NoError(t, chromedp.Do(b.ctx, chromedp.KeyEvent("\t")))
				// The browser scrolls to what has the focus in its next frame.
				b.until(p.name+": the focus on "+eval[string](b, `all[`+strconv.Itoa(i)+`].outerHTML`), `(() => {
					const e = document.activeElement, r = e.getBoundingClientRect(), at = document.elementFromPoint(r.left + 1, r.top + r.height / 2);
					return all.indexOf(e) === `+strconv.Itoa(i)+` && getComputedStyle(e).outlineStyle !== "none" && r.width > 1 && r.right <= innerWidth + 1 && at && (e.contains(at) || at.contains(e));
				})()`)
			}
		}
	}
}
