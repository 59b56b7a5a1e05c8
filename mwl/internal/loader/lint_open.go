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

// ofNames are the keywords that look at the members of an object, or the length of an
// array, and at no value inside.
var ofNames = []string{"type", "required", "additionalProperties", "minProperties", "maxProperties", "minItems", "maxItems"}

// mayDecide reports whether it may depend on what an expression computes that a keyword
// is violated.
func (e expressions) mayDecide(p schema.Place) bool {
	if e.enclose(p.Instance) {
		return true
	}
	steps := strings.Split(p.Schema, "/")
	ofNames := slices.Contains(ofNames, steps[len(steps)-1]) || steps[max(len(steps)-2, 0)] == "dependentRequired"
	if e.isInside(p.Instance) && (p.Whole || !ofNames) {
		return true
	}
	subject, conditional := condition(steps, p.Instance)
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
// there is a condition on the way to it, as in an if or an anyOf. Behind a $ref the way
// is unknown: then it is the whole.
func condition(steps []string, place string) (subject string, conditional bool) {
	tokens := strings.Split(place, "/")
	depth := 1 // of the value that the part of the schema is for
	here := func() string { return strings.Join(tokens[:depth], "/") }
	for i := 1; i < len(steps); {
		child, named := 0, false // steps to the schema of a child
		switch steps[i] {
		case "properties", "prefixItems":
			child, named = 2, true
		case "patternProperties":
			child = 2
		case "items", "additionalProperties":
			child = 1
		case "allOf", "dependentSchemas": // names are known
			i += 2
			continue
		case "unevaluatedProperties", "unevaluatedItems":
			return here(), true
		default:
			if i < len(steps)-1 && steps[i] != "dependentRequired" {
				return here(), true
			}
		}
		last := i+max(child, 1) >= len(steps)
		if child == 0 || last && depth == len(tokens) { // a keyword of the value itself
			return "", depth != len(tokens)
		}
		if depth == len(tokens) || named && (i+1 == len(steps) || steps[i+1] != tokens[depth]) {
			return "", true
		}
		i, depth = i+child, depth+1
	}
	return "", depth != len(tokens)
}
