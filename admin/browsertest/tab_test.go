package browsertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience bounds each wait for the browser.
const patience = time.Minute

// tab is a page of an operator in a profile of its own. It fails its test for every dialog, every error on the
// console, every violation of the content security policy and every request to another host.
type tab struct {
	t    *testing.T
	ctx  context.Context
	shop *shop
	js   bool

	mu       sync.Mutex // guards problems
	problems []string
}

// open opens a tab for an operator, who logs in as with the browser's own dialog.
func open(t *testing.T, s *shop, operator string) *tab { return openTab(t, s, operator, true) }

// openPlain is open for a browser without JavaScript.
func openPlain(t *testing.T, s *shop, operator string) *tab { return openTab(t, s, operator, false) }

func openTab(t *testing.T, s *shop, operator string, js bool) *tab {
	t.Helper()
	b := &tab{t: t, shop: s, js: js}
	ctx, cancel := chromedp.NewContext(chromium, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.listen))
	t.Cleanup(cancel)
	b.ctx = ctx
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(1440, 900)))
	_, err := call(b, audits.Enable, cdp.Empty{})
	require.NoError(t, err)
	_, err = call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !js})
	require.NoError(t, err)

	u, err := url.Parse(s.url + "/")
	require.NoError(t, err)
	u.User = url.UserPassword(operator, password)
	require.Equal(t, http.StatusOK, b.load(u.String())) // the browser keeps the credentials for the realm
	require.Equal(t, http.StatusOK, b.load(s.url+"/"))
	t.Cleanup(b.check)
	return b
}

func call[P, R any](b *tab, command cdp.Command[P, R], params P) (R, error) {
	return chromedp.Run(b.ctx, func(ctx context.Context, target *chromedp.Target) (R, error) {
		return cdp.Call(ctx, target, command, params)
	})
}

// listen records what must not happen.
func (b *tab) listen(event any) {
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		b.problem("a dialog opened: %s", e.Message)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning || e.Entry.Source == log.EntrySourceSecurity {
			b.problem("console: %s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		b.problem("console.%s was called", e.Type)
	case *runtime.EventExceptionThrown:
		b.problem("exception: %s", e.ExceptionDetails.Text)
	case *audits.EventIssueAdded:
		if e.Issue.Code == audits.InspectorIssueCodeContentSecurityPolicyIssue {
			b.problem("content security policy: %+v", e.Issue.Details.ContentSecurityPolicyIssueDetails)
		}
	case *network.EventRequestWillBeSent:
		u, err := url.Parse(e.Request.URL)
		own := err == nil && b.shop != nil && strings.HasPrefix(b.shop.url, "http://"+u.Host+"/")
		if !own && u.Scheme != "data" && u.Scheme != "about" {
			b.problem("a request to another host: %s", e.Request.URL)
		}
	}
}

func (b *tab) problem(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

// check fails the test for problems up to now.
func (b *tab) check() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("the browser reports: %s", p)
	}
	b.problems = nil
}

// refused removes the console entry of a page whose status is an error. There must be one.
func (b *tab) refused(code int) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range b.problems {
		if strings.Contains(p, fmt.Sprintf("the server responded with a status of %d", code)) {
			b.problems = append(b.problems[:i], b.problems[i+1:]...)
			return
		}
	}
	b.t.Errorf("the browser reports no status %d: %q", code, b.problems)
}

// within returns the context of the tab with the time limit of one step.
func (b *tab) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, patience)
}

// load loads a URL and returns its status.
func (b *tab) load(target string) int {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	answer, err := chromedp.Run(ctx, chromedp.NavigateResponse(target))
	require.NoError(b.t, err, target)
	return int(answer.Status)
}

// visit loads a page by its path below the prefix.
func (b *tab) visit(path string) {
	b.t.Helper()
	require.Equal(b.t, http.StatusOK, b.load(b.shop.url+path), path)
}

// reload is the reload button.
func (b *tab) reload() {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, chromedp.Reload()))
}

// eval returns the value of an expression. It works without JavaScript of the page, too.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return value
}

// point is the middle of an element on the screen, in CSS pixels.
type point struct{ X, Y float64 }

// middle scrolls to an element and returns its middle. js is an expression of the element, or of null.
func (b *tab) middle(what, js string) point {
	b.t.Helper()
	p := eval[*point](b, `(() => {
		const e = `+js+`;
		if (!e) return null;
		e.scrollIntoView({block: "center", behavior: "instant"});
		const r = e.getClientRects()[0];
		return {X: r.left + r.width / 2, Y: r.top + r.height / 2};
	})()`)
	require.NotNil(b.t, p, "%s is not on the page: %s", what, b.text())
	return *p
}

// named is the first visible link, button or summary of the page with a text; the main part comes first.
func named(text string) string {
	return `[...document.querySelectorAll("main a, main button, main summary"), ...document.querySelectorAll("header a")]
		.find((e) => e.textContent.trim().replace(/\s+/g, " ") === ` + quoted(text) + ` && e.getClientRects().length > 0)`
}

func quoted(text string) string {
	q, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can be encoded
	}
	return string(q)
}

// press clicks with the mouse, without waiting for anything.
func (b *tab) press(text string) {
	b.t.Helper()
	p := b.middle(text, named(text))
	ctx, cancel := b.within()
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, chromedp.MouseClickXY(p.X, p.Y)), text)
}

// click clicks a link or a button with the mouse, waits for the page that follows, and returns its status.
func (b *tab) click(text string) int {
	b.t.Helper()
	p := b.middle(text, named(text))
	ctx, cancel := b.within()
	defer cancel()
	answer, err := chromedp.RunResponse(ctx, chromedp.MouseClickXY(p.X, p.Y))
	require.NoError(b.t, err, text)
	require.NotNil(b.t, answer, text)
	return int(answer.Status)
}

// do clicks, and requires that the page that follows has a text.
func (b *tab) do(button, expect string) {
	b.t.Helper()
	require.Equal(b.t, status(http.StatusOK), status(b.click(button)), "%s: %s", button, b.text())
	require.Contains(b.t, b.text(), expect, "after %s", button)
}

// fill types a text into the control with a label, instead of what is there.
func (b *tab) fill(label, text string) {
	b.t.Helper()
	p := b.middle(label, `[...document.querySelectorAll("main label")].find((l) => l.textContent.trim() === `+quoted(label)+`)?.control`)
	ctx, cancel := b.within()
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, chromedp.MouseClickXY(p.X, p.Y)), label)
	_ = eval[bool](b, `document.activeElement.select(), true`)
	_, err := call(b, input.InsertText, input.InsertTextParams{Text: text})
	require.NoError(b.t, err, label)
}

// choose selects an option of the list with a label, by its first letters.
func (b *tab) choose(label, option string) {
	b.t.Helper()
	b.middle(label, `[...document.querySelectorAll("main label")].find((l) => l.textContent.trim() === `+quoted(label)+`)?.control`)
	_ = eval[bool](b, `[...document.querySelectorAll("main label")].find((l) => l.textContent.trim() === `+quoted(label)+`).control.focus(), true`)
	ctx, cancel := b.within()
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, chromedp.KeyEvent(option)), label)
}

// check ticks the only checkbox of the page.
func (b *tab) tick() {
	b.t.Helper()
	p := b.middle("the checkbox", `document.querySelector("main input[type=checkbox]")`)
	ctx, cancel := b.within()
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, chromedp.MouseClickXY(p.X, p.Y)))
}

// text returns the visible text of the main part, with single spaces.
func (b *tab) text() string {
	b.t.Helper()
	return strings.Join(strings.Fields(eval[string](b, `document.querySelector("main")?.innerText ?? ""`)), " ")
}

// path returns the path of the page below the prefix, with its query.
func (b *tab) path() string {
	b.t.Helper()
	return strings.TrimPrefix(eval[string](b, `location.pathname + location.search`), prefix)
}

// until waits for an expression to be true. The browser is another process, so there is nothing to wait on but
// its answers. A page that is just being replaced counts as not yet.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`!!(`+expression+`)`))
		if err == nil && ok {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			require.Fail(b.t, "the page did not get there", "%s: %v: %s", what, err, b.text())
		}
	}
}

// untilText waits for a text in the main part.
func (b *tab) untilText(text string) {
	b.t.Helper()
	b.until(text, `document.querySelector("main")?.innerText.replace(/\s+/g, " ").includes(`+quoted(text)+`)`)
}

// failed removes the console entries of connections that were lost and of credentials that were refused. There must be one.
func (b *tab) failed() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.problems)
	b.problems = slices.DeleteFunc(b.problems, func(p string) bool {
		return strings.Contains(p, "net::ERR_") || strings.Contains(p, fmt.Sprintf("the server responded with a status of %d", http.StatusUnauthorized))
	})
	if len(b.problems) == before {
		b.t.Errorf("the browser reports no lost connection: %q", b.problems)
	}
}

func awaited(p *runtime.EvaluateParams) {
	yes := true
	p.AwaitPromise = &yes
}
