package loader

import (
	"regexp"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// lintCatch warns of clauses that select nothing.
func (l *loader) lintCatch(f *flowSite, s *definition.Step, catch *strictjson.Node) {
	declared, known := declaredCodes(s)
	for i, c := range s.Catch {
		n := catch.Items[i]
		for _, earlier := range s.Catch[:i] {
			if !l.effort.spend(4 * size(earlier.Matcher) * size(c.Matcher)) {
				break
			}
			if covers(earlier.Matcher, c.Matcher) {
				l.warn(n, "delete it, or put it further up", "the clause is never selected, because an earlier one selects all that it would")
				break
			}
		}
		for _, code := range items(n.At("/match/codes")) {
			l.lintPattern(code, "in this Step", declared, known)
		}
		for _, typ := range items(n.At("/match/types")) {
			l.lintType(typ.Text, typ)
		}
	}
}

func size(m *definition.Matcher) int { return 1 + len(m.Codes) + len(m.Types) }

// covers reports whether a selects every failure that b selects.
func covers(a, b *definition.Matcher) bool {
	if a.Retryable != nil && (b.Retryable == nil || *a.Retryable != *b.Retryable) {
		return false
	}
	if a.Types != nil && (b.Types == nil || slices.ContainsFunc(b.Types, func(t string) bool { return !slices.Contains(a.Types, t) })) {
		return false
	}
	if a.Codes == nil {
		return true
	}
	if b.Codes == nil {
		return slices.Contains(a.Codes, "*")
	}
	return !slices.ContainsFunc(b.Codes, func(pattern string) bool {
		// What a prefix selects begins with all of it but the star.
		return !definition.MatchesCode(a.Codes, pattern)
	})
}

var codePattern = regexp.MustCompile(`^(\*|[^.*]+(\.[^.*]+)*(\.\*)?)$`)

var systemCodes = []string{
	definition.CodeCancelled, definition.CodeGatherDispatchCancelled, definition.CodeGatherDispatchSkipped,
	definition.CodeGatherCompletionUnmet, definition.CodeExpressionEvaluationError, definition.CodeParameterValidationFailed,
	definition.CodeUnrepresentableValue, definition.CodeEmptyRaise, definition.CodeFailureChainTruncated,
}

// lintPattern warns of a pattern that matches no code. The declared ones are all
// that can arrive under Provider, from the given place, if they are known.
func (l *loader) lintPattern(n *strictjson.Node, from string, declared []string, known bool) {
	pattern := n.Text
	switch {
	case !codePattern.MatchString(pattern):
		l.warn(n, `write a code, "Prefix.*" or "*"`, "the pattern %q is neither a code nor a prefix: it matches only itself", pattern)
	case strings.HasPrefix(pattern, "System."):
		if !meets(pattern, systemCodes) {
			l.warn(n, l.effort.meant(pattern, systemCodes), "the engine emits no code %q", pattern)
		}
	case strings.HasPrefix(pattern, "Provider.") && known && l.effort.spend(len(declared)+1):
		if !meets(pattern, declared) {
			remedy := "delete it"
			if len(declared) > 0 {
				remedy = l.effort.meant(pattern, declared)
			}
			l.warn(n, remedy, "nothing %s emits a code %q", from, pattern)
		}
	}
}

// meets reports whether some code can match the pattern and one of the others.
func meets(pattern string, others []string) bool {
	return slices.ContainsFunc(others, func(other string) bool {
		return definition.MatchesCode([]string{pattern}, other) || definition.MatchesCode([]string{other}, pattern)
	})
}

// declaredCodes are the codes under Provider that can arrive at the catch of a
// Step. They are known if nothing in the Step can emit others.
func declaredCodes(s *definition.Step) (codes []string, known bool) {
	if s.Action == definition.ActionGather {
		return nil, true // dispatches' failures do not arrive
	}
	codes, known = callCodes(s.Call)
	for _, e := range s.Middleware {
		emitted, ok := entryCodes(e)
		if !known || !ok {
			return nil, false
		}
		codes = append(codes, emitted...)
	}
	return codes, known
}

// callCodes are the codes under Provider that the target of a call can emit.
func callCodes(call *definition.Call) (codes []string, known bool) {
	if call.Provider == nil {
		return nil, false
	}
	// Every provider can end in the error of its prefix.
	codes = append(codes, "Provider.Call."+call.Provider.CodePrefix+".Error")
	codes = append(append(codes, call.Provider.Failures.Closed...), call.Provider.Failures.Open...)
	return codes, !slices.Contains(codes, "*")
}

// entryCodes are the codes, System apart, that a middleware entry emits itself. They
// are known if it can emit no others.
func entryCodes(e *definition.Entry) (codes []string, known bool) {
	codes = append(codes, "Provider.Middleware."+e.Contract.CodePrefix+".Error")
	codes = append(append(codes, e.Contract.Failures.Closed...), e.Contract.Failures.Open...)
	for _, b := range e.Blocks {
		if len(b.Structural) > 0 {
			return nil, false
		}
		if b.Envelope == nil || !b.Envelope.Code.Written() {
			continue
		}
		code, literal := literalText(b.Envelope.Code)
		if !literal {
			return nil, false
		}
		codes = append(codes, code)
	}
	return codes, !slices.Contains(codes, "*")
}
