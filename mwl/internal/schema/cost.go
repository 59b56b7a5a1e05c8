package schema

import (
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// What validating costs, in units of 0.1 µs, as measured, rounded up.
const (
	partCost   = 10 // a part of a schema that is applied to a part of the arguments
	numberCost = 10 // a comparison of two numbers
	memberCost = 1  // a name or another value that is compared, or kept as not evaluated

	copyBytes    = 32 // bytes of a text that a part copies, or counts the characters of, for one unit
	scanBytes    = 2  // bytes of a text that a small pattern, or a format, reads for one unit
	patternSteps = 16 // instructions of a larger pattern for as much again
	largePattern = 500
	parseCost    = 60 // a byte of a text that is a pattern

	alternativeCost = 50  // a branch whose error is kept, too
	nameCost        = 500 // a name with a schema, whose error is kept with its description
	metaCost        = 100 // a value that is a schema
)

// Cost returns about how long validating arguments takes, in units of 0.1 µs, or a number that exceeds
// limit as soon as it is known to. It counts every part of the schema that may be applied.
func (s *Schema) Cost(args map[string]any, limit int) int {
	if s.compiled == nil {
		return len(args)
	}
	return s.costOf(s.compiled, args, limit)
}

// costOf is Cost for a part of the schema.
func (s *Schema) costOf(part *jsonschema.Schema, v any, limit int) int {
	m := meter{facts: &s.facts, limit: limit}
	m.apply(part, v, nil)
	return m.cost
}

// meter adds up what validating costs, until it exceeds limit.
type meter struct {
	facts       *facts
	cost, limit int
}

// scan adds the cost of matching a text.
func (m *meter) scan(pattern jsonschema.Regexp, text string) {
	each := m.facts.sizes[pattern.String()] / patternSteps
	if each > largePattern/patternSteps { // the package regexp then looks at each instruction, for each byte
		each *= patternSteps
	}
	m.cost += (len(text) + 1) * (each + 1) / scanBytes
}

func (m *meter) spent() bool { return m.cost > m.limit }

// apply adds the cost of a schema for a value. around are the schemas that apply to the same value and
// lead here: the library refuses a schema that leads to itself.
func (m *meter) apply(s *jsonschema.Schema, v any, around []*jsonschema.Schema) {
	if s == nil || m.spent() {
		return
	}
	for _, other := range around {
		if other == s {
			return
		}
	}
	m.cost += partCost + len(around)/8
	if isMeta(s) {
		m.compare(v, metaCost)
		return
	}
	around = append(around, s)
	m.own(s, v)
	m.cost += alternativeCost * (len(s.AnyOf) + len(s.OneOf))
	for _, part := range [...]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else} {
		m.apply(part, v, around)
	}
	if s.DynamicRef != nil {
		m.apply(s.DynamicRef.Ref, v, around)
	}
	for _, parts := range [...][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf} {
		for _, part := range parts {
			m.apply(part, v, around)
		}
	}
	switch v := v.(type) {
	case map[string]any:
		m.object(s, v, around)
	case []any:
		m.array(s, v)
	}
}

// own adds the cost of the keywords that have no schemas.
func (m *meter) own(s *jsonschema.Schema, v any) {
	compared := 0
	if s.Const != nil {
		compared++
	}
	if s.Enum != nil {
		compared += len(s.Enum.Values)
	}
	if compared > 0 {
		m.compare(v, compared)
	}
	switch v := v.(type) {
	case string:
		m.cost += len(v) / copyBytes
		if s.Pattern != nil {
			m.scan(s.Pattern, v)
		}
		switch {
		case s.Format == nil:
		case s.Format.Name == "regex":
			m.cost += len(v) * parseCost
		default:
			m.cost += len(v) / scanBytes
		}
	case float64:
		for _, bound := range [...]bool{s.Minimum != nil, s.Maximum != nil, s.ExclusiveMinimum != nil, s.ExclusiveMaximum != nil, s.MultipleOf != nil} {
			if bound {
				m.cost += numberCost
			}
		}
	}
}

// compare adds the cost of comparing a value with others.
func (m *meter) compare(v any, times int) {
	each := 0
	var add func(v any)
	add = func(v any) {
		if each += memberCost; each > m.limit {
			return
		}
		switch v := v.(type) {
		case float64:
			each += numberCost
		case string:
			each += len(v) / 64
		case []any:
			for _, item := range v {
				add(item)
			}
		case map[string]any:
			for _, member := range v {
				add(member)
			}
		}
	}
	add(v)
	m.cost += min(each, m.limit) * min(times, m.limit)
}

func (m *meter) object(s *jsonschema.Schema, v map[string]any, around []*jsonschema.Schema) {
	if m.facts.unevaluated {
		m.cost += memberCost * len(v)
	}
	m.cost += memberCost * (len(s.Required) + len(s.DependentRequired) + len(s.DependentSchemas) + len(v))
	for name, required := range s.DependentRequired {
		if _, ok := v[name]; ok {
			m.cost += memberCost * len(required)
		}
	}
	for name, part := range s.DependentSchemas {
		if _, ok := v[name]; ok {
			m.apply(part, v, around)
		}
	}
	additional, _ := s.AdditionalProperties.(*jsonschema.Schema)
	for name, member := range v {
		if m.spent() {
			return
		}
		m.cost += len(name) / copyBytes
		declared, ok := s.Properties[name]
		m.apply(declared, member, nil)
		if !ok {
			m.apply(additional, member, nil)
		}
		for pattern, part := range s.PatternProperties {
			m.cost += partCost
			m.scan(pattern, name)
			m.apply(part, member, nil)
		}
		if s.PropertyNames != nil {
			m.cost += nameCost
			m.apply(s.PropertyNames, name, nil)
		}
		m.apply(s.UnevaluatedProperties, member, nil)
	}
}

func (m *meter) array(s *jsonschema.Schema, v []any) {
	if s.UniqueItems {
		m.compare(v, min(len(v), 20)) // the library compares 20 with one another, and hashes more
	}
	if m.facts.unevaluated {
		m.cost += memberCost * len(v)
	}
	if len(s.PrefixItems) == 0 && s.Items2020 == nil && s.Contains == nil && s.UnevaluatedItems == nil {
		return
	}
	for i, item := range v {
		if m.spent() {
			return
		}
		if i < len(s.PrefixItems) {
			m.apply(s.PrefixItems[i], item, nil)
		} else {
			m.apply(s.Items2020, item, nil)
		}
		m.apply(s.Contains, item, nil)
		m.apply(s.UnevaluatedItems, item, nil)
	}
}
