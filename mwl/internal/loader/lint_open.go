package loader

import (
	"slices"
	"strconv"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// expressions are the places of the expressions in arguments, as JSON pointers.
type expressions []string

// value is the value of a node, with null for each expression.
func (e *expressions) value(n *strictjson.Node, pointer string) any {
	switch n.Kind {
	case strictjson.String:
		if _, ok := expr.Body(n.Text); ok {
			*e = append(*e, pointer)
			return nil
		}
	case strictjson.Array:
		items := make([]any, len(n.Items))
		for i, item := range n.Items {
			items[i] = e.value(item, strictjson.AppendToken(pointer, strconv.Itoa(i)))
		}
		return items
	case strictjson.Object:
		members := make(map[string]any, len(n.Members))
		for _, m := range n.Members {
			members[m.Name] = e.value(m.Value, strictjson.AppendToken(pointer, m.Name))
		}
		return members
	default:
	}
	return n.Value()
}

// hasExpression reports whether any string of a value is an expression.
func hasExpression(n *strictjson.Node) bool {
	if n.Kind == strictjson.String {
		_, ok := expr.Body(n.Text)
		return ok
	}
	return slices.ContainsFunc(n.Items, hasExpression) ||
		slices.ContainsFunc(n.Members, func(m strictjson.Member) bool { return hasExpression(m.Value) })
}

// mayDecide reports whether it may depend on what an expression computes that a keyword
// is violated.
func (e expressions) mayDecide(p schema.Place) bool {
	if e.enclose(p.Instance) {
		return true
	}
	if e.isInside(p.Instance) && !p.OfNames {
		return true
	}
	subject, conditional := condition(strings.Split(p.Schema, "/"), p.Instance)
	if p.Referred {
		subject, conditional = "", true
	}
	return conditional && e.isInside(subject)
}

// enclose reports whether a place is an expression, or a part of what one computes.
func (e expressions) enclose(place string) bool {
	return slices.ContainsFunc(e, func(pointer string) bool { return place == pointer || strings.HasPrefix(place, pointer+"/") })
}

// isInside reports whether an expression is a part of the value at a place.
func (e expressions) isInside(place string) bool {
	return slices.ContainsFunc(e, func(pointer string) bool { return strings.HasPrefix(pointer, place+"/") })
}

// condition returns the place of the value that decides whether a keyword applies, if
// there is a condition on the way to it, as in an if or an anyOf.
func condition(steps []string, place string) (subject string, conditional bool) {
	tokens := strings.Split(place, "/")
	depth := 1 // of the value that the part of the schema is for
	here := func() string { return strings.Join(tokens[:min(depth, len(tokens))], "/") }
	for i := 1; i < len(steps)-1; { // the last step is the keyword, or a child for which nothing is allowed
		switch steps[i] {
		case "properties", "patternProperties", "prefixItems":
			i, depth = i+2, depth+1
		case "items", "additionalProperties":
			i, depth = i+1, depth+1
		case "allOf", "dependentSchemas": // names are known
			i += 2
		case "dependentRequired":
			return "", false
		default:
			return here(), true
		}
	}
	last := steps[len(steps)-1]
	return here(), last == "unevaluatedProperties" || last == "unevaluatedItems"
}
