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
