package convert

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unicode"
)

// maxNamed bounds the members that an error names.
const maxNamed = 5

// noMemberFits returns an error if data is an object with members, and encoding/json has found none of them in the struct t:
// the payload is another event's. It is nil for types other than structs with members, and for those that decode themselves.
func noMemberFits(data []byte, t reflect.Type) error {
	members := membersOf(t)
	if len(members) == 0 {
		return nil
	}
	in := json.NewDecoder(bytes.NewReader(data))
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return nil //nolint:nilerr // it was decoded before
	}
	var named []string
	n := 0
	for ; in.More(); n++ {
		name, err := in.Token()
		if err != nil || in.Decode(new(json.RawMessage)) != nil {
			return nil //nolint:nilerr // it was decoded before
		}
		for _, member := range members {
			if strings.EqualFold(member, name.(string)) { // as encoding/json does
				return nil
			}
		}
		if n < maxNamed {
			named = append(named, fmt.Sprintf("%.100q", name))
		}
	}
	if n == 0 {
		return nil
	}
	if n > maxNamed {
		named = append(named, fmt.Sprintf("and %d more", n-maxNamed))
	}
	return fmt.Errorf("no member of the object fits: it has %s, and the type has %s", strings.Join(named, ", "), strings.Join(first(members), ", "))
}

// first returns the members that an error names.
func first(members []string) (named []string) {
	for i, member := range members {
		if i == maxNamed {
			return append(named, fmt.Sprintf("and %d more", len(members)-maxNamed))
		}
		named = append(named, fmt.Sprintf("%.100q", member))
	}
	return named
}

// members has the result of membersOf for each type that was asked for.
var members sync.Map // reflect.Type: []string

// membersOf returns the names under which encoding/json decodes into the fields of a struct, or of what a pointer points to. It
// returns nil for other types, and for those that decode themselves.
func membersOf(t reflect.Type) []string {
	if known, ok := members.Load(t); ok {
		return known.([]string)
	}
	var names []string
	if s := structOf(t); s != nil && !decodesItself(t) {
		names = appendMembers(nil, s, make(map[reflect.Type]bool))
	}
	members.Store(t, names)
	return names
}

// structOf returns the struct that a t is, or points to, or nil.
func structOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// decodesItself reports whether a t, or a pointer to it, has methods that encoding/json calls to decode it.
func decodesItself(t reflect.Type) bool {
	for ; ; t = t.Elem() {
		if p := reflect.PointerTo(t); p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler) {
			return true
		}
		if t.Kind() != reflect.Pointer {
			return false
		}
	}
}

// isTagName reports whether encoding/json takes a name from a tag. It ignores names with other characters.
func isTagName(name string) bool {
	other := func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return name != "" && !strings.ContainsFunc(name, other)
}

// appendMembers appends the members of a struct, and those of structs that are embedded in it. The types in seen have been
// visited.
func appendMembers(names []string, s reflect.Type, seen map[reflect.Type]bool) []string {
	if seen[s] {
		return names
	}
	seen[s] = true
	for i := range s.NumField() {
		f := s.Field(i)
		tag := f.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		embedded := structOf(f.Type)
		switch {
		case tag == "-":
		case f.Anonymous && !isTagName(name) && embedded != nil:
			names = appendMembers(names, embedded, seen)
		case !f.IsExported():
		case isTagName(name):
			names = append(names, name)
		default:
			names = append(names, f.Name)
		}
	}
	return names
}
