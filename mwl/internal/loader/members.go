package loader

import (
	"fmt"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// member is a member that an object may have, and who reads its value.
type member struct {
	name string
	read func(*strictjson.Node)
}

// shape is what an object may look like. What begins sentences, like "a call".
type shape struct {
	what     string
	required []string
	members  []member
	// strangers says what to do about members that the object does not have; "" when
	// there is nothing better to say than which ones it has. Nil has nothing to say.
	strangers func(name string) string
}

// object reads an object, and reports whether n is one.
func (l *loader) object(n *strictjson.Node, s shape) bool {
	if n.Kind != strictjson.Object {
		l.misshapen(n, "write an object", "%s is an object, not %s", s.what, kind(n))
		return false
	}
	for _, m := range n.Members {
		i := slices.IndexFunc(s.members, func(known member) bool { return known.name == m.Name })
		if i >= 0 {
			s.members[i].read(m.Value)
			continue
		}
		remedy := ""
		if s.strangers != nil {
			remedy = s.strangers(m.Name)
		}
		if remedy == "" {
			remedy = l.meantMember(m.Name, n, s)
		}
		l.misnamed(n, m, remedy, "%s has no member %q", s.what, m.Name)
	}
	for _, name := range s.required {
		if n.Member(name) == nil {
			l.misshapen(n, fmt.Sprintf("add %q", name), "%s lacks the member %q", s.what, name)
		}
	}
	return true
}

// meantMember says which member was meant, of those that the object lacks.
func (l *loader) meantMember(name string, n *strictjson.Node, s shape) string {
	var names, free []string
	for _, m := range s.members {
		names = append(names, m.name)
		if n.Member(m.name) == nil {
			free = append(free, m.name)
		}
	}
	if closest, ok := l.effort.closest(name, free); ok {
		return fmt.Sprintf("did you mean %q?", closest)
	}
	return "delete it; the members are " + strings.Join(names, ", ")
}

// kind names the value's type with its article.
func kind(n *strictjson.Node) string {
	switch n.Kind {
	case strictjson.Null:
		return "null"
	case strictjson.Array, strictjson.Object:
		return "an " + n.Kind.String()
	default:
		return "a " + n.Kind.String()
	}
}

// array reads the elements of an array with at least least elements.
func (l *loader) array(n *strictjson.Node, what string, least int, read func(*strictjson.Node)) bool {
	if n.Kind != strictjson.Array {
		l.misshapen(n, "write an array", "%s is an array, not %s", what, kind(n))
		return false
	}
	if len(n.Items) < least {
		l.misshapen(n, "give it an element", "%s is empty", what)
	}
	for _, item := range n.Items {
		read(item)
	}
	return true
}

// text reads a string.
func (l *loader) text(n *strictjson.Node, what string) (string, bool) {
	if n.Kind != strictjson.String {
		l.misshapen(n, "write a string", "%s is a string, not %s", what, kind(n))
		return "", false
	}
	return n.Text, true
}

// textTo reads a string that no one interprets, such as a comment.
func (l *loader) textTo(to *string, what string) func(*strictjson.Node) {
	return func(n *strictjson.Node) { *to, _ = l.text(n, what) }
}

// boolean reads true or false.
func (l *loader) boolean(n *strictjson.Node, what string) bool {
	if n.Kind != strictjson.Bool {
		l.misshapen(n, "write true or false", "%s is true or false, not %s", what, kind(n))
		return false
	}
	return n.Bool
}
