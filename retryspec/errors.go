package retryspec

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/surebus/eventbus/internal/names"
)

// ErrInvalid is matched by every *Error.
var ErrInvalid = errors.New("retryspec: invalid document")

// Error reports why a document is invalid. It matches ErrInvalid.
type Error struct {
	// Path is the dotted path of the member at fault: "stop.max_attempts",
	// "policies[0].backoff.initial". All strings of a list share the path of the list. "" is
	// the whole document.
	Path string
	// Value is the offending value as JSON, shortened. It is "nothing" for a missing member,
	// and the offending text for invalid JSON.
	Value string
	// Expected describes a valid value.
	Expected string
	// Line and Column are the position of the value, from 1, in bytes. They are 0 in errors of
	// Validate, which has no text.
	Line, Column int

	hasPath bool // which may be of one member, with the empty name
}

// Error returns the text of the error.
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

// FileError reports a file that is not regular or has more than MaxFileSize bytes. Open and Reload do not read it,
// because reading could block or take much memory.
type FileError struct {
	// Path is the path given to Open.
	Path string
	// Mode is the file's mode. The file is regular if it is only too large.
	Mode fs.FileMode
	// Size is the size of a regular file in bytes, at least: one that grows meanwhile has more.
	Size int64
}

// Error returns the text of the error.
func (e *FileError) Error() string {
	if e.Mode.IsRegular() {
		return fmt.Sprintf("retryspec: %s has %d bytes, more than %d: write a smaller document", e.Path, e.Size, MaxFileSize)
	}
	return fmt.Sprintf("retryspec: %s is %s, not a regular file: give the path of a file with the document", e.Path, kindOf(e.Mode))
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// IgnoredError reports unknown members at the top level of a document, such as a misspelt one. The document is valid,
// and Watch applies it.
type IgnoredError struct {
	// Path is the path of the file.
	Path string
	// Members are their names, as in Document.Ignored.
	Members []string
}

// Error returns the text of the error.
func (e *IgnoredError) Error() string {
	names := strings.Join(quoted(e.Members), ", ")
	return fmt.Sprintf("retryspec: %s: ignored members: %s; the members are version, stop, wait and retry", e.Path, shorten(names))
}

// at sets the position of an offence in the text.
func (e *Error) at(text []byte, offset int) *Error {
	offset = min(max(offset, 0), len(text))
	before := string(text[:offset])
	e.Line = 1 + strings.Count(before, "\n")
	e.Column = offset - strings.LastIndexByte(before, '\n')
	return e
}

// shorten bounds the part of a document that a message repeats.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// below prepends a name or an index to the path.
func (e *Error) below(name string) *Error {
	if e.hasPath && !strings.HasPrefix(e.Path, "[") {
		name += "."
	}
	e.Path, e.hasPath = name+e.Path, true
	return e
}

// index returns the path of an item of an array.
func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// oneOf returns "one of a, b, c".
func oneOf(names []string) string { return "one of " + strings.Join(names, ", ") }

// suggest adds the most similar valid name to the expectation, if one is similar enough.
func suggest(expected, name string, all []string) string {
	best, least := "", len(name)/3+1
	for _, n := range all {
		if d := names.Distance(strings.ToLower(name), n); d <= least && d < len(n) {
			best, least = n, d-1
		}
	}
	if best == "" {
		return expected
	}
	return expected + "; did you mean " + best + "?"
}
