package browsertest_test

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// attacks are texts that run a script where a page does not escape them: in an element, an attribute, a script, a
// style, a URL, a template, a comment and a text area. Each would open a dialog, or set a variable.
var attacks = []string{
	`<script>alert(1)</script>`,
	`</script><script>alert(1)</script>`,
	`"><img/src=x/onerror=alert(1)>`,
	`'><svg/onload=alert(1)>`,
	`" autofocus onfocus="alert(1)`,
	`' onmouseover='alert(1)' style='position:fixed;inset:0`,
	`javascript:alert(1)`,
	`JaVaScRiPt:alert(1)//`,
	`data:text/html,<script>alert(1)</script>`,
	`</textarea><script>alert(1)</script>`,
	`</title><script>alert(1)</script>`,
	`</noscript><script>alert(1)</script>`,
	`<!--><script>alert(1)</script>-->`,
	`<a href="javascript:alert(1)">Replay</a>`,
	`<iframe srcdoc="<script>parent.alert(1)</script>"></iframe>`,
	`<form action="//evil.example/"><input name=why><button>Replay</button></form>`,
	`<meta http-equiv="refresh" content="0;url=//evil.example/">`,
	`<base href="//evil.example/">`,
	`<link rel=stylesheet href="//evil.example/x.css">`,
	`<style>@import "//evil.example/x.css"; body { display: none }</style>`,
	`<math><mtext></p><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=alert(1)&gt;">`,
	`{{alert(1)}}${alert(1)}<%= alert(1) %>`,
	"`${alert(1)}`",
	`&lt;script&gt;alert(1)&lt;/script&gt;&#x3c;script&#x3e;alert(1)`,
	`\u003cscript\u003ealert(1)\x3c/script\x3e`,
	`+ADw-script+AD4-alert(1)+ADw-/script+AD4-`,
	`/../../static/app.js?x=<script>alert(1)</script>#"><script>alert(1)</script>`,
	"<scr\u0000ipt>alert(1)</script>",
	"\u202e<script>alert(1)</script>\u2028\u2029\ufeff",
	"<script\n>alert(1)</script\t>\r\n\x1b[31m\x1b]0;title\x07",
	"<img src=x onerror=alert(1)>\xff\xfe\xc0\xbc",
}

// asType returns what of an attack an event type may have.
func asType(attack string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r <= ' ' || r > 0x7e || strings.ContainsRune(`*?[]{}\.`, r) {
			return '-'
		}
		return r
	}, attack), ".")
}

// asName returns what of an attack a subscription name, a key or a metadata name may have.
func asName(attack string) string {
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '-'
		}
		return r
	}, strings.ToValidUTF8(attack, "-"))
	return name[:min(len(name), 240)]
}

// Texts of events and handlers are shown as texts, wherever they appear.
func TestHostile_TextsNeverRun(t *testing.T) {
	s := newShop(t)
	for i, attack := range attacks {
		_, err := s.Subscribe("evil."+strconv.Itoa(i)+".*", func(context.Context, eventbus.Event) error {
			return eventbus.Permanent(errors.New(attack))
		}, eventbus.Named(asName("at "+attack)))
		require.NoError(t, err)
	}
	var letters, events []string
	for i, attack := range attacks {
		eventType := "evil." + strconv.Itoa(i) + "." + asType(attack)
		options := []eventbus.PublishOption{eventbus.Key(asName(attack)), eventbus.Metadata(asName(attack), strings.ToValidUTF8(attack, "-"))}
		_, err := s.PublishAndWait(t.Context(), eventType, map[string]string{attack: attack}, options...)
		var failed *eventbus.DeliveryError
		require.ErrorAs(t, err, &failed, attack)
		letters = append(letters, failed.Letters[0].ID.String())
		id, err := s.Publish(t.Context(), eventType, attack, append(options, eventbus.After(1e12))...)
		require.NoError(t, err)
		events = append(events, id.String())
	}
	b := open(t, s, "anna")
	// What an attack that runs may do, besides a dialog or a request: both are problems of the tab.
	clean := func(where string) {
		assert.Zero(t, eval[int](b, `document.querySelectorAll("main script, main img, main iframe, main base, main link, main meta, main style, main math").length`), where)
		assert.Zero(t, eval[int](b, `[...document.querySelectorAll("*")].filter((e) => [...e.attributes].some((a) => a.name.startsWith("on") || a.name === "style")).length`), where)
		assert.Zero(t, eval[int](b, `[...document.querySelectorAll("a, form, button")].filter((e) => {
			const to = e.href || e.getAttribute("formaction") || e.getAttribute("action");
			return to && new URL(to, location).origin !== location.origin;
		}).length`), where)
		b.check()
	}
	for i, attack := range attacks {
		name := url.PathEscape(asName("at " + attack))
		for _, path := range []string{"/letters/" + letters[i], "/letters/" + letters[i] + "/edit", "/events/" + events[i], "/subscriptions/" + name} {
			b.visit(path)
			clean(path)
		}
		// As filters, attacks are typed texts, which also come back as values, links and hidden fields.
		filter := url.Values{"subscription": {asName("at " + attack)}, "key": {asName(attack)}}.Encode()
		for _, path := range []string{"/letters?" + filter, "/groups?" + filter, "/bulk?action=replay_matching&" + filter, "/explain?type=" + url.QueryEscape("evil."+strconv.Itoa(i)+"."+asType(attack))} {
			b.visit(path)
			clean(path)
		}
	}
	for _, path := range []string{"/", "/groups?limit=100", "/letters?limit=100", "/subscriptions?limit=100", "/events?limit=100", "/explain?type=evil.x"} {
		b.visit(path)
		clean(path)
	}
	// The page shows the attack itself, so nothing was filtered away.
	b.visit("/letters/" + letters[0])
	assert.Contains(t, b.text(), "class *errors.errorString <script>alert(1)</script> Dead letter")

	// An operator's reason is a hostile text to the next operator.
	for _, attack := range attacks[:6] {
		b.visit("/subscriptions/mail")
		b.fill("Why (in the audit)", attack)
		button := "Pause"
		if s.lastPaused() {
			button = "Resume"
		}
		b.do(button, "The subscription is")
		clean("after " + button)
	}
	b.do("Audit", "<script>alert(1)</script>")
	clean("audit")
	b.visit("/letters/" + letters[0])
	b.do("Edit and replay…", "Payload, as JSON")
	b.fill("Payload, as JSON", `{"a": "</textarea><script>alert(1)</script>", "b": "<img src=x onerror=alert(1)>"}`)
	b.do("Show the difference", `+ "b": "<img src=x onerror=alert(1)>"`)
	clean("edit")
}

// lastPaused reports whether mail is paused.
func (s *shop) lastPaused() bool {
	for _, sub := range s.Metrics().Subscriptions {
		if sub.Subscription == "mail" {
			return sub.Paused
		}
	}
	return false
}

// The policy stops a script that a page let through, and the tab notices: the test adds one.
func TestHostile_ThePolicyStopsScripts(t *testing.T) {
	s := newShop(t)
	b := open(t, s, "anna")
	_ = eval[bool](b, `(() => {
		const script = document.createElement("script");
		script.textContent = "window.ran = true";
		document.body.append(script);
		const div = document.createElement("div");
		div.innerHTML = "<img src='data:,' onerror='window.ran = true'><a id='evil' href='javascript:window.ran = true'>x</a>";
		document.body.append(div);
		document.getElementById("evil").click();
		return true;
	})()`)
	assert.False(t, eval[bool](b, `!!window.ran`))
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.NotEmpty(t, b.problems, "the listener of the tab sees violations")
	b.problems = nil
}

// Long texts, texts from right to left and texts without a place to break stay inside their places, on a wide screen and on a phone.
func TestHostile_TheLayoutHolds(t *testing.T) {
	s := newShop(t)
	for i, name := range []string{
		strings.Repeat("W", 255), strings.Repeat("<b>", 85), "\u202e" + strings.Repeat("\u05d0\u05d1\u05d2", 40), strings.Repeat("a b ", 63),
	} {
		text := strings.Repeat(name, 8<<10/len(name)+1)[:8<<10]
		eventType := "long." + strconv.Itoa(i) + "." + strings.Repeat("w", 200)
		_, err := s.Subscribe(eventType, func(context.Context, eventbus.Event) error { return eventbus.Permanent(errors.New(text)) }, eventbus.Named(name))
		require.NoError(t, err)
		_, err = s.PublishAndWait(t.Context(), eventType, text, eventbus.Key(name), eventbus.Metadata(strings.ToValidUTF8(name[:60], ""), strings.ToValidUTF8(text[:1000], "")))
		require.ErrorAs(t, err, new(*eventbus.DeliveryError))
		require.NoError(t, s.Subscription(name).Pause(eventbus.By(strings.Repeat("w", 200)), eventbus.Because(strings.ToValidUTF8(name[:200], ""))))
		_, err = s.Publish(t.Context(), eventType, text, eventbus.Key(name))
		require.NoError(t, err)
	}
	page, err := s.DLQ().List(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	paths := []string{"/", "/groups", "/letters", "/subscriptions", "/subscriptions?sort=-letters", "/events", "/audit"}
	for _, l := range page.Letters {
		paths = append(paths, "/letters/"+l.ID.String(), "/events/"+l.Event.ID.String(), "/subscriptions/"+url.PathEscape(l.Subscription))
	}
	b := open(t, s, "anna")
	for _, look := range looks {
		if look.scheme == "dark" {
			continue
		}
		require.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(look.width, look.height)))
		for _, path := range paths {
			b.visit(path)
			assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), look.width, "%s is wider than the screen", path)
			assert.Empty(t, eval[[]string](b, `[...document.querySelectorAll("main *")].filter((e) => e.checkVisibility() && !e.closest("pre, svg, .hidden, thead"))
				.filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 200)).slice(0, 3)`), "%s: outside the screen of %d", path, look.width)
		}
	}
}
