package browsertest_test

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"net/http"
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
var looks = []look{{1440, 900, "light"}, {1440, 900, "dark"}, {375, 812, "light"}, {375, 812, "dark"}}

type look struct {
	width, height int64
	scheme        string
}

// look gives the tab a screen and a colour scheme.
func (b *tab) look(l look) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.EmulateViewport(l.width, l.height)))
	_, err := call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}},
	})
	require.NoError(b.t, err)
}

// picture writes what the tab shows into the directory of -screenshots, if there is one.
func (b *tab) picture(name string, l look) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(*screenshots, fmt.Sprintf("%s_%d_%s.png", name, l.width, l.scheme)), image, 0o644))
}

// Each page, on a wide screen and on a phone, light and dark: no finding of axe-core, nothing outside the
// screen. With -screenshots the test writes pictures.
func TestAppearance(t *testing.T) {
	s, pages := newFullOfPages(t)
	axe := axeSource(t)
	b := open(t, s, "anna")
	for _, look := range looks {
		t.Run(fmt.Sprintf("%d_%s", look.width, look.scheme), func(t *testing.T) {
			b.look(look)
			require.NoError(t, s.Subscription("mail").Trip(eventbus.By("boris"), eventbus.Because("the provider is down"))) // it probes after 30 s
			for _, p := range pages {
				b.open(p)
				b.inspect(t, p.name, look, axe)
			}
			for _, p := range answers {
				p.reach(t, b, pages)
				b.inspect(t, p.name, look, axe)
			}
		})
	}
}

// answers are pages that answer a form.
var answers = []struct {
	name  string
	reach func(t *testing.T, b *tab, pages []shownPage)
}{
	{"difference", func(_ *testing.T, b *tab, pages []shownPage) {
		b.visit(pathOf(pages, "edit"))
		b.fill("Payload, as JSON", `{"number": 70}`)
		b.do("Show the difference", "+")
	}},
	{"refused-purge", func(t *testing.T, b *tab, pages []shownPage) {
		b.visit(pathOf(pages, "bulk-purge"))
		b.fill("Type the number of letters, 11", "10")
		b.tick()
		require.Equal(t, http.StatusBadRequest, b.click("Purge 11 letters"))
		b.refused(http.StatusBadRequest)
	}},
	{"report", func(_ *testing.T, b *tab, _ []shownPage) {
		b.visit("/events/" + b.shop.schedule() + "/cancel")
		b.do("Cancel the event", "Cancel found 1 delivery")
	}},
	{"refused-retirement", func(t *testing.T, b *tab, pages []shownPage) {
		b.visit(pathOf(pages, "retire-orphan"))
		b.fill("Type the name of the subscription", "crm")
		require.Equal(t, http.StatusBadRequest, b.click("Retire the name"))
		b.refused(http.StatusBadRequest)
	}},
}

// inspect requires that the page that the tab shows fits the screen, and that axe-core finds nothing.
func (b *tab) inspect(t *testing.T, name string, l look, axe string) {
	t.Helper()
	b.picture(name, l)
	assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), l.width, "%s is wider than the screen", name)
	_ = eval[bool](b, axe+"; true")
	findings, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]string](`axe.run().then((r) => r.passes.length < 10 ? ["axe-core checked hardly anything"] : r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html).join(" | ")))`, awaited))
	require.NoError(t, err)
	assert.Empty(t, findings, name)
	b.check()
}
