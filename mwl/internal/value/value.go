package value

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unsafe"
)

// MaxInteger is the greatest magnitude, 2^53, up to which every integer is a number of the data model exactly.
const MaxInteger = 1 << 53

// Kind names the JSON type of v: "null", "boolean", "number", "string", "array" or "object", and "" for what is no value.
func Kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return ""
}

// Copy returns a deep copy of a value. The parts that cannot be changed, strings among them, are shared.
func Copy(v any) any {
	switch v := v.(type) {
	case []any:
		if v == nil {
			return []any{}
		}
		c := make([]any, len(v))
		for i, e := range v {
			c[i] = Copy(e)
		}
		return c
	case map[string]any:
		c := make(map[string]any, len(v))
		for k, e := range v {
			c[k] = Copy(e)
		}
		return c
	}
	return v
}

// Equal reports whether two values are the same: numbers by their value (0 and -0 are equal), strings by code points, objects without regard to order.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case nil:
		return b == nil
	case bool:
		b, ok := b.(bool)
		return ok && a == b
	case float64:
		b, ok := b.(float64)
		return ok && a == b
	case string:
		b, ok := b.(string)
		return ok && a == b
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !Equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, x := range a {
			y, ok := b[k]
			if !ok || !Equal(x, y) {
				return false
			}
		}
		return true
	}
	return false
}

// Measure walks v and returns how many bytes of memory it takes, roughly. A part that occurs several times counts each time. Measure gives up, with ok false, at the
// first part beyond maxBytes or nested deeper than maxDepth; its work is bounded by maxBytes.
func Measure(v any, maxBytes, maxDepth int) (bytes int, ok bool) {
	m := meter{max: maxBytes}
	ok = m.add(v, maxDepth)
	return m.bytes, ok
}

type meter struct{ bytes, max int }

func (m *meter) add(v any, depth int) bool {
	switch v := v.(type) {
	case []any:
		if depth <= 0 {
			return false
		}
		m.bytes += own(v)
		for _, e := range v {
			if m.bytes > m.max || !m.add(e, depth-1) {
				return false
			}
		}
	case map[string]any:
		if depth <= 0 {
			return false
		}
		m.bytes += own(v)
		for k, e := range v {
			m.bytes += len(k)
			if m.bytes > m.max || !m.add(e, depth-1) {
				return false
			}
		}
	default:
		m.bytes += own(v)
	}
	return m.bytes <= m.max
}

// own is the size of a value without its parts and their names, in bytes: the header, and the slots of the parts. A Go map has room for eight members at least.
func own(v any) int {
	switch v := v.(type) {
	case string:
		return 16 + len(v)
	case float64:
		return 8
	case []any:
		return 24 + 16*len(v)
	case map[string]any:
		switch n := len(v); {
		case n == 0:
			return 48
		case n <= 8:
			return 320
		default:
			return 48 + 80*n
		}
	}
	return 0
}

// Counter counts the memory of values that may share parts: each part counts once. The zero Counter is empty.
type Counter struct {
	// Bytes is the sum.
	Bytes int
	seen  map[part]struct{}
}

// part identifies an array, an object or a long text.
type part struct {
	at   unsafe.Pointer
	size int
}

// smallText is the length up to which texts are not worth to be recognized.
const smallText = 64

// Add counts a value.
func (c *Counter) Add(v any) {
	var p part
	switch v := v.(type) {
	case string:
		if len(v) <= smallText {
			c.Bytes += own(v)
			return
		}
		p = part{unsafe.Pointer(unsafe.StringData(v)), len(v)}
	case []any:
		if len(v) == 0 {
			c.Bytes += own(v)
			return
		}
		p = part{unsafe.Pointer(unsafe.SliceData(v)), len(v)}
	case map[string]any:
		p = part{reflect.ValueOf(v).UnsafePointer(), -1}
	default:
		c.Bytes += own(v)
		return
	}
	if _, again := c.seen[p]; again {
		return
	}
	if c.seen == nil {
		c.seen = map[part]struct{}{}
	}
	c.seen[p] = struct{}{}
	c.Bytes += own(v)
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			c.Add(e)
		}
	case map[string]any:
		for k, e := range v {
			c.Bytes += len(k)
			c.Add(e)
		}
	}
}

// Skip has the parts of a value not count from now on.
func (c *Counter) Skip(v any) {
	bytes := c.Bytes
	c.Add(v)
	c.Bytes = bytes
}

// Error says why something is not a value of the data model.
type Error struct {
	// Path leads to the offending part, as a JSON pointer; "" is the whole.
	Path string
	// Problem names the offence and the remedy.
	Problem string
}

func (e *Error) Error() string {
	if e.Path == "" {
		return "not a value of the data model: " + e.Problem
	}
	return fmt.Sprintf("not a value of the data model: at %s: %s", e.Path, e.Problem)
}

// path is the way from the root to a part, linked so that it costs nothing until an error needs it.
type path struct {
	up    *path
	name  string
	index int
}

func (p *path) String() string {
	if p == nil {
		return ""
	}
	name := p.name
	if p.index >= 0 {
		name = strconv.Itoa(p.index)
	}
	return p.up.String() + "/" + Escape(name)
}

// Escape writes a name as one token of a JSON pointer.
func Escape(name string) string {
	if !strings.ContainsAny(name, "~/") {
		return name
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func (p *path) fail(format string, args ...any) *Error {
	return &Error{Path: p.String(), Problem: fmt.Sprintf(format, args...)}
}
