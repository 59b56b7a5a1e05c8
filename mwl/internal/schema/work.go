package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/surebus/eventbus/mwl/internal/regex"
)

// maxApplications is how many times the parts of a schema may be applied, each
// reference followed.
const maxApplications = 10_000

// work finds a schema that takes exponential time. References share parts, and a
// part that refers twice to another, which refers twice to a third, and so on, is
// small as a text only. A part that applies itself twice to the same part of the
// arguments takes exponential time in their depth.
type work struct {
	applied int
	facts   facts
	// open are the targets of the references that are being followed.
	open map[*jsonschema.Schema]*recursion
	// path leads through the arguments to where a schema applies.
	path []string
}

// recursion is a reference that is being followed.
type recursion struct {
	depth int
	// again are the paths from here to where its target applies again.
	again [][]string
}

// anyPart stands in a path for parts that have no name in the schema.
const anyPart = ""

// facts are what the cost of a validation depends on.
type facts struct {
	// sizes are those of the patterns, in instructions.
	sizes map[string]int
	// unevaluated: the library keeps for each part which children are evaluated.
	unevaluated bool
	dynamic     bool // there is a $dynamicRef, if only in the metaschema
	ownDynamic  bool // there is one that is not in the metaschema
}

func inspectWork(s *jsonschema.Schema) (facts, *Error) {
	w := &work{open: map[*jsonschema.Schema]*recursion{}, facts: facts{sizes: map[string]int{}}}
	err := w.follow(s)
	return w.facts, err
}

// note notes the facts of one part.
func (w *work) note(s *jsonschema.Schema) {
	w.facts.unevaluated = w.facts.unevaluated || s.UnevaluatedItems != nil || s.UnevaluatedProperties != nil
	w.facts.ownDynamic = w.facts.ownDynamic || s.DynamicRef != nil
	w.facts.dynamic = w.facts.dynamic || s.DynamicRef != nil
	size := func(pattern string) {
		if _, known := w.facts.sizes[pattern]; !known {
			w.facts.sizes[pattern], _ = regex.Size(pattern)
		}
	}
	if s.Pattern != nil {
		size(s.Pattern.String())
	}
	for pattern := range s.PatternProperties {
		size(pattern.String())
	}
}

// metaschemas is where those of JSON Schema are, which the library has.
const metaschemas = "https://json-schema.org/draft/2020-12/"

func isMeta(s *jsonschema.Schema) bool { return strings.HasPrefix(s.Location, metaschemas) }

// hasInnerID reports whether an object inside v may have an $id.
func hasInnerID(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, hasID)
	case map[string]any:
		for _, member := range v {
			if hasID(member) {
				return true
			}
		}
	}
	return false
}

func hasID(v any) bool {
	object, _ := v.(map[string]any)
	_, ok := object["$id"].(string)
	return ok || hasInnerID(v)
}

func (w *work) apply(s *jsonschema.Schema) *Error {
	if s == nil {
		return nil
	}
	if w.applied++; w.applied > maxApplications {
		return &Error{fragment(s.Location), fmt.Sprintf("with all references followed the schema has more than %d parts", maxApplications), "refer to shared parts fewer times"}
	}
	if isMeta(s) {
		w.facts.dynamic = true
		return nil
	}
	if strings.HasPrefix(s.Location, "http://json-schema.org/") || strings.HasPrefix(s.Location, "https://json-schema.org/") {
		return &Error{"", "it refers to " + s.Location, "refer to its own parts, or to " + Dialect}
	}
	w.note(s)
	here := slices.Concat([]*jsonschema.Schema{s.Not, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf, s.OneOf)
	here = append(here, inOrder(s.DependentSchemas)...)
	for _, part := range here {
		if err := w.apply(part); err != nil {
			return err
		}
	}
	if err := w.follow(s.Ref); err != nil {
		return err
	}
	if s.DynamicRef != nil {
		if err := w.follow(s.DynamicRef.Ref); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if err := w.inside("."+name, s.Properties[name]); err != nil {
			return err
		}
	}
	unnamed := slices.Concat([]*jsonschema.Schema{s.PropertyNames, s.Items2020, s.Contains, s.UnevaluatedItems, s.UnevaluatedProperties, s.ContentSchema}, s.PrefixItems)
	patterns := make(map[string]*jsonschema.Schema, len(s.PatternProperties))
	for pattern, part := range s.PatternProperties {
		patterns[pattern.String()] = part
	}
	unnamed = append(unnamed, inOrder(patterns)...)
	if part, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		unnamed = append(unnamed, part)
	}
	for _, part := range unnamed {
		if err := w.inside(anyPart, part); err != nil {
			return err
		}
	}
	return nil
}

// inOrder returns the parts by their names, because loading is deterministic.
func inOrder(parts map[string]*jsonschema.Schema) []*jsonschema.Schema {
	ordered := make([]*jsonschema.Schema, 0, len(parts))
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		ordered = append(ordered, parts[name])
	}
	return ordered
}

func (w *work) inside(label string, s *jsonschema.Schema) *Error {
	w.path = append(w.path, label)
	err := w.apply(s)
	w.path = w.path[:len(w.path)-1]
	return err
}

func (w *work) follow(target *jsonschema.Schema) *Error {
	if target == nil {
		return nil
	}
	at, recursive := w.open[target]
	if !recursive {
		w.open[target] = &recursion{depth: len(w.path)}
		err := w.apply(target)
		delete(w.open, target)
		return err
	}
	path := slices.Clone(w.path[at.depth:])
	for _, other := range at.again {
		if overlap(path, other) {
			pointer := fragment(target.Location)
			return &Error{pointer, "it applies itself more than once to the same part of the arguments, which takes exponential time", "refer to it once"}
		}
	}
	at.again = append(at.again, path)
	return nil
}

// overlap reports whether two paths can lead to the same part, or one through the
// other.
func overlap(a, b []string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] && a[i] != anyPart && b[i] != anyPart {
			return false
		}
	}
	return true
}
