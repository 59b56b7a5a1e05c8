package loader

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// effort bounds what is done for one document beyond reading it, so that no
// document takes long: comparing names, clauses with clauses, and literal arguments
// with their parameters. What exceeds it is left undone.
type effort int

const utmost effort = 5_000_000

// spend reports whether there is effort left for so many steps.
func (e *effort) spend(steps int) bool {
	if steps < 0 || effort(steps) > *e {
		*e = 0
		return false
	}
	*e -= effort(steps)
	return true
}

// meant says which of the names was likely meant, or which there are.
func (e *effort) meant(name string, names []string) string {
	if closest, ok := e.closest(name, names); ok {
		return fmt.Sprintf("did you mean %q?", closest)
	}
	switch {
	case len(names) > 12:
		return fmt.Sprintf("there are %s and %d others", quoted(names[:8]), len(names)-8)
	default:
		return "there is " + quoted(names)
	}
}

func quoted(names []string) string {
	q := make([]string, len(names))
	for i, name := range names {
		q[i] = fmt.Sprintf("%q", clip(name, 60))
	}
	return strings.Join(q, ", ")
}

// closest returns the name that is most like the given one, unless none is much
// like it.
func (e *effort) closest(name string, names []string) (string, bool) {
	if len(name) > 200 {
		return "", false
	}
	best, distance := "", max(1, utf8.RuneCountInString(name)/3)+1
	for _, candidate := range names {
		if !e.spend(len(name) + 1) {
			return "", false
		}
		if strings.EqualFold(candidate, name) {
			return candidate, true
		}
		if !near(len(name), len(candidate), 4*distance) || !e.spend(len(name)*len(candidate)) {
			continue
		}
		if d := edits(name, candidate, distance); d < distance {
			best, distance = candidate, d
		}
	}
	return best, best != ""
}

// near reports whether two lengths differ by less than limit.
func near(a, b, limit int) bool { return a-b < limit && b-a < limit }

// edits is the number of insertions, deletions, replacements and swaps of
// neighbours that make b of a, or a number that is at least limit.
func edits(a, b string, limit int) int {
	x, y := []rune(a), []rune(b)
	if !near(len(x), len(y), limit) {
		return limit
	}
	rows := [3][]int{make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(x); i++ {
		before, last, row := rows[(i+2)%3], rows[i%3], rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		if slices.Min(row) >= limit {
			return limit
		}
	}
	return rows[(len(x)+1)%3][len(y)]
}
