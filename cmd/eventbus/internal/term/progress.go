package term

import (
	"fmt"
	"io"
	"strings"
)

// Bar returns a progress bar: [####----] 50%.
func Bar(done, total, columns int) string {
	share := 1.0
	if total > 0 {
		share = max(min(float64(done)/float64(total), 1), 0)
	}
	full := int(share * float64(columns))
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", columns-full), int(share*100))
}

// Progress draws a line that each call of Draw replaces. It is for terminals.
type Progress struct {
	w     io.Writer
	drawn int // columns of the last line
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w} }

// Draw replaces the line. The text must have no control characters.
func (p *Progress) Draw(text string) {
	pad := max(p.drawn-Width(text), 0)
	p.drawn = Width(text)
	fmt.Fprintf(p.w, "\r%s%s", text, strings.Repeat(" ", pad))
}

// End removes the line.
func (p *Progress) End() {
	if p.drawn > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.drawn))
		p.drawn = 0
	}
}

// Sparkline draws values as a line of small bars, the largest value as a full one.
func Sparkline(values []float64) string {
	bars := []rune("▁▂▃▄▅▆▇█")
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	line := make([]rune, len(values))
	for i, v := range values {
		n := 0
		if most > 0 {
			n = int(max(v, 0) / most * float64(len(bars)-1))
		}
		line[i] = bars[n]
	}
	return string(line)
}
