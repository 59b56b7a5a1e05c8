package loader

import (
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

const (
	retryURI       = "mwl:provider.middleware/mwl/retry/v1"
	retryExhausted = "Provider.Middleware.Retry.Exhausted"
)

// lintExhausted warns of codes that never arrive at a catch or at an outer Retry,
// because a Retry inside turns each failure that has them into its own. It judges
// only what the definition writes out.
func (l *loader) lintExhausted() {
	for _, s := range l.stacks {
		for inner := range s.entries {
			if retried := retriedCodes(s.entries[inner], s.nodes[inner]); retried != nil {
				l.lintAround(s, inner, retried)
			}
		}
	}
}

// lintAround warns at the entries around a Retry, and at the catch of its Step.
func (l *loader) lintAround(s *stackSite, inner int, retried []string) {
	var emitted []string // by the entries from the outer one to the inner one
	for outer := inner; outer >= 0; outer-- {
		e := s.entries[outer]
		if outer < inner && e.Contract.URI == retryURI {
			l.lintUnseen(writtenCodes(s.nodes[outer]), s.entries[inner], retried, emitted)
		}
		codes, known := entryCodes(e)
		if !known || !l.effort.spend(len(codes)+1) {
			return
		}
		emitted = append(emitted, codes...)
	}
	if s.step == nil || len(s.step.Catch) == 0 {
		return
	}
	var patterns []*strictjson.Node
	for _, clause := range s.flow.steps[s.step.Name].Member("catch").Items {
		if codes := clause.At("/match/codes"); codes != nil {
			patterns = append(patterns, codes.Items...)
		}
	}
	l.lintUnseen(patterns, s.entries[inner], retried, emitted)
}

// lintUnseen warns of the patterns that match only codes that the Retry retries, and
// that none of the entries around it can emit.
func (l *loader) lintUnseen(patterns []*strictjson.Node, retry *definition.Entry, retried, emitted []string) {
	if !l.effort.spend(len(patterns) * (len(retried) + len(emitted) + len(l.warnings.found))) {
		return
	}
	for _, n := range patterns {
		if n.Text == "*" || strings.HasPrefix(n.Text, "System.") || !definition.MatchesCode(retried, n.Text) || meets(n.Text, emitted) {
			continue
		}
		if slices.ContainsFunc(l.warnings.found, func(f finding) bool { return f.node == n }) {
			continue // the code is misspelt, which matters more
		}
		l.warn(n, `match "`+retryExhausted+`", whose previous is the last failure, or do not retry the code`,
			"the code %q never arrives here, because the Retry at %s gives it up as %s", n.Text, retry.Pointer, retryExhausted)
	}
}

// retriedCodes are the codes of which every failure is retried, if the entry is a
// Retry that is always armed.
func retriedCodes(e *definition.Entry, n *strictjson.Node) []string {
	if e.Contract.URI != retryURI {
		return nil
	}
	for _, phase := range []definition.Phase{definition.OnEntry, definition.OnFailure} {
		if when := e.Blocks[phase].When; when.Written() {
			if on, literal := literalOf(when); !literal || on != true {
				return nil
			}
		}
	}
	var codes []string
	for _, n := range writtenCodes(n) {
		codes = append(codes, n.Text)
	}
	return codes
}

// writtenCodes are the patterns of a Retry's policies that match by nothing else.
func writtenCodes(retry *strictjson.Node) []*strictjson.Node {
	policies := retry.At("/onEntry/with/policies")
	if policies == nil {
		return nil
	}
	var patterns []*strictjson.Node
	for _, policy := range policies.Items {
		match := policy.Member("match")
		if match == nil || len(match.Members) != 1 || hasExpression(match) {
			continue
		}
		if codes := match.Member("codes"); codes != nil && !slices.ContainsFunc(codes.Items, func(n *strictjson.Node) bool { return n.Kind != strictjson.String }) {
			patterns = append(patterns, codes.Items...)
		}
	}
	return patterns
}
