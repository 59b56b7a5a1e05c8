// Package jsonline reads lines of JSON that are not trusted, in memory in proportion to their
// length.
package jsonline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Read reads the next line into the memory of buffer. The error is io.EOF for the last line, and
// bufio.ErrTooLong for a line with more than so many bytes.
func Read(r *bufio.Reader, buffer []byte, most int) ([]byte, error) {
	line := buffer[:0]
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, bufio.ErrTooLong
		}
		if len(line)+len(part) > cap(line) { // append alone would grow it by a quarter
			line = slices.Grow(line, len(line)+len(part))
		}
		line = append(line, part...)
		if err != bufio.ErrBufferFull { //nolint:errorlint // ReadSlice returns the very same
			return line, err
		}
	}
}

// CountStrings returns the number of strings in a JSON array or object, and whether it has strings
// only. It stops at the first value of another kind.
func CountStrings(data []byte) (n int, only bool) {
	for i := 1; i < len(data)-1; i++ {
		switch data[i] {
		case '"':
			n++
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case ',', ':', ' ', '\t', '\r', '\n':
		default:
			return n, false
		}
	}
	return n, true
}

// Field is embedded in the type of a field that may occur only once in a line. encoding/json
// decodes a repeated field again.
type Field struct{ seen bool }

// See returns an error from the second call on. name describes the field.
func (f *Field) See(name string) error {
	if f.seen {
		return fmt.Errorf("names %s twice; leave one out", name)
	}
	f.seen = true
	return nil
}

// Raw is a field that may have any value.
type Raw struct {
	Field
	raw json.RawMessage
}

// UnmarshalJSON copies the value.
func (f *Raw) UnmarshalJSON(data []byte) error {
	if string(data) != "null" {
		f.raw = bytes.Clone(data)
	}
	return f.See("a payload")
}

// Value returns a json.RawMessage, or nil for null and a missing field.
func (f *Raw) Value() any {
	if f.raw == nil {
		return nil
	}
	return f.raw
}

// Strings is a field that has a list of strings, or null.
type Strings struct {
	Field
	Values []string
}

// UnmarshalJSON counts the strings before it takes memory for them.
func (f *Strings) UnmarshalJSON(data []byte) error {
	if err := f.See("a list"); err != nil {
		return err
	}
	n, only := CountStrings(data)
	if !only && string(data) != "null" {
		return errors.New("a list has an element that is not a string")
	}
	f.Values = make([]string, 0, n)
	return json.Unmarshal(data, &f.Values)
}

// Ends is a field that has a list, or null. It keeps the first elements and the last ones: a list of millions takes
// the memory of those.
type Ends[E any] struct {
	Field
	Name        string         // of the field, for errors
	First, Last int            // how many elements are kept
	Normal      func(*E) error // normalizes an element, or refuses it

	Count       int // of all elements
	first, last []E // last is a ring
}

// UnmarshalJSON decodes one element at a time.
func (f *Ends[E]) UnmarshalJSON(data []byte) error {
	if err := f.See(f.Name); err != nil {
		return err
	}
	if data[0] != '[' {
		return json.Unmarshal(data, new([]E)) // null means no elements; other values are an error
	}
	in := json.NewDecoder(bytes.NewReader(data))
	if _, err := in.Token(); err != nil {
		return err
	}
	var next E
	for ; in.More(); f.Count++ {
		var zero E
		next = zero
		if err := in.Decode(&next); err != nil {
			return err
		}
		if err := f.Normal(&next); err != nil {
			return err
		}
		switch {
		case len(f.first) < f.First:
			f.first = append(f.first, next)
		case len(f.last) < f.Last:
			f.last = append(f.last, next)
		default:
			f.last[(f.Count-f.First)%f.Last] = next
		}
	}
	return nil
}

// Kept returns the kept elements in order.
func (f *Ends[E]) Kept() []E {
	oldest := 0
	if f.Count > f.First+f.Last {
		oldest = (f.Count - f.First) % f.Last
	}
	return slices.Concat(f.first, f.last[oldest:], f.last[:oldest])
}
