package value

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// SyntaxError says why a JSON text cannot be read.
type SyntaxError struct {
	// Offset counts the bytes before the offence.
	Offset int
	// Problem names the offence.
	Problem string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("JSON, byte %d: %s", e.Offset, e.Problem)
}

// Parse reads one JSON text. It is strict where readers differ: UTF-8 must be valid, a surrogate needs its pair, a member name must not repeat within an
// object, a double must hold a number exactly (see [Of]), nesting ends at [MaxDepth], and nothing may follow the text. The error is a *SyntaxError.
func Parse(data []byte) (any, error) {
	p := parser{data: data}
	v, err := p.text(nil)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Valid returns the error of [Parse] for a text whose numbers are not used: a double need not hold them exactly.
func Valid(data []byte) error {
	p := parser{data: data, inexact: true}
	if _, err := p.text(nil); err != nil {
		return err
	}
	return nil
}

type parser struct {
	data []byte
	at   int
	// inexact accepts numbers that a double changes.
	inexact bool
	// refused is the number for which the parser failed, and its place; nil if it failed for another reason.
	refused *Error
}

func (p *parser) fail(format string, args ...any) *SyntaxError {
	return &SyntaxError{Offset: p.at, Problem: fmt.Sprintf(format, args...)}
}

func (p *parser) text(root *path) (any, *SyntaxError) {
	p.space()
	v, err := p.value(0, root)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.at < len(p.data) {
		return nil, p.fail("something follows the end of the text")
	}
	return v, nil
}

func (p *parser) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) next() byte {
	if p.at < len(p.data) {
		return p.data[p.at]
	}
	return 0
}

func (p *parser) value(depth int, place *path) (any, *SyntaxError) {
	if depth > MaxDepth {
		return nil, p.fail("nested deeper than %d levels", MaxDepth)
	}
	switch c := p.next(); {
	case p.at >= len(p.data):
		return nil, p.fail("the text ends where a value should be")
	case c == '{':
		return p.object(depth, place)
	case c == '[':
		return p.array(depth, place)
	case c == '"':
		return p.string()
	case c == '-' || c >= '0' && c <= '9':
		return p.number(place)
	case p.word("true"):
		return true, nil
	case p.word("false"):
		return false, nil
	case p.word("null"):
		return nil, nil
	}
	return nil, p.fail("a value cannot begin here")
}

func (p *parser) word(w string) bool {
	if len(p.data)-p.at < len(w) || string(p.data[p.at:p.at+len(w)]) != w {
		return false
	}
	p.at += len(w)
	return true
}

func (p *parser) array(depth int, place *path) (any, *SyntaxError) {
	p.at++
	out := []any{}
	here := &path{up: place} // for all elements, because an error ends the loop
	for p.space(); p.next() != ']'; {
		if len(out) > 0 {
			if p.next() != ',' {
				return nil, p.fail("an array needs ',' or ']' here")
			}
			p.at++
			p.space()
		}
		here.index = len(out)
		v, err := p.value(depth+1, here)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		p.space()
	}
	p.at++
	return out, nil
}

func (p *parser) object(depth int, place *path) (any, *SyntaxError) {
	p.at++
	out := map[string]any{}
	here := &path{up: place, index: -1}
	for p.space(); p.next() != '}'; {
		if len(out) > 0 {
			if p.next() != ',' {
				return nil, p.fail("an object needs ',' or '}' here")
			}
			p.at++
			p.space()
		}
		if p.next() != '"' {
			return nil, p.fail("an object needs a member name in quotes here")
		}
		start := p.at
		name, err := p.string()
		if err != nil {
			return nil, err
		}
		if _, twice := out[name]; twice {
			p.at = start
			return nil, p.fail("the member name %q repeats within its object", name)
		}
		p.space()
		if p.next() != ':' {
			return nil, p.fail("a member name needs ':' after it")
		}
		p.at++
		p.space()
		here.name = name
		v, err := p.value(depth+1, here)
		if err != nil {
			return nil, err
		}
		out[name] = v
		p.space()
	}
	p.at++
	return out, nil
}

func (p *parser) number(place *path) (any, *SyntaxError) {
	start := p.at
	if p.next() == '-' {
		p.at++
	}
	whole := p.at
	if !p.digits() {
		return nil, p.fail("a number needs a digit here")
	}
	if p.data[whole] == '0' && p.at > whole+1 {
		p.at = start
		return nil, p.fail("a number must not begin with a zero")
	}
	if p.next() == '.' {
		p.at++
		if !p.digits() {
			return nil, p.fail("a fraction needs a digit here")
		}
	}
	if c := p.next(); c == 'e' || c == 'E' {
		p.at++
		if c := p.next(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return nil, p.fail("an exponent needs a digit here")
		}
	}
	literal := string(p.data[start:p.at])
	f, problem := double(literal, p.inexact)
	if problem != "" {
		p.at, p.refused = start, place.fail("%s", problem)
		return nil, p.fail("%s", problem)
	}
	return f, nil
}

func (p *parser) digits() bool {
	start := p.at
	for c := p.next(); c >= '0' && c <= '9'; c = p.next() {
		p.at++
	}
	return p.at > start
}

func (p *parser) string() (string, *SyntaxError) {
	p.at++
	start := p.at
	for p.at < len(p.data) {
		switch c := p.data[p.at]; {
		case c == '"':
			s := string(p.data[start:p.at])
			if !utf8.ValidString(s) {
				p.at = start
				return "", p.fail("the string is not valid UTF-8")
			}
			p.at++
			return s, nil
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			return "", p.fail("a control character must be escaped")
		}
		p.at++
	}
	return "", p.fail("the string does not end")
}

// escaped reads on from the first escape of the string that began at start.
func (p *parser) escaped(start int) (string, *SyntaxError) {
	out := append(make([]byte, 0, 2*(p.at-start)+16), p.data[start:p.at]...)
	for p.at < len(p.data) {
		c := p.data[p.at]
		switch {
		case c == '"':
			if !utf8.Valid(out) {
				p.at = start
				return "", p.fail("the string is not valid UTF-8")
			}
			p.at++
			return string(out), nil
		case c < ' ':
			return "", p.fail("a control character must be escaped")
		case c != '\\':
			out = append(out, c)
			p.at++
			continue
		}
		p.at++
		c = p.next()
		if plain, ok := escapes[c]; ok {
			out = append(out, plain)
			p.at++
			continue
		}
		if c != 'u' {
			return "", p.fail("this escape does not exist")
		}
		r, err := p.codePoint()
		if err != nil {
			return "", err
		}
		out = utf8.AppendRune(out, r)
	}
	return "", p.fail("the string does not end")
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (p *parser) codePoint() (rune, *SyntaxError) {
	start := p.at
	high, ok := p.unit()
	if !ok {
		return 0, p.fail("\\u needs four hexadecimal digits")
	}
	if !utf16.IsSurrogate(high) {
		return high, nil
	}
	if p.next() == '\\' {
		p.at++
		if low, ok := p.unit(); ok {
			if r := utf16.DecodeRune(high, low); r != utf8.RuneError {
				return r, nil
			}
		}
	}
	p.at = start
	return 0, p.fail("a surrogate without its pair is not Unicode text")
}

// unit reads uXXXX.
func (p *parser) unit() (rune, bool) {
	if p.next() != 'u' || len(p.data)-p.at < 5 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.data[p.at+1:p.at+5]), 16, 16)
	if err != nil {
		return 0, false
	}
	p.at += 5
	return rune(n), true
}
