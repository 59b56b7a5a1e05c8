package strictjson

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind is the JSON type of a node.
type Kind uint8

// The six types of JSON values.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"null", "boolean", "number", "string", "array", "object"}

// String names the type as JSON does.
func (k Kind) String() string { return kindNames[k] }

// A Node is one value of a document. It is immutable.
type Node struct {
	// Kind says which of the fields below hold the value.
	Kind Kind
	// Bool is the value of a boolean.
	Bool bool
	// Number is the float64 that is nearest to what the document says.
	Number float64
	// Exact reports whether Number is what the document says: its exact decimal
	// value or its shortest decimal form, as 0.1 is the shortest of its float64.
	// It is false for 9007199254740993.
	Exact bool
	// Text is the value of a string with its escapes resolved, or a number as it
	// is written.
	Text string
	// Items are the elements of an array.
	Items []*Node
	// Members are those of an object, in document order. Their names are unique.
	Members []Member
	// Offset is the index of the value's first byte in the document.
	Offset int

	doc    *document
	parent *Node
	// index is the node's place among its parent's items or members.
	index int
	// end is the index after the value's last byte.
	end int
	// places has the index of every member by its name, when there are many.
	places map[string]int
}

// A Member is one name and value of an object.
type Member struct {
	Name  string
	Value *Node
	// NameOffset is the index of the name's opening quote in the document.
	NameOffset int
}

// Member returns the value of the named member, nil when the node has none.
func (n *Node) Member(name string) *Node {
	if i := n.find(name); i >= 0 {
		return n.Members[i].Value
	}
	return nil
}

// few is the number of members up to which a name is searched for one by one.
const few = 8

// find returns the index of the member with the name, -1 for none.
func (n *Node) find(name string) int {
	if n.places != nil {
		if i, ok := n.places[name]; ok {
			return i
		}
		return -1
	}
	for i := range n.Members {
		if n.Members[i].Name == name {
			return i
		}
	}
	return -1
}

// Pointer returns the node's JSON pointer (RFC 6901) in the document; the root's
// is empty.
func (n *Node) Pointer() string {
	var tokens []string
	for ; n.parent != nil; n = n.parent {
		if n.parent.Kind == Array {
			tokens = append(tokens, strconv.Itoa(n.index))
		} else {
			tokens = append(tokens, n.parent.Members[n.index].Name)
		}
	}
	pointer := ""
	for i := len(tokens) - 1; i >= 0; i-- {
		pointer = AppendToken(pointer, tokens[i])
	}
	return pointer
}

var tokenEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// AppendToken returns the pointer extended by one reference token.
func AppendToken(pointer, token string) string {
	return pointer + "/" + tokenEscaper.Replace(token)
}

// Position returns the line and the column of the value's first character, both
// counted from 1, columns in Unicode characters.
func (n *Node) Position() (line, column int) { return n.doc.position(n.Offset) }

// PositionAt is Position for any byte of the node's document.
func (n *Node) PositionAt(offset int) (line, column int) { return n.doc.position(offset) }

// Value returns the node as Go values: nil, bool, float64, string, []any and
// map[string]any. The caller owns what it gets.
func (n *Node) Value() any {
	switch n.Kind {
	case Bool:
		return n.Bool
	case Number:
		return n.Number
	case String:
		return n.Text
	case Array:
		items := make([]any, len(n.Items))
		for i, item := range n.Items {
			items[i] = item.Value()
		}
		return items
	case Object:
		members := make(map[string]any, len(n.Members))
		for _, m := range n.Members {
			members[m.Name] = m.Value.Value()
		}
		return members
	default:
		return nil
	}
}

// Source returns the bytes of the document that the value stands for, as they
// are written. They must not be altered.
func (n *Node) Source() []byte { return n.doc.data[n.Offset:n.end] }

// document is what the nodes of one document share.
type document struct {
	data []byte
	// lines are the offsets of the first byte of every line.
	lines []int
}

func newDocument(data []byte) *document {
	d := &document{data: data, lines: []int{0}}
	for i, b := range data {
		if b == '\n' || b == '\r' && (i+1 == len(data) || data[i+1] != '\n') {
			d.lines = append(d.lines, i+1)
		}
	}
	return d
}

func (d *document) position(offset int) (line, column int) {
	offset = min(offset, len(d.data))
	low, high := 0, len(d.lines)
	for high-low > 1 {
		if middle := (low + high) / 2; d.lines[middle] <= offset {
			low = middle
		} else {
			high = middle
		}
	}
	return low + 1, utf8.RuneCount(d.data[d.lines[low]:offset]) + 1
}

// At returns the node that the JSON pointer leads to from n, nil when there is
// none.
func (n *Node) At(pointer string) *Node {
	if pointer == "" {
		return n
	}
	for _, token := range strings.Split(pointer[1:], "/") {
		if n = n.child(tokenUnescaper.Replace(token)); n == nil {
			return nil
		}
	}
	return n
}

var tokenUnescaper = strings.NewReplacer("~1", "/", "~0", "~")

func (n *Node) child(token string) *Node {
	if n.Kind == Object {
		return n.Member(token)
	}
	if i, err := strconv.Atoi(token); err == nil && n.Kind == Array && 0 <= i && i < len(n.Items) {
		return n.Items[i]
	}
	return nil
}

// TextOffset returns where in the document the byte of a string's Text at the
// index is written.
func (n *Node) TextOffset(index int) int {
	raw := n.doc.data[n.Offset+1 : n.end-1]
	for read, written := 0, 0; read < len(raw); {
		size, length := 1, 1
		if raw[read] == '\\' {
			size, length = escaped(raw[read:])
		}
		if index < written+length {
			return n.Offset + 1 + read
		}
		read, written = read+size, written+length
	}
	return n.end - 1
}

// escaped returns how many bytes an escape takes and how many it stands for.
func escaped(raw []byte) (size, length int) {
	if raw[1] != 'u' {
		return 2, 1
	}
	unit := func(at int) rune {
		u, _ := strconv.ParseUint(string(raw[at+2:at+6]), 16, 16)
		return rune(u)
	}
	r := unit(0)
	if utf16.IsSurrogate(r) {
		if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
			if pair := utf16.DecodeRune(r, unit(6)); pair != utf8.RuneError {
				return 12, utf8.RuneLen(pair)
			}
		}
		r = utf8.RuneError
	}
	return 6, utf8.RuneLen(r)
}

// Excerpt returns the text of the line that the offset of the document is in,
// without its indentation, or the part around the offset if the line is long.
func (n *Node) Excerpt(offset int) string { return n.doc.excerpt(offset) }

// excerptBytes is about how much an excerpt shows on each side of its offset.
const excerptBytes = 60

func (d *document) excerpt(offset int) string {
	line, _ := d.position(offset)
	start, end := d.lines[line-1], len(d.data)
	if line < len(d.lines) {
		end = d.lines[line]
	}
	prefix, suffix := "", ""
	if start < offset-excerptBytes {
		prefix, start = "…", offset-excerptBytes
	}
	if end > offset+2*excerptBytes {
		suffix, end = "…", offset+2*excerptBytes
	}
	for start < end && !utf8.RuneStart(d.data[start]) {
		start++
	}
	for end > start && end < len(d.data) && !utf8.RuneStart(d.data[end]) {
		end--
	}
	return prefix + strings.TrimSpace(strings.ToValidUTF8(string(d.data[start:end]), "\ufffd")) + suffix
}
