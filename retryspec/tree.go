package retryspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may lie in each other. The documents
// need six; the rest is for members that are ignored.
const maxDepth = 100

// node is a JSON value. encoding/json alone would take keys in any case, and the
// last of several of the same name.
type node struct {
	kind    kind
	offset  int // of its first byte
	end     int // after its last one
	text    string
	truth   bool
	members []member
	items   []*node
}

type member struct {
	name   string
	offset int // of the name
	value  *node
}

type kind string

const (
	isNull   kind = "null"
	isBool   kind = "a boolean"
	isNumber kind = "a number"
	isString kind = "a string"
	isArray  kind = "an array"
	isObject kind = "an object"
)

// decoder makes nodes of a text that is JSON, so that no token is an error.
type decoder struct {
	data []byte
	json *json.Decoder
}

// decode reads a text that is one JSON value and nothing else.
func decode(data []byte) (*node, *Error) {
	if err := checkJSON(data); err != nil {
		return nil, err
	}
	d := &decoder{data: data, json: json.NewDecoder(bytes.NewReader(data))}
	d.json.UseNumber()
	return d.value(0)
}

// checkJSON says what is wrong with a text that is no JSON, if it is not.
func checkJSON(data []byte) *Error {
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return (&Error{Value: "a byte order mark", Expected: "JSON in UTF-8 without one"}).at(data, 0)
	}
	if i := invalidUTF8(data); i >= 0 {
		return (&Error{Value: fmt.Sprintf("the byte 0x%02x", data[i]), Expected: "JSON in valid UTF-8"}).at(data, i)
	}
	if len(bytes.TrimLeft(data, " \t\r\n")) == 0 {
		return (&Error{Value: "no text", Expected: "a JSON object"}).at(data, 0)
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(data, new(json.RawMessage)); errors.As(err, &syntax) {
		offset := int(syntax.Offset) - 1 // it is that after the offending byte
		if strings.HasPrefix(syntax.Error(), "unexpected end") {
			return (&Error{Value: "the end of the text", Expected: "the rest of the JSON"}).at(data, len(data))
		}
		return (&Error{Value: quote(data, offset), Expected: "JSON (" + syntax.Error() + ")"}).at(data, offset)
	}
	return nil
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// value reads the next value. The path of an error begins there.
func (d *decoder) value(depth int) (*node, *Error) {
	n := &node{offset: d.next()}
	if depth > maxDepth {
		return nil, (&Error{
			Value:    "more depth",
			Expected: fmt.Sprintf("at most %d arrays and objects in each other", maxDepth),
		}).at(d.data, n.offset)
	}
	token, _ := d.json.Token()
	var err *Error
	switch t := token.(type) {
	case nil:
		n.kind = isNull
	case bool:
		n.kind, n.truth = isBool, t
	case json.Number:
		n.kind, n.text = isNumber, t.String()
	case string:
		n.kind, n.text = isString, t
		err = d.checkString(n.offset)
	case json.Delim:
		if t == '{' {
			n.kind = isObject
			err = d.object(n, depth)
		} else {
			n.kind = isArray
			err = d.array(n, depth)
		}
		_, _ = d.json.Token() // the other bracket
	}
	n.end = int(d.json.InputOffset())
	return n, err
}

func (d *decoder) object(n *node, depth int) *Error {
	seen := make(map[string]bool)
	for d.json.More() {
		m := member{offset: d.next()}
		name, _ := d.json.Token()
		m.name, _ = name.(string)
		if err := d.checkString(m.offset); err != nil {
			return err.below(m.name)
		}
		if seen[m.name] {
			err := &Error{Value: "the name a second time", Expected: "each name once in an object"}
			return err.below(m.name).at(d.data, m.offset)
		}
		seen[m.name] = true
		var err *Error
		if m.value, err = d.value(depth + 1); err != nil {
			return err.below(m.name)
		}
		n.members = append(n.members, m)
	}
	return nil
}

func (d *decoder) array(n *node, depth int) *Error {
	for d.json.More() {
		item, err := d.value(depth + 1)
		if err != nil {
			return err.below(index(len(n.items)))
		}
		n.items = append(n.items, item)
	}
	return nil
}

// checkString refuses half of a surrogate pair, which encoding/json replaces: two
// names could become the same.
func (d *decoder) checkString(from int) *Error {
	raw := d.data[from:d.json.InputOffset()]
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		if raw[i] != 'u' {
			continue
		}
		high := hex4(raw[i+1:])
		i += 4
		switch {
		case high < 0xd800 || high > 0xdfff:
			continue
		case high < 0xdc00 && bytes.HasPrefix(raw[i+1:], []byte(`\u`)):
			if low := hex4(raw[i+3:]); low >= 0xdc00 && low <= 0xdfff {
				i += 6
				continue
			}
		}
		return (&Error{Value: string(raw[i-5 : i+1]), Expected: "both halves of a surrogate pair"}).at(d.data, from+i-5)
	}
	return nil
}

// hex4 is the number that four hexadecimal digits make. The decoder has seen that
// they are.
func hex4(digits []byte) uint64 {
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 32)
	return n
}

// next is the offset of the next token.
func (d *decoder) next() int {
	i := int(d.json.InputOffset())
	for i < len(d.data) && strings.IndexByte(" \t\r\n,:", d.data[i]) >= 0 {
		i++
	}
	return i
}

// quote is what stands at an offset, as far as its line goes.
func quote(data []byte, offset int) string {
	rest := data[min(max(offset, 0), len(data)):]
	if i := bytes.IndexAny(rest, "\r\n"); i >= 0 {
		rest = rest[:i]
	}
	const most = 20
	if len(rest) > most {
		return strconv.Quote(strings.ToValidUTF8(string(rest[:most]), "")) + "…"
	}
	return strconv.Quote(string(rest))
}
