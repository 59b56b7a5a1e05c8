package main

import "strings"

// letters has the widths of letters in thousandths of the size, rounded up from the wider one of DejaVu Sans and
// Liberation Sans: the fonts of other systems are narrower.
var letters = map[rune]int{}

func init() {
	for letterWidth, all := range map[int]string{
		300: `'Iijl`, 350: ` ,./:;\|`, 400: `!()-[]ft`, 450: `r`, 500: `"*J`, 550: `csz`, 600: `?L_kvxy`,
		650: `$0123456789FTabdeghnopqu{}`, 700: `ABEKPSVXYZ`, 750: `CNRU`, 800: `&DGHOQ`, 850: `#+<=>^w~`, 900: `M`, 950: `%`,
		1000: `Wm…→`, 1050: `@`,
	} {
		for _, letter := range all {
			letters[letter] = letterWidth
		}
	}
}

// codeLetter is the width of a letter of code, in thousandths of the size: that of DejaVu Sans Mono, the widest.
const codeLetter = 603

// boldPercent is how wide bold text is, at most, of text that is not bold.
const boldPercent = 120

// width returns about how wide a text is, and rather too much.
func (t text) width() int {
	thousandths := 0
	for i, part := range strings.Split(t.s, "`") {
		for _, letter := range part {
			switch w, known := letters[letter]; {
			case i%2 == 1:
				thousandths += codeLetter * codeSize(t.style.size)
			case known:
				thousandths += w * t.style.size
			default:
				thousandths += 1050 * t.style.size
			}
		}
	}
	if t.style.bold {
		thousandths = thousandths * boldPercent / 100
	}
	return (thousandths + 999) / 1000
}

// area is a rectangle without its right and bottom edges.
type area struct{ left, top, right, bottom int }

func (t text) area() area {
	w := t.width()
	left := t.x
	switch t.anchor {
	case middle:
		left -= (w + 1) / 2
	case end:
		left -= w
	}
	return area{left, t.y - t.style.size*4/5, left + w, t.y + t.style.size/4}
}

func (b box) area() area {
	a := area{b.x, b.y, b.right(), b.bottom()}
	if b.more {
		a.right += moreBoxes * moreOffset
		a.top -= moreBoxes * moreOffset
	}
	return a
}

func (a area) grown(by int) area { return area{a.left - by, a.top - by, a.right + by, a.bottom + by} }

func (a area) meets(o area) bool {
	return a.left < o.right && o.left < a.right && a.top < o.bottom && o.top < a.bottom
}

func (a area) contains(o area) bool {
	return a.left <= o.left && o.right <= a.right && a.top <= o.top && o.bottom <= a.bottom
}

// between returns the area of a line from one point to another, if it is level or upright.
func between(a, b point) area {
	return area{min(a.x, b.x), min(a.y, b.y), max(a.x, b.x) + 1, max(a.y, b.y) + 1}
}
