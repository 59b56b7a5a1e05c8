// Package names converts constants to texts and back.
package names

import (
	"fmt"
	"slices"

	"github.com/surebus/eventbus/internal/texts"
)

// Of returns the name of a constant, or typ(i) if there is none.
func Of(typ string, names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("%s(%d)", typ, i)
	}
	return names[i]
}

// Read sets a constant to that of a name. The error quotes at most 80 bytes of the text.
func Read[T ~int | ~uint8](typ string, names []string, text []byte, to *T) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("eventbus: %q is no %s: it must be one of %q", texts.Shorten(string(text), 80), typ, names)
	}
	*to = T(i)
	return nil
}

// Same are all names of a thing that has several. nil stands for the one name that its holder knows.
type Same struct{ names []string }

// NewSame returns the names, or nil for fewer than two.
func NewSame(names []string) *Same {
	if len(names) < 2 {
		return nil
	}
	return &Same{names}
}

// Has reports whether a name is one of several.
func (s *Same) Has(name string) bool { return s != nil && slices.Contains(s.names, name) }

// Of returns the names of what has a name; none for "".
func (s *Same) Of(name string) []string {
	switch {
	case s != nil:
		return slices.Clone(s.names)
	case name == "":
		return nil
	}
	return []string{name}
}

// Nearest returns the one of all, of which there is at least one, that fewest insertions, deletions and replacements
// of bytes make of name: the first of several.
func Nearest(name string, all []string) (nearest string) {
	least := -1
	for _, other := range all {
		if d := Distance(name, other); least < 0 || d < least {
			nearest, least = other, d
		}
	}
	return nearest
}

// Distance is the Levenshtein distance of the first 255 bytes of two texts, by rows of the table of Wagner and Fischer.
func Distance(x, y string) int {
	x, y = x[:min(len(x), 255)], y[:min(len(y), 255)]
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(x) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(y) {
			replace := diagonal
			if x[i] != y[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}
