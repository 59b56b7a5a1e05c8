package mwl

import (
	"maps"
	"reflect"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// chainLinks is how long a chain of previous failures may be.
const chainLinks = 32

// failure is a failure inside the engine: immutable, and with the envelope as the
// value that expressions read.
type failure struct {
	typ, code string
	retryable *bool
	previous  *failure
	// severed: previous is an explicit null, and nothing is to be linked there.
	severed bool
	// links is the length of the chain below.
	links  int
	object map[string]any
}

// newFailure makes a failure; an empty message, nil details and a nil previous are
// absent members.
func newFailure(typ, code, message string, details map[string]any, previous *failure) *failure {
	object := make(map[string]any, 5)
	object["type"], object["code"] = typ, code
	if message != "" {
		object["message"] = message
	}
	if details != nil {
		object["details"] = details
	}
	return (&failure{typ: typ, code: code, object: object}).linked(previous)
}

func newError(code, message string) *failure {
	return newFailure(TypeError, code, message, nil, nil)
}

// linked returns the failure with another previous; nil leaves it as it is. A
// chain that gets too long ends in a marker.
func (f *failure) linked(previous *failure) *failure {
	if previous == nil {
		return f
	}
	previous = previous.truncated(chainLinks - 1)
	g := *f
	g.previous, g.severed, g.links = previous, false, previous.links+1
	g.object = make(map[string]any, len(f.object)+1)
	maps.Copy(g.object, f.object)
	g.object["previous"] = previous.object
	return &g
}

func (f *failure) truncated(links int) *failure {
	switch {
	case f.links <= links:
		return f
	case links == 0:
		return newError(CodeFailureChainTruncated, "the failures before this one were dropped")
	default:
		return f.linked(f.previous.truncated(links - 1))
	}
}

// superseding links the failure that f takes the place of. If f brings a chain of
// its own, that is continued where it ends; if the chain was cut on purpose, or
// has the failure already, it stays.
func (f *failure) superseding(old *failure) *failure {
	if old == nil {
		return f
	}
	for at := f; ; at = at.previous {
		if at.severed || at == old || same(at.object, old.object) {
			return f
		}
		if at.previous == nil {
			if at.code == CodeFailureChainTruncated && f.links >= chainLinks {
				return f
			}
			return f.continued(old)
		}
	}
}

// same reports whether two objects are one, as when an expression hands on a
// failure that it read.
func same(a, b map[string]any) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}

func (f *failure) continued(old *failure) *failure {
	if f.previous == nil {
		return f.linked(old)
	}
	return f.linked(f.previous.continued(old))
}

// readFailure takes an envelope from a value, as it is. Members of wrong types are
// left for people to read, and match nothing.
func readFailure(object map[string]any) *failure { return readLinks(object, chainLinks) }

func readLinks(object map[string]any, links int) *failure {
	f := &failure{object: object}
	f.typ, _ = object["type"].(string)
	f.code, _ = object["code"].(string)
	if retryable, ok := object["retryable"].(bool); ok {
		f.retryable = &retryable
	}
	previous, written := object["previous"]
	if !written {
		return f
	}
	below, ok := previous.(map[string]any)
	switch {
	case !ok:
		f.severed = true
		return f
	case links == 0:
		return newError(CodeFailureChainTruncated, "the failures before this one were dropped")
	default:
		p := readLinks(below, links-1)
		if !same(p.object, below) {
			return f.linked(p)
		}
		f.previous, f.links = p, p.links+1
		return f
	}
}

// export is the failure for Go: the caller's own.
func (f *failure) export() *Failure {
	g := &Failure{Type: f.typ, Code: f.code}
	if message, ok := f.object["message"].(string); ok {
		g.Message, g.emptyMessage = message, message == ""
	}
	if details, ok := f.object["details"]; ok {
		g.Details, g.nullDetails = value.Copy(details), details == nil
	}
	if f.retryable != nil {
		retryable := *f.retryable
		g.Retryable = &retryable
	}
	if f.previous != nil {
		g.Previous = f.previous.export()
	}
	return g
}

// importFailure takes a failure from Go code. Where its chain reaches the failure
// that was given to that code, it goes on with that.
func importFailure(f *Failure, given *failure, exported *Failure) (*failure, error) {
	return importLinks(f, given, exported, chainLinks)
}

func importLinks(f *Failure, given *failure, exported *Failure, links int) (*failure, error) {
	if f == exported && given != nil {
		return given, nil
	}
	object := make(map[string]any, 5)
	object["type"], object["code"] = f.kind(), f.Code
	if f.Message != "" || f.emptyMessage {
		object["message"] = f.Message
	}
	if f.Details != nil || f.nullDetails {
		details, err := value.Of(f.Details)
		if err != nil {
			return nil, err
		}
		object["details"] = details
	}
	g := &failure{typ: f.kind(), code: f.Code, object: object}
	if f.Retryable != nil {
		retryable := *f.Retryable
		g.retryable, object["retryable"] = &retryable, retryable
	}
	switch {
	case f.Previous == nil:
		return g, nil
	case links == 0:
		return newError(CodeFailureChainTruncated, "the failures before this one were dropped"), nil
	}
	previous, err := importLinks(f.Previous, given, exported, links-1)
	if err != nil {
		return nil, err
	}
	return g.linked(previous), nil
}

// outcome is what a scope came to: a value, a failure, or, while unwinding is set,
// a failure that is not a Result to be routed but a teardown on its way out.
type outcome struct {
	value     any
	failure   *failure
	unwinding *interruption
}

func succeeded(v any) outcome     { return outcome{value: v} }
func failed(f *failure) outcome   { return outcome{failure: f} }
func stopped(f *failure) *outcome { return &outcome{failure: f} }

// object is the Result as expressions read it.
func (o outcome) object() map[string]any {
	if o.failure != nil {
		return o.failure.object
	}
	return map[string]any{"type": TypeSuccess, "value": o.value}
}

// superseding is the outcome with its failure linked to what it supersedes.
func (o outcome) superseding(old *failure) outcome {
	o.failure = o.failure.superseding(old)
	return o
}

// invalid is the failure of a value that is not what the field asks for.
func invalid(field definition.Field, want string, got any) *failure {
	return newFailure(TypeError, CodeParameterValidationFailed,
		field.Pointer+" must be "+want+", not "+describe(got),
		map[string]any{"schemaPath": "/type", "field": field.Pointer, "expected": want, "value": got}, nil)
}

// describe names a value in a message: its kind, and itself when it is short.
func describe(v any) string {
	kind := value.Kind(v)
	if kind == "array" || kind == "object" || kind == "null" {
		return kind
	}
	if text, ok := v.(string); ok && len(text) > 80 {
		return "a " + kind
	}
	text := value.JSON(v)
	if len(text) > 80 {
		return "a " + kind
	}
	return text
}
