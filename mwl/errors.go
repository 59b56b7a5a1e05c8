package mwl

import (
	"fmt"
	"strings"
	"unicode"
)

// DefinitionError reports why a definition cannot be loaded. It lists all problems, in the order of the source.
type DefinitionError struct {
	Problems []Problem // in the order of the source, at least one
	// More is how many further problems were left out of the list.
	More int
}

// Error returns the problems, one per line.
func (e *DefinitionError) Error() string {
	var b strings.Builder
	if len(e.Problems) == 1 && e.More == 0 {
		b.WriteString("mwl: the definition has a problem: ")
		writeProblem(&b, e.Problems[0])
		return b.String()
	}
	fmt.Fprintf(&b, "mwl: the definition has %d problems:", len(e.Problems)+e.More)
	for _, p := range e.Problems {
		b.WriteString("\n\t")
		writeProblem(&b, p)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\n\tand %d more", e.More)
	}
	return b.String()
}

func writeProblem(b *strings.Builder, p Problem) {
	if p.Line > 0 {
		fmt.Fprintf(b, "line %d, column %d: ", p.Line, p.Column)
	}
	switch {
	case strings.ContainsFunc(p.Pointer, unicode.IsControl):
		fmt.Fprintf(b, "%q: ", p.Pointer) // a terminal would obey the name of a Step
	case p.Pointer != "":
		fmt.Fprintf(b, "%s: ", p.Pointer)
	}
	b.WriteString(p.Message)
	if p.Remedy != "" {
		fmt.Fprintf(b, "; %s", p.Remedy)
	}
}

// CatalogError reports why an entry cannot be in a catalog.
type CatalogError struct {
	// URI is the entry's.
	URI string
	// Field is the offending field of the entry.
	Field string
	// Message is the problem and the remedy.
	Message string
}

// Error returns the entry, the field and the remedy as text.
func (e *CatalogError) Error() string {
	return fmt.Sprintf("mwl: provider %q: %s: %s", e.URI, e.Field, e.Message)
}

// OptionError reports an invalid option of [Load] or of [NewCatalog].
type OptionError struct {
	// Option is the function that made the option.
	Option string
	// Message is the problem and the remedy.
	Message string
}

// Error returns the option and the remedy as text.
func (e *OptionError) Error() string {
	return fmt.Sprintf("mwl: %s: %s", e.Option, e.Message)
}
