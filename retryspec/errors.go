package retryspec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrInvalid is matched by every *Error.
var ErrInvalid = errors.New("retryspec: invalid document")

// Error says what is wrong with a document. It matches ErrInvalid.
type Error struct {
	// Path is the dotted path of the member at fault: "stop.max_attempts",
	// "policies[0].backoff.initial". A list of strings has one path, whichever
	// of them is at fault. "" is the whole document.
	Path string
	// Value is the offending value as JSON, shortened; "nothing" for a member
	// that is missing, and where the text is no JSON, what was found there.
	Value string
	// Expected is what would be right.
	Expected string
	// Line and Column are where that is, from 1, in bytes. 0 in the error of
	// Validate, which sees no text.
	Line, Column int

	hasPath bool // which may be of one member, with the empty name
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("retryspec: ")
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", e.Line, e.Column)
	}
	where := shorten(e.Path)
	if where == "" {
		where = "the document"
	}
	fmt.Fprintf(&b, "%s: got %s, want %s", where, e.Value, e.Expected)
	return b.String()
}

// Is reports whether target is ErrInvalid.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

// at fills in where in the text an offence is.
func (e *Error) at(text []byte, offset int) *Error {
	offset = min(max(offset, 0), len(text))
	before := string(text[:offset])
	e.Line = 1 + strings.Count(before, "\n")
	e.Column = offset - strings.LastIndexByte(before, '\n')
	return e
}

// shorten bounds what a message repeats of a document.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// below puts a name, or an index, in front of the path.
func (e *Error) below(name string) *Error {
	if e.hasPath && !strings.HasPrefix(e.Path, "[") {
		name += "."
	}
	e.Path, e.hasPath = name+e.Path, true
	return e
}

// index is the path of an item of an array.
func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// oneOf is "one of a, b, c".
func oneOf(names []string) string { return "one of " + strings.Join(names, ", ") }

// suggest adds to what is expected the name that was probably meant, if one is
// near.
func suggest(expected, name string, names []string) string {
	best, least := "", len(name)/3+1
	for _, n := range names {
		if d := distance(strings.ToLower(name), n); d <= least && d < len(n) {
			best, least = n, d-1
		}
	}
	if best == "" {
		return expected
	}
	return expected + "; did you mean " + best + "?"
}

// distance is how many letters have to be changed, added or left out to make b
// of a.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
