package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/surebus/eventbus/mwl/internal/value"
)

// Violation says in what arguments fail their schema.
type Violation struct {
	violations []unit
	searched   int
}

// Searched is what it has cost to find the place, beside [Schema.Cost].
func (v *Violation) Searched() int { return v.searched }

// unit is one failed keyword.
type unit struct {
	at  []string                    // leads to its value in the arguments
	err *jsonschema.ValidationError // is described when it is reported: there may be many
	// schema and text stand for an err that is nil.
	schema, text string
	value        any // of the first unit only
	// referred: a reference leads to the keyword.
	referred bool
	// whole: something inside of the value is violated, and it is not known what.
	whole bool
}

// What is reported has at most this many bytes: names and values may be long.
const (
	maxText    = 400
	maxPointer = 2000
)

func (u *unit) message() string {
	if u.err != nil {
		return value.Cut(describe(u.err), maxText)
	}
	return u.text
}

func (u *unit) instance() string { return value.Cut(pointer(u.at), maxPointer) }

func (u *unit) keyword() string {
	if u.err != nil {
		return value.Cut(fragment(u.err.SchemaURL)+pointer(u.err.ErrorKind.KeywordPath()), maxPointer)
	}
	return u.schema
}

// maxReported is how many violations a report lists: the first ones say what is wrong, and a failure travels.
const maxReported = 20

// Message is one line for the failure's message.
func (v *Violation) Message() string {
	first := v.violations[0]
	text := "the arguments are not valid: "
	if len(first.at) > 0 {
		text += "at " + first.instance() + ": "
	}
	text += first.message()
	if more := len(v.violations) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

func (v *Violation) Error() string { return v.Message() }

// Details is the structured form for the failure's details: schemaPath, instancePath, value and message of the first violation, and with more than one all of them in
// errors. It is a value; the arguments in it are shared.
func (v *Violation) Details() map[string]any {
	details := v.violations[0].details()
	details["value"] = v.violations[0].value
	if len(v.violations) > 1 {
		list := make([]any, 0, len(v.violations))
		for _, u := range v.violations[:min(len(v.violations), maxReported)] {
			list = append(list, u.details())
		}
		details["errors"] = list
	}
	return details
}

// Place is where one keyword is violated.
type Place struct {
	// Schema and Instance are JSON pointers, into the schema and into the arguments.
	Schema, Instance string
	Message          string
	// OfNames: the keyword looks at the names of an object or the length of an array, and
	// at no value inside.
	OfNames bool
	// Referred: a reference leads to the keyword, so that Schema does not say on the way
	// to which value it is.
	Referred bool
}

// Places returns all violations.
func (v *Violation) Places() []Place {
	places := make([]Place, len(v.violations))
	for i, u := range v.violations {
		places[i] = Place{u.keyword(), u.instance(), u.message(), u.ofNames(), u.referred}
	}
	return places
}

func (u *unit) ofNames() bool {
	if u.err == nil {
		return !u.whole
	}
	switch u.err.ErrorKind.(type) {
	case *kind.Type, *kind.Required, *kind.AdditionalProperties, *kind.DependentRequired,
		*kind.MinProperties, *kind.MaxProperties, *kind.MinItems, *kind.MaxItems, *kind.PropertyNames:
		return true
	}
	return false
}

func (u *unit) details() map[string]any {
	return map[string]any{"schemaPath": u.keyword(), "instancePath": u.instance(), "message": u.message()}
}

// closed is the verdict of no schema.
func closed(args map[string]any) *Violation {
	if len(args) == 0 {
		return nil
	}
	names := make([]string, 0, len(args))
	for name := range args {
		names = append(names, name)
	}
	slices.Sort(names)
	return &Violation{violations: []unit{{
		schema: "/additionalProperties",
		text:   fmt.Sprintf("it takes no arguments, and %s was given", quoted(names)),
		value:  args,
	}}}
}

// violation reads the error of the part of the arguments to which path leads. referred: a reference leads to
// the part of the schema.
func violation(e *jsonschema.ValidationError, path []string, referred bool, args map[string]any) *Violation {
	found := units(e)
	for i := range found {
		u := &found[i]
		u.at, u.referred = slices.Concat(path, u.at), u.referred || referred
		if names, ok := u.err.ErrorKind.(*kind.PropertyNames); ok {
			// The library keeps no copy of this location, and writes into it later.
			if object, ok := lookup(args, u.at).(map[string]any); !ok || !has(object, names.Property) {
				u.at = nil
			}
		}
	}
	found[0].value = lookup(args, found[0].at)
	return &Violation{violations: found}
}

func has(object map[string]any, name string) bool {
	_, ok := object[name]
	return ok
}

var english = message.NewPrinter(language.English)

// units lists the keywords that failed, by their place in the arguments. Branches of anyOf and oneOf are one unit together: none of them alone is what is wrong.
func units(e *jsonschema.ValidationError) []unit {
	var found []unit
	collect(e, false, &found)
	slices.SortStableFunc(found, func(a, b unit) int {
		return cmp.Or(slices.Compare(a.at, b.at), strings.Compare(a.err.SchemaURL, b.err.SchemaURL),
			slices.Compare(a.err.ErrorKind.KeywordPath(), b.err.ErrorKind.KeywordPath()))
	})
	return found
}

func collect(e *jsonschema.ValidationError, referred bool, found *[]unit) {
	if _, ok := e.ErrorKind.(*kind.Reference); ok {
		referred = true
	}
	if len(e.Causes) == 0 || isOne(e) {
		*found = append(*found, unit{at: e.InstanceLocation, err: e, referred: referred})
		return
	}
	for _, cause := range e.Causes {
		collect(cause, referred, found)
	}
}

// isOne reports whether an error is one unit with its causes.
func isOne(e *jsonschema.ValidationError) bool {
	_, names := e.ErrorKind.(*kind.PropertyNames)
	return names || hasAlternatives(e)
}

// firstOf describes the first keyword of an error.
func firstOf(e *jsonschema.ValidationError) string {
	var found []unit
	collect(e, false, &found)
	return found[0].message()
}

func hasAlternatives(e *jsonschema.ValidationError) bool {
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return true
	}
	return false
}

// maxAlternatives is how many branches of an anyOf or oneOf are described.
const maxAlternatives = 10

func describeAlternatives(e *jsonschema.ValidationError) string {
	var reasons []string
	for _, cause := range e.Causes[:min(len(e.Causes), maxAlternatives)] {
		if reason := firstOf(cause); !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	if more := len(e.Causes) - maxAlternatives; more > 0 {
		reasons = append(reasons, fmt.Sprintf("%d more", more))
	}
	return "none of the alternatives fits: " + strings.Join(reasons, "; or ")
}

// describe says in the words of this language what the library says in those of JSON Schema, where its own do not name the remedy.
func describe(e *jsonschema.ValidationError) string {
	if len(e.Causes) > 0 && hasAlternatives(e) {
		return describeAlternatives(e)
	}
	switch k := e.ErrorKind.(type) {
	case *kind.PropertyNames:
		text := fmt.Sprintf("the name %q is not allowed", value.Cut(k.Property, maxText/4))
		if len(e.Causes) > 0 {
			text += ": " + firstOf(e.Causes[0])
		}
		return text
	case *kind.Const:
		return "it must be " + value.Excerpt(k.Want, maxText/2)
	case *kind.Enum:
		return "it must be one of " + value.Excerpt(k.Want, maxText/2)
	case *kind.AdditionalProperties:
		names := slices.Sorted(slices.Values(k.Properties))
		return fmt.Sprintf("%s is not declared: remove it, or declare it in the schema", quoted(names))
	case *kind.Required:
		return fmt.Sprintf("%s is required and missing", quoted(slices.Sorted(slices.Values(k.Missing))))
	case *kind.Format:
		switch {
		case k.Err == nil:
		case k.Want == "regex":
			return notRE2(k.Got, k.Err)
		case k.Want == "duration" || k.Want == "date-time":
			return k.Err.Error()
		}
	case *kind.Type:
		want := make([]string, len(k.Want))
		for i, name := range k.Want {
			want[i] = withArticle(name)
		}
		return fmt.Sprintf("it is %s, and must be %s", withArticle(k.Got), strings.Join(want, " or "))
	case *kind.Pattern:
		return fmt.Sprintf("%q does not match the pattern %s: write a text that does", k.Got, k.Want)
	case *kind.Not:
		return "it is what the schema excludes: write another value"
	case *kind.FalseSchema:
		tokens := strings.Split(fragment(e.SchemaURL), "/")
		if n := len(tokens); n > 4 && tokens[n-4] == "dependentSchemas" && tokens[n-2] == "properties" {
			return fmt.Sprintf("%q and %q exclude one another: remove one of the two", tokens[n-3], tokens[n-1])
		}
		return "nothing is allowed here: remove it"
	}
	return e.ErrorKind.LocalizedString(english)
}

func notRE2(pattern any, err error) string {
	return fmt.Sprintf("the pattern %q does not compile: %v; %s", pattern, err, re2)
}

func quoted(names []string) string {
	parts := make([]string, 0, 6)
	for i, name := range names {
		if i == 5 {
			parts = append(parts, fmt.Sprintf("%d more", len(names)-i))
			break
		}
		parts = append(parts, strconv.Quote(name))
	}
	return strings.Join(parts, ", ")
}

func pointer(tokens []string) string {
	var b strings.Builder
	for _, token := range tokens {
		b.WriteByte('/')
		b.WriteString(value.Escape(token))
	}
	return b.String()
}

// lookup returns the part of a value to which the tokens lead.
func lookup(v any, tokens []string) any {
	for _, token := range tokens {
		switch container := v.(type) {
		case map[string]any:
			v = container[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(container) {
				return nil
			}
			v = container[i]
		default:
			return nil
		}
	}
	return v
}

// tokensOf returns the tokens of a JSON pointer.
func tokensOf(pointer string) []string {
	if pointer == "" {
		return nil
	}
	tokens := strings.Split(pointer[1:], "/")
	for i, token := range tokens {
		tokens[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	}
	return tokens
}
