package browsertest_test

import (
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// deadLetters is the number of dead letters on the overview.
const deadLetters = `document.querySelector('[data-live="metrics.dead_letters"]').textContent`

// asOf is the time of the numbers.
const asOf = `document.querySelector(".head time").dateTime`

// The numbers of the overview change while the page is open, and what needs attention appears.
func TestLive_Overview(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	_ = eval[bool](b, `window.first = true`)
	require.Contains(t, b.text(), "Nothing: every circuit is closed")
	require.Equal(t, "0", eval[string](b, deadLetters))
	s.die(3)
	b.until("three letters", deadLetters+` === "3"`)
	b.untilText("3 dead letters See what they died of")
	require.NoError(t, s.Subscription("mail").Trip(eventbus.By("boris")))
	b.untilText("mail has its circuit open")
	s.die(1)
	b.until("four letters", deadLetters+` === "4"`)
	b.until("the ledger", `document.querySelector('[data-live="metrics.ledger.dead_lettered"]').textContent === "4"`)
	b.untilText("4 dead letters See what they died of") // within 10 s
	loaded := eval[string](b, asOf)
	b.until("a later time", asOf+" > "+quoted(loaded))
	require.True(t, eval[bool](b, `window.first === true`), "the page was loaded again")
}

// Without JavaScript, the overview loads itself again.
func TestLive_OverviewWithoutJavaScript(t *testing.T) {
	s := newShop(t)
	b := openPlain(t, s, "anna")
	s.die(3)
	b.untilText("3 dead letters See what they died of")
	assert.NotContains(t, b.text(), "Nothing: every circuit is closed")
}

// A region in which the operator works is not replaced, until the operator leaves it.
func TestLive_KeepsTheFocus(t *testing.T) {
	s := newShop(t)
	s.die(1)
	b := open(t, s, "anna")
	_ = eval[bool](b, `document.querySelector("#live .note a").focus(), document.activeElement.mark = true`)
	require.NoError(t, s.Subscription("mail").Trip())
	s.die(1)
	b.until("two letters", deadLetters+` === "2"`)
	s.die(1)
	b.until("three letters", deadLetters+` === "3"`) // a second later
	assert.True(t, eval[bool](b, `document.activeElement.mark === true`))
	assert.NotContains(t, b.text(), "mail has its circuit open")
	_ = eval[bool](b, `document.activeElement.blur(), true`)
	b.untilText("mail has its circuit open")
}

// A minute that begins renews the charts. The test plays the stream, so that it need not wait for a minute.
func TestLive_ANewMinute(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	_, err := call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `
		window.EventSource = class extends EventTarget {
			constructor() { super(); window.stream = this; }
			close() {}
		};
		window.play = (overview) => stream.dispatchEvent(new MessageEvent("overview", {data: JSON.stringify(overview)}));
		window.renewed = () => performance.getEntriesByType("resource").filter((e) => e.initiatorType === "fetch" && e.name === location.href).length;
	`})
	require.NoError(t, err)
	b.visit("/")
	_, err = chromedp.Run(b.ctx, chromedp.Evaluate[bool](`(async () => {
		window.seen = await (await fetch("`+prefix+`/api/v1/overview")).json();
		play(seen);
		play(seen);
		return true;
	})()`, awaited))
	require.NoError(t, err)
	require.Zero(t, eval[int](b, `renewed()`), "nothing has changed")
	_ = eval[bool](b, `seen.history.at(-1).start = "2036-01-01T00:00:00Z", play(seen), true`)
	b.until("the page is fetched", `renewed() === 1`)
}

func awaited(p *runtime.EvaluateParams) {
	yes := true
	p.AwaitPromise = &yes
}
