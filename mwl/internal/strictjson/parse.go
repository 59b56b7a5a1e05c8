package strictjson

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits bound what Parse accepts. A field that is zero or less sets no bound.
type Limits struct {
	// Bytes is the size of the document.
	Bytes int
	// Depth is how deep arrays and objects may nest; 1 allows no nesting. They may
	// never nest deeper than 10,000, so that reading cannot exhaust the stack.
	Depth int
	// Problems is how many problems are returned. Parse counts the others.
	Problems int
}

// A Problem is one thing that is wrong with a document.
type Problem struct {
	// Pointer is the JSON pointer of the value where the problem is, or of the
	// innermost one that the problem kept from being read.
	Pointer string
	// Line and Column count from 1, columns in Unicode characters.
	Line, Column int
	// Offset is the index of the byte where the problem is.
	Offset int
	// Source is the text of the line, or the part around the problem.
	Source string
	// Message says what is wrong.
	Message string
	// Remedy says what to do about it.
	Remedy string
}

// Error returns the problem with its place and remedy.
func (p *Problem) Error() string {
	return fmt.Sprintf("line %d, column %d: %s; %s", p.Line, p.Column, p.Message, p.Remedy)
}

// Parse reads the document that data holds. A document has a root if and only if
// its syntax is right and its size and depth are within the limits; it is valid
// if problems is empty too. Problems are in document order, and more is the
// number of those that Limits.Problems left out. The nodes keep data, which must
// not be altered any more.
func Parse(data []byte, limits Limits) (root *Node, problems []Problem, more int) {
	if limits.Bytes > 0 && len(data) > limits.Bytes {
		return nil, []Problem{{
			Line: 1, Column: 1,
			Message: fmt.Sprintf("the document has %d bytes, more than the limit of %d", len(data), limits.Bytes),
			Remedy:  "make it smaller, or raise the limit",
		}}, 0
	}
	if limits.Depth <= 0 || limits.Depth > deepest {
		limits.Depth = deepest
	}
	p := parser{doc: newDocument(data), data: data, limits: limits}
	root, ok := p.document()
	if !ok {
		root = nil
	}
	return root, p.problems, p.more
}

const deepest = 10_000

type parser struct {
	doc      *document
	data     []byte
	offset   int
	limits   Limits
	problems []Problem
	more     int
}

// report records a problem. The value that is being read is at.
func (p *parser) report(at *Node, offset int, remedy, format string, args ...any) {
	if p.limits.Problems > 0 && len(p.problems) == p.limits.Problems {
		p.more++
		return
	}
	problem := Problem{Offset: offset, Source: p.doc.excerpt(offset), Message: fmt.Sprintf(format, args...), Remedy: remedy}
	problem.Line, problem.Column = p.doc.position(offset)
	if at != nil {
		problem.Pointer = at.Pointer()
	}
	p.problems = append(p.problems, problem)
}

// fail is report for problems after which reading cannot go on. The last one of
// a document, it is kept even if the others have reached the limit.
func (p *parser) fail(at *Node, offset int, remedy, format string, args ...any) bool {
	if p.limits.Problems > 0 && len(p.problems) == p.limits.Problems {
		p.problems = p.problems[:len(p.problems)-1]
		p.more++
	}
	p.report(at, offset, remedy, format, args...)
	return false
}

func (p *parser) document() (*Node, bool) {
	if strings.HasPrefix(string(p.data[:min(3, len(p.data))]), "\ufeff") {
		return nil, p.fail(nil, 0, "save it as UTF-8 without one", "the document begins with a byte order mark")
	}
	p.space()
	if p.offset == len(p.data) {
		return nil, p.fail(nil, p.offset, "give it a JSON value", "the document is empty")
	}
	root := &Node{doc: p.doc}
	if !p.value(root, 1) {
		return nil, false
	}
	p.space()
	if p.offset < len(p.data) {
		return nil, p.fail(nil, p.offset, "delete it; a document is one value", "%s follows the end of the document", p.found())
	}
	return root, true
}

func (p *parser) space() {
	for p.offset < len(p.data) {
		switch p.data[p.offset] {
		case ' ', '\t', '\n', '\r':
			p.offset++
		default:
			return
		}
	}
}

// peek returns the next byte, 0 at the end: JSON has no place for that byte
// either.
func (p *parser) peek() byte {
	if p.offset < len(p.data) {
		return p.data[p.offset]
	}
	return 0
}

// found names what stands at the offset.
func (p *parser) found() string {
	if p.offset == len(p.data) {
		return "the end of the document"
	}
	r, size := utf8.DecodeRune(p.data[p.offset:])
	if r == utf8.RuneError && size <= 1 {
		return fmt.Sprintf("the byte 0x%02x", p.data[p.offset])
	}
	return strconv.QuoteRune(r)
}

// value reads one value into n, whose parent is set. It reports whether reading
// can go on.
func (p *parser) value(n *Node, depth int) bool {
	n.Offset = p.offset
	var ok bool
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if depth > p.limits.Depth {
			return p.fail(n, p.offset, "nest less, or raise the limit", "values nest deeper than the limit of %d", p.limits.Depth)
		}
		if c == '{' {
			ok = p.object(n, depth)
		} else {
			ok = p.array(n, depth)
		}
	case c == '"':
		n.Kind = String
		n.Text, ok = p.text(n)
	case c == '-' || '0' <= c && c <= '9':
		ok = p.number(n)
	default:
		ok = p.literal(n)
	}
	n.end = p.offset
	return ok
}

func (p *parser) literal(n *Node) bool {
	for _, l := range [...]struct {
		text string
		kind Kind
		b    bool
	}{{"null", Null, false}, {"true", Bool, true}, {"false", Bool, false}} {
		if strings.HasPrefix(string(p.data[p.offset:min(p.offset+len(l.text), len(p.data))]), l.text) {
			n.Kind, n.Bool = l.kind, l.b
			p.offset += len(l.text)
			return true
		}
	}
	remedy := "write an object, an array, a string, a number, true, false or null"
	switch c := p.peek(); {
	case c == '\'':
		remedy = `put strings in double quotes`
	case c == '/' || c == '#':
		remedy = `JSON has no comments; use a "comment" member`
	case c == '+':
		remedy = "delete the sign"
	case c == '.':
		remedy = "write a digit before the point"
	case 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z':
		remedy = "put strings in double quotes; the words of JSON are true, false and null"
	}
	return p.fail(n, p.offset, remedy, "%s stands where a value should", p.found())
}

func (p *parser) array(n *Node, depth int) bool {
	n.Kind = Array
	p.offset++
	p.space()
	if p.peek() == ']' {
		p.offset++
		return true
	}
	for {
		item := &Node{doc: p.doc, parent: n, index: len(n.Items)}
		n.Items = append(n.Items, item)
		if p.peek() == ']' {
			return p.fail(n, p.offset, "delete the comma before it", "the array ends after a comma")
		}
		if !p.value(item, depth+1) {
			return false
		}
		p.space()
		switch p.peek() {
		case ',':
			p.offset++
			p.space()
		case ']':
			p.offset++
			return true
		default:
			return p.fail(n, p.offset, "separate elements with commas, and end the array with ]", "%s follows an element", p.found())
		}
	}
}

func (p *parser) object(n *Node, depth int) bool {
	n.Kind = Object
	p.offset++
	p.space()
	if p.peek() == '}' {
		p.offset++
		return true
	}
	for {
		if p.peek() != '"' {
			if p.peek() == '}' {
				return p.fail(n, p.offset, "delete the comma before it", "the object ends after a comma")
			}
			remedy := "put names in double quotes"
			if c := p.peek(); c == '/' || c == '#' {
				remedy = `JSON has no comments; use a "comment" member`
			}
			return p.fail(n, p.offset, remedy, "%s stands where a member's name should", p.found())
		}
		nameOffset := p.offset
		name, ok := p.text(n)
		if !ok {
			return false
		}
		first := n.find(name)
		value := &Node{doc: p.doc, parent: n, index: len(n.Members)}
		n.Members = append(n.Members, Member{Name: name, Value: value, NameOffset: nameOffset})
		if first >= 0 {
			line, _ := p.doc.position(n.Members[first].NameOffset)
			p.report(value, nameOffset, "keep one of them", "the name %q repeats within the object; it stands in line %d already", shortened(name), line)
		}
		p.space()
		if p.peek() != ':' {
			return p.fail(value, p.offset, "put a colon between name and value", "%s follows the name %q", p.found(), shortened(name))
		}
		p.offset++
		p.space()
		if !p.value(value, depth+1) {
			return false
		}
		if first >= 0 {
			n.Members = n.Members[:len(n.Members)-1]
		} else {
			n.remember()
		}
		p.space()
		switch p.peek() {
		case ',':
			p.offset++
			p.space()
		case '}':
			p.offset++
			return true
		default:
			return p.fail(n, p.offset, "separate members with commas, and end the object with }", "%s follows a member", p.found())
		}
	}
}

// remember adds the last member to the places of the names, when there are many.
func (n *Node) remember() {
	last := len(n.Members) - 1
	switch {
	case n.places != nil:
		n.places[n.Members[last].Name] = last
	case len(n.Members) > few:
		n.places = make(map[string]int, 2*len(n.Members))
		for i := range n.Members {
			n.places[n.Members[i].Name] = i
		}
	}
}

// text reads the string at the offset. The value that is being read, at, is the
// string itself or the object whose member it names.
func (p *parser) text(at *Node) (string, bool) {
	start := p.offset
	p.offset++
	chunk := p.offset // where the part begins that is not in b yet
	var b strings.Builder
	for p.offset < len(p.data) {
		switch c := p.data[p.offset]; {
		case c == '"':
			b.Write(p.data[chunk:p.offset])
			p.offset++
			return b.String(), true
		case c == '\\':
			b.Write(p.data[chunk:p.offset])
			if !p.escape(at, &b) {
				return "", false
			}
			chunk = p.offset
		case c < 0x20:
			remedy := fmt.Sprintf(`escape it: \u%04x`, c)
			if c == '\n' || c == '\r' {
				remedy = `close the string with ", or write the line break as \n`
			}
			return "", p.fail(at, p.offset, remedy, "a string has the control character 0x%02x", c)
		case c < utf8.RuneSelf:
			p.offset++
		default:
			r, size := utf8.DecodeRune(p.data[p.offset:])
			p.offset += size
			if r == utf8.RuneError && size == 1 {
				p.report(at, p.offset-1, "save the document as UTF-8", "a string has the byte 0x%02x, which is not valid UTF-8", c)
				b.Write(p.data[chunk : p.offset-1])
				b.WriteRune(utf8.RuneError)
				chunk = p.offset
			}
		}
	}
	return "", p.fail(at, start, `close it with "`, "a string does not end")
}

var simpleEscapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads the escape sequence at the offset and writes what it stands for.
func (p *parser) escape(at *Node, b *strings.Builder) bool {
	start := p.offset
	p.offset++
	if c, ok := simpleEscapes[p.peek()]; ok {
		b.WriteByte(c)
		p.offset++
		return true
	}
	if p.peek() != 'u' {
		return p.fail(at, start, `the escapes are \" \\ \/ \b \f \n \r \t and \u with four hexadecimal digits; write a backslash as \\`, `a backslash is followed by %s`, p.found())
	}
	p.offset++
	r, ok := p.hex(at, start)
	if !ok {
		return false
	}
	if utf16.IsSurrogate(r) {
		second := rune(-1)
		if p.peek() == '\\' && p.offset+1 < len(p.data) && p.data[p.offset+1] == 'u' {
			after := p.offset
			p.offset += 2
			if second, ok = p.hex(at, after); !ok {
				return false
			}
			if utf16.DecodeRune(r, second) == utf8.RuneError {
				p.offset = after // the second may begin a pair of its own
			}
		}
		if r = utf16.DecodeRune(r, second); r == utf8.RuneError {
			p.report(at, start, "write both halves of the pair, or the character itself", "a string has an escape of a lone surrogate, which is no character")
		}
	}
	b.WriteRune(r)
	return true
}

// hex reads the four digits of a \u escape, which begins at start.
func (p *parser) hex(at *Node, start int) (rune, bool) {
	digits := p.data[p.offset:min(p.offset+4, len(p.data))]
	r := rune(0)
	for _, c := range digits {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			digits = nil
		}
	}
	if len(digits) < 4 {
		return 0, p.fail(at, start, `write four, as in \u00e9`, `\u is not followed by four hexadecimal digits`)
	}
	p.offset += 4
	return r, true
}
