package loader

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// callSite is a call object and what is needed to judge it when all is read.
type callSite struct {
	call *definition.Call
	node *strictjson.Node
	// flow is the Flow that it stands in.
	flow *flowSite
	// name is the reference to a named Flow; nil for other targets.
	name *strictjson.Node
	// target is the Flow that it targets; nil for a provider, and for a name that
	// does not resolve.
	target *flowSite
}

// call reads a call object. The roots are those that its place has without the
// call itself.
func (l *loader) call(n *strictjson.Node, f *flowSite, roots expr.Root) *definition.Call {
	c := &callSite{call: &definition.Call{Pointer: l.pointer(n)}, node: n, flow: f}
	roots |= expr.Call
	window := expr.Provider
	if n.Member("flow") != nil {
		window = expr.Flow
	}
	ok := l.object(n, shape{
		what: "a call",
		members: []member{
			{"provider", func(n *strictjson.Node) { c.call.Provider = l.callProvider(n) }},
			{"flow", func(n *strictjson.Node) { l.flowTarget(n, c) }},
			{"input", func(n *strictjson.Node) { c.call.Input = l.field(n, roots) }},
			{"with", func(n *strictjson.Node) {
				if l.isWith(n) {
					c.call.With = l.field(n, roots)
				}
			}},
			{"onSuccess", func(n *strictjson.Node) {
				l.object(n, shape{what: "the onSuccess of a call", members: []member{
					{"value", func(n *strictjson.Node) { c.call.OnSuccessValue = l.field(n, roots|window) }},
					{"assign", func(n *strictjson.Node) { c.call.OnSuccessAssign = l.assign(n, roots|window) }},
				}, strangers: armStranger})
			}},
			{"onFailure", func(n *strictjson.Node) {
				l.object(n, shape{what: "the onFailure of a call", members: []member{
					{"assign", func(n *strictjson.Node) { c.call.OnFailureAssign = l.assign(n, roots|window) }},
				}, strangers: armStranger})
			}},
			{"comment", l.textTo(&c.call.Comment, "a comment")},
		},
		strangers: func(name string) string {
			switch name {
			case "parameters", "arguments", "args":
				return `the arguments of a call are "with"`
			case "output", "catch", "next", "middleware":
				return "put it beside the call, into the Step"
			default:
				return ""
			}
		},
	})
	if ok {
		l.exactlyOne(n, "a call", "provider", "flow")
		l.calls = append(l.calls, c)
		f.calls = append(f.calls, c)
	}
	return c.call
}

func armStranger(name string) string {
	switch name {
	case "when", "with":
		return "delete it; only the phases of middleware have it"
	case "type", "code", "message", "details", "retryable", "previous":
		return "change failures in the onFailure of a middleware entry, or by a Raise"
	default:
		return ""
	}
}

// isWith reports whether a with has the shape of one.
func (l *loader) isWith(n *strictjson.Node) bool {
	return n.Kind == strictjson.Object || l.orExpression(n, "with is an object or an expression", "write an object or an expression")
}

// flowTarget reads what the flow of a call holds.
func (l *loader) flowTarget(n *strictjson.Node, c *callSite) {
	switch n.Kind {
	case strictjson.Object:
		c.target = l.flow(n, c.flow, "")
		c.call.Flow = c.target.flow
	case strictjson.String:
		if l.structural(n, "flow is the name of a Flow, or a Flow") {
			c.name = n
		}
	default:
		l.misshapen(n, "write the name of a Flow, or a Flow", "flow is a string or an object, not %s", kind(n))
	}
}

func (l *loader) callProvider(n *strictjson.Node) *definition.CallContract {
	if !l.providerURI(n, "provider.call") {
		return nil
	}
	contract, ok := l.options.Catalog.CallProvider(n.Text)
	if !ok {
		l.unknownProvider(n)
	}
	return contract
}

func (l *loader) middlewareProvider(n *strictjson.Node) *definition.MiddlewareContract {
	if !l.providerURI(n, "provider.middleware") {
		return nil
	}
	contract, ok := l.options.Catalog.Middleware(n.Text)
	if !ok {
		l.unknownProvider(n)
	}
	return contract
}

var providerPattern = regexp.MustCompile(`^mwl:([A-Za-z0-9._-]+)/[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+$`)

// providerURI reads a provider URI of the type, and reports whether it can be
// looked up.
func (l *loader) providerURI(n *strictjson.Node, typ string) bool {
	remedy := fmt.Sprintf("write mwl:%s/<namespace>/<name>, of letters, digits, -, _ and .", typ)
	text, ok := l.text(n, "provider")
	if !ok {
		return false
	}
	parts := providerPattern.FindStringSubmatch(text)
	switch {
	case parts == nil:
		what := "is no provider URI"
		if _, isExpression := expr.Body(text); isExpression {
			what = "is an expression, and a provider must be written out"
		}
		l.misshapen(n, remedy, "%q %s", text, what)
		return false
	case parts[1] == typ:
	case parts[1] == "provider.call":
		l.misshapen(n, remedy, "%q can be called, but is no middleware", text)
		return false
	case parts[1] == "provider.middleware":
		l.misshapen(n, `put it into "middleware", or `+remedy, "%q is a middleware, which cannot be called", text)
		return false
	default:
		l.misshapen(n, remedy, "%q is of the type %s, which there is not", text, parts[1])
		return false
	}
	if slices.ContainsFunc(strings.Split(text, "/"), func(segment string) bool { return segment == "." || segment == ".." }) {
		l.refuse(n, "name the provider without it", "%q has the segment . or ..", text)
		return false
	}
	return !l.shapeOnly
}

func (l *loader) unknownProvider(n *strictjson.Node) {
	remedy := ""
	typ, name, _ := strings.Cut(n.Text, "/")
	namespace, _, _ := strings.Cut(name, "/")
	if listing, ok := l.options.Catalog.(interface{ URIs() []string }); ok {
		var names []string
		for _, uri := range listing.URIs() {
			if known, isOfType := strings.CutPrefix(uri, typ+"/"); isOfType {
				names = append(names, known)
			}
		}
		if closest, ok := l.effort.closest(name, names); ok {
			remedy = fmt.Sprintf("did you mean %q?", typ+"/"+closest)
		}
	}
	switch {
	case remedy != "":
	case namespace == "example":
		remedy = "the namespace example is for documentation; register a provider in a namespace of your own, and name that"
	case namespace == "mwl":
		remedy = "the namespace mwl is the language's own; register providers in another one"
	default:
		remedy = "register it in the catalog that the definition is loaded with"
	}
	l.refuse(n, remedy, "there is no provider %q", n.Text)
}
