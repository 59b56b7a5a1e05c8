package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// hostileTexts are what an attacker puts into events and errors.
var hostileTexts = []string{
	`<script>alert(1)</script>`,
	`"><img src=x onerror=alert(1)>`,
	`' onmouseover='alert(1)`,
	`javascript:alert(1)`,
	`</textarea></pre></title><svg onload=alert(1)>`,
	`{{.Body}}<!-- --><![CDATA[ ]]>&amp;&#60;`,
	"\x1b[2J\x1b]0;title\x07\x9b31m",
	"\u202egnp.exe\u2066\u200b\ufeff\u2028",
	"a\r\nb\x00c\x7f",
	"invalid \xff\xfe UTF-8",
	"../../etc/passwd?x=1&y=2#z",
	strings.Repeat("huge<&\"'", 20_000),
}

// Hostile texts in every place where an event, an error or an operator brings a text along: they are shown with
// escapes, never executed, and never make a page heavy.
func TestPages_Hostile(t *testing.T) {
	for _, text := range hostileTexts {
		t.Run(strings.Map(func(r rune) rune {
			if r > ' ' && r <= '~' && r != '/' {
				return r
			}
			return '_'
		}, text[:min(len(text), 20)]), func(t *testing.T) {
			name := strings.ToValidUTF8(strings.Map(func(r rune) rune {
				if unicode.IsControl(r) {
					return -1
				}
				return r
			}, text), "")
			name = strings.ToValidUTF8(name[:min(len(name), 200)], "")
			bus := newBus(t)
			_, err := bus.Subscribe("**", func(context.Context, eventbus.Event) error {
				return eventbus.Permanent(errors.New(text))
			}, eventbus.Named(name), eventbus.Circuit(eventbus.NoCircuit()))
			require.NoError(t, err)
			require.NoError(t, bus.Start(t.Context()))
			for range 30 {
				_, err = bus.PublishAndWait(t.Context(), "order.placed", name, eventbus.Key(name), eventbus.Metadata("n", name), eventbus.Metadata(name, "v"))
				require.ErrorAs(t, err, new(*eventbus.DeliveryError))
			}
			sub := bus.Subscription(name)
			require.NoError(t, sub.Pause(eventbus.By(name), eventbus.Because(name)))
			_, err = bus.Publish(t.Context(), "order.held", json.RawMessage(`"x"`), eventbus.Key(name+"2"))
			require.NoError(t, err)

			v := newVisitor(t, bus)
			assert.Greater(t, len(v.crawl(prefix+"/", 60)), 20)
			for range 30 {
			}
			for _, page := range []string{"/letters", "/groups", "/bulk?action=replay_matching", "/audit"} {
				v.visit(prefix + page) // with full tables
			}
			// What an operator types comes back as it was typed, and stays text.
			d := v.load(prefix + "/letters?" + url.Values{"since": {name}, "type": {name}}.Encode())
			assert.Equal(t, http.StatusBadRequest, d.Code)
		})
	}
}
