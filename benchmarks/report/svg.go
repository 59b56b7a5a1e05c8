package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// bar is one row of a chart.
type bar struct {
	label, text string
	value       float64
	ours        bool
}

// group is bars under a heading.
type group struct {
	title string
	bars  []bar
}

// A chart's measures, in pixels.
const (
	chartWidth, labelWidth, textWidth = 820, 300, 90
	barHeight, barGap, groupGap, top  = 16, 6, 30, 46
)

// chart draws horizontal bars, shorter is better. The scale is logarithmic if the
// values are far apart. Colours are for light and dark backgrounds.
func chart(title string, groups []group) string {
	least, most := math.Inf(1), 0.0
	height := top
	for _, g := range groups {
		height += groupGap + len(g.bars)*(barHeight+barGap)
		for _, b := range g.bars {
			if b.value > 0 {
				least = min(least, b.value)
			}
			most = max(most, b.value)
		}
	}
	height += 10
	length := func(v float64) float64 { return v / most }
	scale := "linear scale"
	if most/least > 20 {
		// A decade below the least one, so that it has a bar too.
		decades := math.Log10(most/least) + 1
		length = func(v float64) float64 { return max(0, 1+math.Log10(v/most)/decades) }
		scale = "logarithmic scale"
	}

	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" font-family="system-ui, sans-serif" font-size="12">`+"\n", chartWidth, height)
	fmt.Fprintf(&s, "<title>%s</title>\n", escape(title))
	s.WriteString(`<style>
text { fill: #1f2328 }
.quiet { fill: #59636e }
.bar { fill: #8c959f }
.ours { fill: #0969da }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.quiet { fill: #9198a1 }
.bar { fill: #6e7681 }
.ours { fill: #4493f8 }
}
</style>
`)
	fmt.Fprintf(&s, `<text x="8" y="20" font-size="15" font-weight="600">%s</text>`+"\n", escape(title))
	fmt.Fprintf(&s, `<text x="8" y="38" class="quiet">shorter is better, %s</text>`+"\n", scale)
	y := top
	for _, g := range groups {
		y += groupGap
		fmt.Fprintf(&s, `<text x="8" y="%d" font-weight="600">%s</text>`+"\n", y-8, escape(g.title))
		for _, b := range g.bars {
			class, weight := "bar", "400"
			if b.ours {
				class, weight = "ours", "600"
			}
			width := 0.0
			if b.value > 0 && most > 0 {
				width = max(1, length(b.value)*(chartWidth-labelWidth-textWidth))
			}
			fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end" font-weight="%s">%s</text>`+"\n", labelWidth-8, y+12, weight, escape(b.label))
			fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" class="%s"/>`+"\n", labelWidth, y, width, barHeight, class)
			fmt.Fprintf(&s, `<text x="%.1f" y="%d" font-weight="%s">%s</text>`+"\n", labelWidth+width+6, y+12, weight, escape(b.text))
			y += barHeight + barGap
		}
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func escape(s string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(s)) // a strings.Builder does not fail
	return out.String()
}

// label is a rival's title without the marks for bold and code.
func label(r plan.Rival) string {
	return strings.NewReplacer("**this bus**", "this bus", "`", "").Replace(r.Title)
}

// chartOf is the chart of a workload; empty if nothing of it was measured.
func chartOf(r *results, w plan.Workload) string {
	var groups []group
	for _, c := range w.Cases {
		g := group{title: c.Title + ": " + columns[c.Unit]}
		for _, name := range c.Rivals {
			s, err := r.of(plan.Run{Workload: w.Name, Case: c.Name, Rival: name}, c.Unit)
			if err != nil {
				continue
			}
			rival, _ := plan.RivalNamed(name)
			g.bars = append(g.bars, bar{
				label: label(rival),
				text:  quantity(s.median, c.Unit),
				value: s.median,
				ours:  name == plan.Us,
			})
		}
		slices.SortStableFunc(g.bars, func(a, b bar) int {
			switch {
			case a.value < b.value:
				return -1
			case a.value > b.value:
				return 1
			}
			return 0
		})
		if len(g.bars) > 0 {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 {
		return ""
	}
	return chart(w.Title, groups)
}
