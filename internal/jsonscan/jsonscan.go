// Package jsonscan finds parts of a JSON text without decoding the rest. It takes a tenth of the time of encoding/json,
// and trusts the text: it finds some, not all, mistakes in it.
package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
)

// ErrMalformed is the error of a text that is not JSON, or not of the kind that is looked for.
var ErrMalformed = errors.New("malformed JSON")

// Find returns the value of a member of an object, or of a member of that member, and so on. It is nil if there is none.
// Of several members with one name, it returns the first.
//
// Errors: ErrMalformed for a text that is no object, as far as it was read.
func Find(object []byte, path ...string) (found []byte, err error) {
	for _, name := range path {
		found, err = find(object, name)
		if found == nil || err != nil {
			return nil, err
		}
		object = found
	}
	return object, nil
}

// errFound ends a search.
var errFound = errors.New("found")

func find(object []byte, name string) (found []byte, err error) {
	s := scanner{object}
	err = s.list('{', '}', func() error {
		key, err := Text(s.value())
		if err != nil || !s.take(':') {
			return ErrMalformed
		}
		if value := s.value(); value == nil {
			return ErrMalformed
		} else if string(key) == name {
			found = value
			return errFound
		}
		return nil
	})
	if err == errFound { //nolint:errorlint // list returns the very same
		err = nil
	}
	return found, err
}

// Each calls visit with the elements of an array, or of null, which has none, until it returns an error.
//
// Errors: that of visit; ErrMalformed for a text that is no array, as far as it was read.
func Each(array []byte, visit func(element []byte) error) error {
	if string(array) == "null" {
		return nil
	}
	s := scanner{array}
	return s.list('[', ']', func() error {
		element := s.value()
		if element == nil {
			return ErrMalformed
		}
		return visit(element)
	})
}

// Text returns the text of a JSON string. It shares memory with the string.
//
// Errors: ErrMalformed for a value that is no string.
func Text(value []byte) ([]byte, error) {
	switch {
	case len(value) < 2 || value[0] != '"':
		return nil, ErrMalformed
	case bytes.IndexByte(value, '\\') < 0:
		return value[1 : len(value)-1], nil
	}
	var text string
	if json.Unmarshal(value, &text) != nil {
		return nil, ErrMalformed
	}
	return []byte(text), nil
}

// scanner reads a text from the front.
type scanner struct {
	text []byte // the rest
}

// list reads an object or an array, of which item reads the members or elements.
func (s *scanner) list(begin, end byte, item func() error) error {
	if !s.take(begin) {
		return ErrMalformed
	}
	if s.take(end) {
		return nil
	}
	for more := true; more; more = s.take(',') {
		if err := item(); err != nil {
			return err
		}
	}
	if !s.take(end) {
		return ErrMalformed
	}
	return nil
}

// take skips space, and then a byte if it is the next one.
func (s *scanner) take(b byte) bool {
	for len(s.text) > 0 && isSpace(s.text[0]) {
		s.text = s.text[1:]
	}
	if len(s.text) == 0 || s.text[0] != b {
		return false
	}
	s.text = s.text[1:]
	return true
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\r' || b == '\n' }

// value reads a value of any kind. It returns nil if there is none, or no end of it.
func (s *scanner) value() []byte {
	s.take(0)
	length := lengthOf(s.text)
	value := s.text[:length:length]
	s.text = s.text[length:]
	if length == 0 {
		return nil
	}
	return value
}

// lengthOf returns the length of the value at the beginning of a text, or 0.
func lengthOf(text []byte) int {
	depth := 0
	for at := 0; at < len(text); {
		switch b := text[at]; {
		case b == '"':
			length := stringLength(text[at:])
			if length == 0 {
				return 0
			}
			at += length
		case b == '{' || b == '[':
			depth++
			at++
		case b == '}' || b == ']':
			depth--
			at++
		case depth > 0:
			at++
		default: // a number or a word
			for at < len(text) && !isSpace(text[at]) && bytes.IndexByte([]byte(",:]}"), text[at]) < 0 {
				at++
			}
			return at
		}
		if depth <= 0 {
			return at * (1 + depth) // an end without a beginning is no value
		}
	}
	return 0
}

// stringLength returns the length of the string at the beginning of a text, with its quotes, or 0.
func stringLength(text []byte) int {
	for at := 1; ; {
		quote := bytes.IndexByte(text[at:], '"')
		if quote < 0 {
			return 0
		}
		escapes := 0
		for end := at + quote - 1; end > 0 && text[end] == '\\'; end-- {
			escapes++
		}
		at += quote + 1
		if escapes%2 == 0 {
			return at
		}
	}
}
