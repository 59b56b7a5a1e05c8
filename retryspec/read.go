package retryspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// reader reads and validates the values of nodes. The paths of its errors begin at the
// node.
type reader struct{ text []byte }

// field is a member of an object, and how to read it.
type field struct {
	name string
	read func(*node) *Error
}

// object reads the members of an object, in their order. Unknown members are an error.
func (r reader) object(n *node, fields []field) *Error {
	_, err := r.read(n, true, fields)
	return err
}

// members is object, except that it returns the names of unknown members.
func (r reader) members(n *node, fields []field) (unknown []string, err *Error) {
	return r.read(n, false, fields)
}

func (r reader) read(n *node, closed bool, fields []field) (unknown []string, err *Error) {
	if n.kind != isObject {
		return nil, r.refuse(n, "an object")
	}
	for _, m := range n.members {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == m.name })
		if i < 0 {
			if closed {
				return nil, r.unknown(m, fields)
			}
			unknown = append(unknown, m.name)
			continue
		}
		if err := fields[i].read(m.value); err != nil {
			return nil, err.below(m.name)
		}
	}
	return unknown, nil
}

func (r reader) unknown(m member, fields []field) *Error {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	err := &Error{Value: "a member that is unknown here", Expected: suggest(oneOf(names), m.name, names)}
	return err.below(m.name).at(r.text, m.offset)
}

// require returns the error for a missing member.
func (r reader) require(n *node, name, expected string) *Error {
	if slices.ContainsFunc(n.members, func(m member) bool { return m.name == name }) {
		return nil
	}
	return (&Error{Value: "nothing", Expected: expected}).below(name).at(r.text, n.offset)
}

// array reads every item. The array must have a minimum number of them.
func (r reader) array(n *node, least int, expected string, item func(*node) *Error) *Error {
	if n.kind != isArray || len(n.items) < least {
		return r.refuse(n, expected)
	}
	for i, it := range n.items {
		if err := item(it); err != nil {
			return err.below(index(i))
		}
	}
	return nil
}

// texts reads an array of strings that check accepts. The path of an error is the path of
// the array.
func (r reader) texts(n *node, least int, expected string, check func(string) bool) ([]string, *Error) {
	if n.kind != isArray || len(n.items) < least {
		return nil, r.refuse(n, expected)
	}
	texts := make([]string, len(n.items))
	for i, item := range n.items {
		if item.kind != isString || check != nil && !check(item.text) {
			err := r.refuse(item, expected)
			err.Value += " as item " + strconv.Itoa(i+1)
			return nil, err
		}
		texts[i] = item.text
	}
	return texts, nil
}

func (r reader) number(n *node, least float64, expected string) (float64, *Error) {
	if n.kind == isNumber {
		if f, err := strconv.ParseFloat(n.text, 64); err == nil && f >= least {
			return f + 0, nil // which makes 0 of -0
		}
	}
	return 0, r.refuse(n, expected)
}

// integer reads a number without a fraction, in any notation: 5, 5.0, 5e0. Larger numbers
// than 2^63−1 become 2^63−1.
func (r reader) integer(n *node, least int64, expected string) (int64, *Error) {
	if n.kind != isNumber {
		return 0, r.refuse(n, expected)
	}
	if i, err := strconv.ParseInt(n.text, 10, 64); err == nil && i >= least {
		return i, nil
	}
	// It is infinite if it does not fit.
	f, _ := strconv.ParseFloat(n.text, 64)
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64, nil
	case f == math.Trunc(f) && f >= float64(least):
		return int64(f), nil
	}
	return 0, r.refuse(n, expected)
}

func (r reader) refuse(n *node, expected string) *Error {
	return (&Error{Value: r.quote(n), Expected: expected}).at(r.text, n.offset)
}

// quote returns a value on one line.
func (r reader) quote(n *node) string {
	var b bytes.Buffer
	if err := json.Compact(&b, r.text[n.offset:n.end]); err != nil {
		return string(n.kind)
	}
	if s := shorten(b.String()); b.Len() == len(s) {
		return s
	}
	return fmt.Sprintf("%s: %s", n.kind, shorten(b.String()))
}
