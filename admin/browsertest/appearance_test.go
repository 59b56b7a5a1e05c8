package browsertest_test

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

//go:embed testdata/axe.min.js.gz
var axeGzip []byte

// axeSource returns axe-core 4, which checks the accessibility rules of WCAG (https://github.com/dequelabs/axe-core).
func axeSource(t *testing.T) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(axeGzip))
	require.NoError(t, err)
	source, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(source)
}

// looks are the screens and colour schemes in which the page must be usable.
var looks = []struct {
	width, height int64
	scheme        string
}{{1440, 900, "light"}, {1440, 900, "dark"}, {375, 812, "light"}, {375, 812, "dark"}}

// shown are the pages of the screenshots. %[1]s is a letter, %[2]s its event.
var shown = []struct{ name, path string }{
	{"overview", "/"},
	{"groups", "/groups"},
	{"letters", "/letters"},
	{"letter", "/letters/%[1]s"},
	{"edit", "/letters/%[1]s/edit"},
	{"bulk", "/bulk?action=replay_matching&subscription=billing"},
	{"operations", "/operations"},
	{"subscriptions", "/subscriptions"},
	{"subscription", "/subscriptions/stock"},
	{"events", "/events"},
	{"event", "/events/%[2]s"},
	{"explain", "/explain?type=order.paid"},
	{"audit", "/audit"},
}

// Each page, on a wide screen and on a phone, light and dark: no serious finding of axe-core, nothing outside the
// screen. With -screenshots the test writes pictures.
func TestAppearance(t *testing.T) {
	s := newShop(t)
	letters := s.die(12, eventbus.Key("o-17"), eventbus.Metadata("channel", "web"))
	s.hold(3)
	s.schedule()
	require.NoError(t, s.Subscription("mail").Trip(eventbus.By("boris"), eventbus.Because("the provider is down")))
	id, err := eventbus.ParseLetterID(letters[0])
	require.NoError(t, err)
	letter, err := s.DLQ().Get(t.Context(), id)
	require.NoError(t, err)
	axe := axeSource(t)

	b := open(t, s, "anna")
	for _, look := range looks {
		t.Run(fmt.Sprintf("%d_%s", look.width, look.scheme), func(t *testing.T) {
			require.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(look.width, look.height)))
			_, err := call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
			})
			require.NoError(t, err)
			for _, p := range shown {
				b.visit(fmt.Sprintf(p.path+"%.0[1]s%.0[2]s", letters[0], letter.Event.ID))
				if *screenshots != "" {
					image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
					require.NoError(t, err)
					name := fmt.Sprintf("%s_%d_%s.png", p.name, look.width, look.scheme)
					require.NoError(t, os.WriteFile(filepath.Join(*screenshots, name), image, 0o644))
				}
				assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), look.width, "%s is wider than the screen", p.name)
				_ = eval[bool](b, axe+"; true")
				findings, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]string](`axe.run().then((r) => r.passes.length < 10 ? ["axe-core checked hardly anything"] : r.violations
					.filter((v) => v.impact === "serious" || v.impact === "critical")
					.map((v) => v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html).join(" | ")))`, awaited))
				require.NoError(t, err)
				assert.Empty(t, findings, p.name)
				b.check()
			}
		})
	}
}
