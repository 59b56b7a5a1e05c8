package loader

import (
	"slices"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// lintRetries warns of policies that select nothing, as lintCatch does of clauses.
func (l *loader) lintRetries(s *stackSite) {
	var (
		declared []string // by what the entry wraps
		known    bool
	)
	if s.step != nil {
		declared, known = callCodes(s.step.Call)
	}
	for i, e := range slices.Backward(s.entries) {
		if e.Contract.URI == retryURI {
			l.lintPolicies(s.nodes[i], declared, known)
		}
		emitted, ok := entryCodes(e)
		declared, known = append(declared, emitted...), known && ok
	}
}

// lintPolicies judges only what the definition writes out.
func (l *loader) lintPolicies(retry *strictjson.Node, declared []string, known bool) {
	var earlier []*definition.Matcher
	for _, n := range items(retry.At("/onEntry/with/policies")) {
		m, ok := writtenMatcher(n.Member("match"))
		if !ok {
			continue
		}
		for _, e := range earlier {
			if !l.effort.spend(4 * size(e) * size(m)) {
				break
			}
			if covers(e, m) {
				l.warn(n, "delete it, or put it further up", "the policy is never selected, because an earlier one selects all that it would")
				break
			}
		}
		earlier = append(earlier, m)
		for _, code := range items(n.At("/match/codes")) {
			l.lintPattern(code, "that this Retry wraps", declared, known)
		}
		for _, typ := range items(n.At("/match/types")) {
			l.lintType(typ.Text, typ)
		}
	}
}

// writtenMatcher is the matcher that a policy writes out; false if it computes a part
// of it, or if it is not valid.
func writtenMatcher(n *strictjson.Node) (*definition.Matcher, bool) {
	if n == nil || n.Kind != strictjson.Object || len(n.Members) == 0 || hasExpression(n) {
		return nil, false
	}
	m := &definition.Matcher{}
	texts := func(n *strictjson.Node, to *[]string) bool {
		for _, item := range n.Items {
			*to = append(*to, item.Text)
		}
		return len(n.Items) > 0 && !slices.ContainsFunc(n.Items, func(n *strictjson.Node) bool { return n.Kind != strictjson.String })
	}
	for _, member := range n.Members {
		ok := false
		switch member.Name {
		case "codes":
			ok = texts(member.Value, &m.Codes)
		case "types":
			ok = texts(member.Value, &m.Types)
		case "retryable":
			m.Retryable, ok = &member.Value.Bool, member.Value.Kind == strictjson.Bool
		}
		if !ok {
			return nil, false
		}
	}
	return m, true
}

// items are the elements of an array that may not be written.
func items(n *strictjson.Node) []*strictjson.Node {
	if n == nil {
		return nil
	}
	return n.Items
}
