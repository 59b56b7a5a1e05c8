package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"strings"
)

// width is the width of all pictures. A phone shows them at two thirds of it, so the smallest letters have 9 px there.
const width = 520

// figure is a picture. Lengths are in px, y grows downward, and what is added later lies above what was added before.
type figure struct {
	file, title, desc string
	height            int
	boxes             []box
	paths             []path
	texts             []text
}

// tone is a pair of colours, for the light and the dark scheme.
type tone string

// The tones of boxes.
const (
	plain tone = ""
	good  tone = "good"  // handled
	bad   tone = "bad"   // failed, lost, dead-lettered
	wait  tone = "wait"  // not settled, and not running
	disk  tone = "disk"  // survives the process
	frame tone = "frame" // has other boxes in it
)

func (t tone) class() string { return cmp.Or(string(t), "plain") }

// box is a rectangle.
type box struct {
	x, y, w, h int
	tone       tone
	dashed     bool
	drum       bool // a cylinder
	more       bool // the first of several
}

func (b box) right() int  { return b.x + b.w }
func (b box) bottom() int { return b.y + b.h }
func (b box) midX() int   { return b.x + b.w/2 }
func (b box) midY() int   { return b.y + b.h/2 }

type point struct{ x, y int }

// path is an arrow with level and upright parts.
type path struct {
	points []point
	dashed bool
	axis   bool // it ends at no box
}

// text is a line of text. Its parts between backquotes are code.
type text struct {
	x, y   int // of the baseline
	anchor string
	style  style
	s      string
}

type style struct {
	class string
	size  int
	bold  bool
}

var (
	heading = style{"heading", 17, true}
	label   = style{"label", 16, false}
	note    = style{"note", 14, false}
	remark  = style{"remark", 14, false} // beside boxes
)

// drumCurve is how far the top of a drum curves.
const drumCurve = 8

// box adds a box with lines of text in its middle: a label, and notes.
func (f *figure) box(b box, lines ...string) box {
	f.boxes = append(f.boxes, b)
	const labelHeight, noteHeight = 22, 19
	height := labelHeight + noteHeight*(len(lines)-1)
	y := b.midY() - height/2
	if b.drum {
		y += drumCurve
	}
	for i, s := range lines {
		if i == 0 {
			f.text(b.midX(), y+17, middle, label, s)
			y += labelHeight
			continue
		}
		f.text(b.midX(), y+14, middle, note, s)
		y += noteHeight
	}
	return b
}

const (
	start  = "start"
	middle = "middle"
	end    = "end"
)

func (f *figure) text(x, y int, anchor string, s style, words string) {
	f.texts = append(f.texts, text{x, y, anchor, s, words})
}

// remarks adds lines of text beside boxes. y is the baseline of the first.
func (f *figure) remarks(x, y int, anchor string, lines ...string) {
	for i, s := range lines {
		f.text(x, y+18*i, anchor, remark, s)
	}
}

func (f *figure) arrow(points ...point) { f.paths = append(f.paths, path{points: points}) }

// axis adds an arrow beside the boxes.
func (f *figure) axis(from, to point) {
	f.paths = append(f.paths, path{points: []point{from, to}, axis: true})
}

// dash makes the last arrow a dashed one.
func (f *figure) dash() { f.paths[len(f.paths)-1].dashed = true }

// down draws an arrow from a box to one below it, at x.
func (f *figure) down(x int, from, to box) { f.arrow(point{x, from.bottom()}, point{x, to.y}) }

// across draws an arrow from a box to one on its right, at y.
func (f *figure) across(y int, from, to box) { f.arrow(point{from.right(), y}, point{to.x, y}) }

// scheme has the colours of a scheme.
type scheme struct {
	ground, rim, ink, faint, stroke string
	fill, edge                      map[tone]string
}

var (
	light = scheme{
		ground: "#ffffff", rim: "#d1d9e0", ink: "#1f2328", faint: "#59636e", stroke: "#59636e",
		fill: map[tone]string{plain: "#f6f8fa", good: "#dafbe1", bad: "#ffebe9", wait: "#fff8c5", disk: "#ddf4ff", frame: "#ffffff"},
		edge: map[tone]string{plain: "#818b98", good: "#1a7f37", bad: "#cf222e", wait: "#9a6700", disk: "#0969da", frame: "#818b98"},
	}
	dark = scheme{
		ground: "#0d1117", rim: "#3d444d", ink: "#f0f6fc", faint: "#9198a1", stroke: "#9198a1",
		fill: map[tone]string{plain: "#212830", good: "#12301c", bad: "#3a1a1d", wait: "#332a12", disk: "#14294a", frame: "#0d1117"},
		edge: map[tone]string{plain: "#7d8590", good: "#3fb950", bad: "#f85149", wait: "#d29922", disk: "#4493f8", frame: "#7d8590"},
	}
	tones = []tone{plain, good, bad, wait, disk, frame}
)

// codeSize is the size of code in a line of a size: letters of equal width look larger.
func codeSize(size int) int { return size - 1 }

func (s scheme) css(indent string) string {
	var b strings.Builder
	rule := func(selector, value string) { fmt.Fprintf(&b, "%s%s { %s }\n", indent, selector, value) }
	rule(".ground", "fill: "+s.ground+"; stroke: "+s.rim)
	rule("text, .head", "fill: "+s.ink)
	rule(".remark", "fill: "+s.faint)
	rule(".head", "fill: "+s.stroke)
	rule(".path", "stroke: "+s.stroke)
	for _, t := range tones {
		rule("."+t.class(), "fill: "+s.fill[t]+"; stroke: "+s.edge[t])
	}
	return b.String()
}

// svg returns the picture as a file. It has a ground of its own: a page may be dark where the browser prefers light.
func (f *figure) svg() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %[1]d %[2]d\" role=\"img\" aria-labelledby=\"title desc\">\n", width, f.height)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n", escape(f.title), escape(withoutMarks(f.desc)))
	b.WriteString("<!-- Drawn by go run ./scripts/site/pictures. -->\n<style>\n")
	b.WriteString("  text { font-family: -apple-system, BlinkMacSystemFont, \"Segoe UI\", \"Noto Sans\", Helvetica, Arial, sans-serif }\n")
	b.WriteString("  .code { font-family: ui-monospace, SFMono-Regular, \"SF Mono\", Menlo, Consolas, \"Liberation Mono\", monospace }\n")
	for _, s := range []style{heading, label, note, remark} {
		weight := ""
		if s.bold {
			weight = "; font-weight: 600"
		}
		fmt.Fprintf(&b, "  .%s { font-size: %dpx%s }\n  .%[1]s .code { font-size: %[4]dpx }\n", s.class, s.size, weight, codeSize(s.size))
	}
	b.WriteString("  .path { fill: none; stroke-width: 1.5; stroke-linejoin: round }\n  .dashed { stroke-dasharray: 5 4 }\n")
	b.WriteString(light.css("  ") + "  @media (prefers-color-scheme: dark) {\n" + dark.css("    ") + "  }\n</style>\n")
	b.WriteString("<marker id=\"head\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"10\" markerHeight=\"10\" markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"head\" d=\"M0 0.5 10 5 0 9.5z\"/></marker>\n")
	fmt.Fprintf(&b, "<rect class=\"ground\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width-1, f.height-1)
	for _, x := range f.boxes {
		x.write(&b)
	}
	for _, p := range f.paths {
		p.write(&b)
	}
	for _, t := range f.texts {
		t.write(&b)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// moreBoxes is how many boxes lie behind one that is the first of several, and moreOffset how far each stands out.
const moreBoxes, moreOffset = 2, 6

func (b box) write(to *bytes.Buffer) {
	class := b.tone.class()
	if b.dashed {
		class += " dashed"
	}
	if b.drum {
		fmt.Fprintf(to, "<path class=\"%s\" d=\"M%d %dv%da%d %d 0 0 0 %d 0v%d\"/>", class, b.x, b.y+drumCurve, b.h-2*drumCurve, b.w/2, drumCurve, b.w, -(b.h - 2*drumCurve))
		fmt.Fprintf(to, "<ellipse class=\"%s\" cx=\"%d\" cy=\"%d\" rx=\"%d\" ry=\"%d\"/>\n", class, b.midX(), b.y+drumCurve, b.w/2, drumCurve)
		return
	}
	if b.more {
		for i := moreBoxes; i > 0; i-- {
			fmt.Fprintf(to, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", class, b.x+i*moreOffset, b.y-i*moreOffset, b.w, b.h)
		}
	}
	fmt.Fprintf(to, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", class, b.x, b.y, b.w, b.h)
}

func (p path) write(to *bytes.Buffer) {
	class := "path"
	if p.dashed {
		class += " dashed"
	}
	fmt.Fprintf(to, "<polyline class=\"%s\" points=\"", class)
	for i, at := range p.points {
		if i > 0 {
			to.WriteByte(' ')
		}
		fmt.Fprintf(to, "%d,%d", at.x, at.y)
	}
	to.WriteString("\" marker-end=\"url(#head)\"/>\n")
}

func (t text) write(to *bytes.Buffer) {
	fmt.Fprintf(to, "<text class=\"%s\" x=\"%d\" y=\"%d\"", t.style.class, t.x, t.y)
	if t.anchor != start {
		fmt.Fprintf(to, " text-anchor=\"%s\"", t.anchor)
	}
	to.WriteByte('>')
	for i, part := range strings.Split(t.s, "`") {
		switch {
		case part == "":
		case i%2 == 0:
			to.WriteString(escape(part))
		default:
			fmt.Fprintf(to, `<tspan class="code">%s</tspan>`, escape(part))
		}
	}
	to.WriteString("</text>\n")
}

// withoutMarks returns a text without the marks of code.
func withoutMarks(s string) string { return strings.ReplaceAll(s, "`", "") }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder returns no error
	return b.String()
}
