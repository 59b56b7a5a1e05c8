// Package linediff compares two texts line by line.
package linediff

import "strings"

// Op is what happened to a line.
type Op int

// The operations.
const (
	Kept    Op = iota // the line is in both texts
	Removed           // the line is in the old text only
	Added             // the line is in the new text only
)

// Line is one line of a difference.
type Line struct {
	Op   Op
	Text string
}

// maxCells bounds the table of a comparison, 4 bytes a cell.
const maxCells = 1 << 20

// Lines returns the lines of both texts in order, with as many kept lines as possible. If the parts that
// differ have more than about 1,000 lines each, all lines of those parts are removed and added.
func Lines(old, updated string) []Line {
	x, y := split(old), split(updated)
	var head, tail []Line
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		head = append(head, Line{Kept, x[0]})
		x, y = x[1:], y[1:]
	}
	end := 0
	for end < min(len(x), len(y)) && x[len(x)-1-end] == y[len(y)-1-end] {
		end++
	}
	for _, text := range x[len(x)-end:] {
		tail = append(tail, Line{Kept, text})
	}
	return append(middle(head, x[:len(x)-end], y[:len(y)-end]), tail...)
}

// middle appends the difference of x and y, by their longest common subsequence.
func middle(lines []Line, x, y []string) []Line {
	if len(x)*len(y) > maxCells {
		for _, text := range x {
			lines = append(lines, Line{Removed, text})
		}
		x = nil
	}
	// common[i*width+j] is the length of the longest common subsequence of x[i:] and y[j:].
	width := len(y) + 1
	common := make([]int32, (len(x)+1)*width)
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i*width+j] = common[(i+1)*width+j+1] + 1
			} else {
				common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			lines = append(lines, Line{Kept, x[i]})
			i, j = i+1, j+1
		case i < len(x) && (j == len(y) || common[(i+1)*width+j] >= common[i*width+j+1]):
			lines = append(lines, Line{Removed, x[i]})
			i++
		default:
			lines = append(lines, Line{Added, y[j]})
			j++
		}
	}
	return lines
}

func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
