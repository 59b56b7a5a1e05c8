package loader

import (
	"fmt"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

const atRunTime = "so that it fails with " + definition.CodeParameterValidationFailed

// lintCall reports literal arguments that the target does not take.
func (l *loader) lintCall(c *callSite) {
	var parameters *schema.Schema
	if c.target != nil {
		parameters = c.target.flow.Parameters
	} else {
		parameters = c.call.Provider.Parameters
	}
	l.lintWith(c.node, c.node.Member("with"), parameters, map[string]any{})
}

// lintPhaseWith is lintCall for a phase of a middleware entry.
func (l *loader) lintPhaseWith(e *definition.Entry, phase definition.Phase, b *definition.Block, entry *strictjson.Node) {
	structural := map[string]any{}
	for name, s := range b.Structural {
		structural[name] = s.Source
	}
	at := entry
	if block := entry.Member(phase.String()); block != nil {
		at = block
	}
	l.lintWith(at, at.At("/with"), e.Contract.Phases[phase].Parameters, structural)
}

// lintWith reports arguments that the parameters do not allow, whatever expressions in
// them compute. The node of with is nil if it is not written.
func (l *loader) lintWith(at, with *strictjson.Node, parameters *schema.Schema, arguments map[string]any) {
	var open expressions
	if with != nil {
		if with.Kind != strictjson.Object {
			return
		}
		at = with
		for _, m := range with.Members {
			if _, structural := arguments[m.Name]; !structural {
				arguments[m.Name] = open.value(m.Value, strictjson.AppendToken("", m.Name))
			}
		}
	}
	if !l.effort.spend(parameters.Cost(arguments, int(l.effort))) {
		return
	}
	violation := parameters.Validate(arguments)
	if violation == nil {
		return
	}
	l.effort.spend(violation.Searched())
	for _, p := range violation.Places() {
		if open.mayDecide(p) {
			continue
		}
		place, message := at, p.Message
		if with != nil && with.At(p.Instance) != nil {
			place = with.At(p.Instance)
		}
		if keyword, ok := strings.CutSuffix(p.Schema, "/additionalProperties"); ok {
			if remedy := l.meantArgument(place, parameters.Properties(keyword)); remedy != "" {
				message = remedy
			}
		}
		l.argument(place, message, "an argument is not valid, %s", atRunTime)
	}
}

// meantArgument says which arguments were meant by those of the object that are
// not among the declared ones; "" if that is not clear for any of them.
func (l *loader) meantArgument(n *strictjson.Node, declared []string) string {
	free := slices.DeleteFunc(slices.Clone(declared), func(name string) bool { return n.Member(name) != nil })
	var remedies []string
	meant := false
	for _, m := range n.Members {
		if _, found := slices.BinarySearch(declared, m.Name); found {
			continue
		}
		remedy := "remove it"
		if closest, ok := l.effort.closest(m.Name, free); ok {
			remedy, meant = fmt.Sprintf("did you mean %q?", closest), true
		}
		remedies = append(remedies, fmt.Sprintf("%q is not declared: %s", clip(m.Name, 60), remedy))
	}
	if !meant {
		return ""
	}
	return strings.Join(remedies, "; ")
}

// lintDuration reports a constant that is no duration.
func (l *loader) lintDuration(f definition.Field, n *strictjson.Node) {
	l.lintTime(f, n, "for is no duration", "write an ISO 8601 duration such as PT30S", func(text string) error {
		_, err := temporal.ParseDuration(text)
		return err
	})
}

func (l *loader) lintInstant(f definition.Field, n *strictjson.Node) {
	l.lintTime(f, n, "until is no timestamp", "write an RFC 3339 timestamp such as 2024-01-15T09:30:00Z", func(text string) error {
		_, err := temporal.ParseInstant(text)
		return err
	})
}

func (l *loader) lintTime(f definition.Field, n *strictjson.Node, what, remedy string, parse func(string) error) {
	v, ok := literalOf(f)
	if !ok {
		return
	}
	if text, ok := v.(string); ok {
		err := parse(text)
		if err == nil {
			return
		}
		remedy = err.Error()
	}
	report := l.argument
	if f.Template.Whole() {
		report = l.warn // an expression is no literal argument
	}
	report(n, remedy, "%s, %s", what, atRunTime)
}

func literalText(f definition.Field) (string, bool) {
	if !f.Written() {
		return "", false
	}
	literal, ok := f.Template.Literal()
	if !ok {
		return "", false
	}
	text, ok := literal.(string)
	return text, ok
}

// lintEnvelope warns of failures that misrepresent where they come from.
func (l *loader) lintEnvelope(e *definition.Envelope, n *strictjson.Node) {
	if code, ok := literalText(e.Code); ok {
		at := n.Member("code")
		switch namespace, _, _ := strings.Cut(code, "."); {
		case code == "":
			l.warn(at, `write a dotted code such as "Orders.Rejected"`, "the code is empty")
		case namespace == "System":
			l.warn(at, "take a namespace of your own", "the namespace System is the engine's, but the code %q is minted by the definition", code)
		case namespace == "Provider":
			l.warn(at, "take a namespace of your own", "the namespace Provider is that of providers, but the code %q is minted by the definition", code)
		}
	}
	if typ, ok := literalText(e.Type); ok {
		l.lintType(typ, n.Member("type"))
	}
	if previous := n.Member("previous"); previous != nil && previous.Kind == strictjson.Object {
		for _, name := range []string{"type", "code"} {
			if member := previous.Member(name); member == nil || member.Kind != strictjson.String || name == "type" && member.Text == "success" {
				l.warn(previous, "write the type and the code of a failure, or null to drop what went before", "previous is no failure, %s", atRunTime)
				break
			}
		}
	}
}

var resultTypes = []string{"error", "cancellation", "timeout", "skipped"}

// lintType warns of types that are likely misspelled.
func (l *loader) lintType(typ string, n *strictjson.Node) {
	if slices.Contains(resultTypes, typ) {
		return
	}
	if typ == "" {
		l.warn(n, `write a type such as "error"`, "the type is empty")
		return
	}
	capital := typ[0] >= 'A' && typ[0] <= 'Z'
	similar, ok := l.effort.closest(typ, resultTypes)
	switch {
	case ok && (!capital || strings.EqualFold(similar, typ)): // Shipped is not a misspelt skipped
		l.warn(n, "did you mean \""+similar+"\"?", "the language has no type %q", typ)
	case !capital:
		l.warn(n, "begin types of your own with a capital letter", "the language has no type %q, and lower case is kept for those that it has", typ)
	}
}
