package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const root = "../../.."

func figures(t *testing.T) []*figure {
	t.Helper()
	all, err := draw(root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTheFilesAreAsDrawn(t *testing.T) {
	drawn := make(map[string]bool)
	for _, f := range figures(t) {
		drawn[f.file] = true
		committed, err := os.ReadFile(filepath.Join(root, directory, f.file))
		if err != nil || !bytes.Equal(committed, f.svg()) {
			t.Errorf("%s/%s is not as drawn (%v): go run ./scripts/site/pictures", directory, f.file, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, directory))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".svg" && !drawn[entry.Name()] {
			t.Errorf("%s/%s is drawn by nothing", directory, entry.Name())
		}
	}
}

func TestAPictureIsAnSVGFile(t *testing.T) {
	for _, f := range figures(t) {
		text := make(map[string]string) // of an element
		decoder, in := xml.NewDecoder(bytes.NewReader(f.svg())), ""
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(f.file, err)
			}
			switch token := token.(type) {
			case xml.StartElement:
				in = token.Name.Local
				for _, a := range token.Attr {
					text[in+" "+a.Name.Local] = a.Value
				}
			case xml.CharData:
				text[in] += string(token)
			}
		}
		if strings.TrimSpace(text["title"]) != f.title || strings.TrimSpace(text["desc"]) != withoutMarks(f.desc) || f.title == "" || f.desc == "" {
			t.Errorf("%s: the title is %q, the description %q", f.file, text["title"], text["desc"])
		}
		if want := "0 0 520 " + strconv.Itoa(f.height); text["svg viewBox"] != want {
			t.Errorf("%s: the viewBox is %q and not %q", f.file, text["svg viewBox"], want)
		}
		if !strings.Contains(text["style"], ".note { font-size: 14px }") || !strings.Contains(text["style"], ".note .code { font-size: 13px }") {
			t.Errorf("%s has letters of another size than measured: %s", f.file, text["style"])
		}
		if !strings.Contains(text["style"], "prefers-color-scheme: dark") {
			t.Errorf("%s has no dark scheme", f.file)
		}
	}
}

// A text is in the middle of one box, or beside all.
func TestNoTextLeavesItsBox(t *testing.T) {
	const inset, gap = 6, 2
	for _, f := range figures(t) {
		for i, x := range f.texts {
			for _, b := range f.boxes {
				if !b.area().grown(-inset).contains(x.area()) && b.area().grown(gap).meets(x.area()) {
					t.Errorf("%s: %q, %+v, does not fit into the box %+v", f.file, x.s, x.area(), b.area())
				}
			}
			if ground := (area{0, 0, width, f.height}); !ground.grown(-8).contains(x.area()) {
				t.Errorf("%s: %q, %+v, does not fit into the picture", f.file, x.s, x.area())
			}
			for _, other := range f.texts[:i] {
				if x.area().meets(other.area()) {
					t.Errorf("%s: %q and %q overlap", f.file, x.s, other.s)
				}
			}
			if x.style.size < 13 || codeSize(x.style.size) < 13 {
				t.Errorf("%s: %q is too small", f.file, x.s)
			}
		}
	}
}

func TestNoBoxesOverlap(t *testing.T) {
	for _, f := range figures(t) {
		for i, b := range f.boxes {
			for _, other := range f.boxes[:i] {
				if b.area().meets(other.area()) && (other.tone != frame || !other.area().grown(-10).contains(b.area())) {
					t.Errorf("%s: the boxes %+v and %+v overlap", f.file, b.area(), other.area())
				}
			}
			if ground := (area{0, 0, width, f.height}); !ground.grown(-16).contains(b.area()) {
				t.Errorf("%s: the box %+v is too near to the edge", f.file, b.area())
			}
		}
	}
}

func TestNoArrowCrossesATextOrABox(t *testing.T) {
	for _, f := range figures(t) {
		for _, p := range f.paths {
			for i := 1; i < len(p.points); i++ {
				from, to := p.points[i-1], p.points[i]
				if from.x != to.x && from.y != to.y {
					t.Errorf("%s: the arrow from %v to %v is oblique", f.file, from, to)
				}
				line := between(from, to)
				for _, x := range f.texts {
					if x.area().grown(2).meets(line) {
						t.Errorf("%s: the arrow %+v crosses %q, %+v", f.file, line, x.s, x.area())
					}
				}
				for _, b := range f.boxes {
					if b.tone != frame && b.area().grown(-1).meets(line) {
						t.Errorf("%s: the arrow %+v crosses the box %+v", f.file, line, b.area())
					}
				}
				if !(area{0, 0, width, f.height}).grown(-16).contains(line) {
					t.Errorf("%s: the arrow %+v is too near to the edge", f.file, line)
				}
			}
			if last := p.points[len(p.points)-1]; !p.axis && !f.touches(last) {
				t.Errorf("%s: the arrow to %v ends at no box", f.file, last)
			}
		}
	}
}

func (f *figure) touches(p point) bool {
	for _, b := range f.boxes {
		if (p.x == b.x || p.x == b.right()) && b.y < p.y && p.y < b.bottom() || (p.y == b.y || p.y == b.bottom()) && b.x < p.x && p.x < b.right() {
			return true
		}
	}
	return false
}

// The contrasts that WCAG 2.2 asks for: 4.5 of text, 3 of what shows a shape.
func TestContrasts(t *testing.T) {
	for name, s := range map[string]scheme{"light": light, "dark": dark} {
		atLeast := func(least float64, color, on, what string) {
			if got := contrast(t, color, on); got < least {
				t.Errorf("%s: the contrast of %s, %s on %s, is %.2f and not %.1f", name, what, color, on, got, least)
			}
		}
		atLeast(4.5, s.ink, s.ground, "text")
		atLeast(4.5, s.faint, s.ground, "remarks")
		atLeast(3, s.stroke, s.ground, "arrows")
		for _, tone := range tones {
			atLeast(4.5, s.ink, s.fill[tone], tone.class()+" text")
			atLeast(4.5, s.faint, s.fill[tone], tone.class()+" remarks")
			atLeast(3, s.edge[tone], s.ground, tone.class()+" edge")
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func luminance(t *testing.T, color string) (sum float64) {
	t.Helper()
	for i, share := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(color[1+2*i:3+2*i], 16, 8)
		if err != nil || len(color) != 7 {
			t.Fatalf("%q is no color", color)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += share * c
	}
	return sum
}
