package loader

import (
	"errors"
	"regexp"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// ProviderSchemaURI is the only value that the $schema of a provider document may
// have.
const ProviderSchemaURI = "https://mwl.dev/v0.1/provider/schema.json"

// Provider is the catalog entry that a provider document describes.
type Provider struct {
	URI, CodePrefix, Description string
	// Middleware tells the two kinds of providers apart.
	Middleware bool
	// Parameters is a call provider's; Metadata may be either's.
	Parameters, Metadata ProviderSchema
	Failures             definition.FailureCatalog
	// Levels and Phases are a middleware's. A phase without an action is nil.
	Levels definition.Level
	Phases [definition.PhaseCount]*ProviderPhase
}

// ProviderPhase is what a middleware declares for one phase.
type ProviderPhase struct {
	Kind                    definition.ActionKind
	Description, Acceptance string
	Parameters              ProviderSchema
	Structural              []string
}

// ProviderSchema is a JSON Schema of a provider document.
type ProviderSchema struct {
	// Source is the schema as it is written, nil when it is not.
	Source   []byte
	compiled *schema.Schema
}

// Compiled is [schema.Empty] when the schema is not written.
func (s ProviderSchema) Compiled() *schema.Schema {
	if s.compiled == nil {
		return schema.Empty
	}
	return s.compiled
}

// ProviderKind says which provider documents are wanted.
type ProviderKind uint8

// The kinds of providers.
const (
	AnyProvider ProviderKind = iota
	CallProvider
	MiddlewareProvider
)

// LoadProvider reads a provider document. The provider is nil if and only if
// there are problems; more is how many were left out because of MaxProblems. Of
// the options only MaxBytes, MaxDepth and MaxProblems matter.
func LoadProvider(source []byte, kind ProviderKind, o Options) (p *Provider, problems []definition.Problem, more int) {
	l := &loader{options: o, effort: utmost}
	document, broken := l.parse(source)
	if document == nil {
		return nil, broken, l.problems.more
	}
	p = l.provider(document)
	l.wanted(document, p, kind)
	if problems, more = l.problems.list(document, broken, o.MaxProblems); len(problems) > 0 {
		return nil, problems, more
	}
	return p, nil, 0
}

// wanted refuses providers of another kind.
func (l *loader) wanted(n *strictjson.Node, p *Provider, kind ProviderKind) {
	uri := n.Member("uri")
	switch {
	case kind == AnyProvider || p.URI == "":
	case kind == CallProvider && p.Middleware:
		l.refuse(uri, "read it as middleware", "%q is no call provider", p.URI)
	case kind == MiddlewareProvider && !p.Middleware:
		l.refuse(uri, "read it as a call provider", "%q is no middleware", p.URI)
	}
}

// ProviderShape checks only what the language's published schema for provider
// documents can say.
func ProviderShape(source []byte, o Options) (problems []definition.Problem, more int) {
	l := &loader{options: o, effort: utmost, shapeOnly: true}
	document, broken := l.parse(source)
	if document == nil {
		return broken, l.problems.more
	}
	l.provider(document)
	return l.problems.list(document, broken, o.MaxProblems)
}

var (
	codePrefixPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	closedCodePattern = regexp.MustCompile(`^Provider\.(Call|Middleware)\.[A-Za-z0-9]+(\.[A-Za-z0-9]+)+$`)
	openCodePattern   = regexp.MustCompile(`^(\*|Provider\.(Call|Middleware)\.[A-Za-z0-9]+(\.[A-Za-z0-9]+)*\.\*)$`)
)

func (l *loader) provider(n *strictjson.Node) *Provider {
	p := &Provider{}
	if uri := n.Member("uri"); uri != nil && uri.Kind == strictjson.String {
		p.Middleware = strings.HasPrefix(uri.Text, "mwl:provider.middleware/")
	}
	s := shape{
		what:     "a call provider",
		required: []string{"$schema", "uri", "codePrefix", "description", "failureCatalog"},
		members: []member{
			{"$schema", l.providerSchemaURI},
			{"uri", func(n *strictjson.Node) { l.ownURI(n, p) }},
			{"codePrefix", func(n *strictjson.Node) { p.CodePrefix = l.codePrefix(n) }},
			{"description", l.textTo(&p.Description, "a description")},
			{"metadata", func(n *strictjson.Node) { p.Metadata = l.metadata(n, p.Middleware) }},
			{"failureCatalog", func(n *strictjson.Node) { l.failureCatalog(n, p) }},
		},
	}
	if p.Middleware {
		s.what = "a middleware"
		s.required = append(s.required, "attachment", "phases")
		s.members = append(s.members,
			member{"attachment", func(n *strictjson.Node) { p.Levels = l.attachment(n) }},
			member{"phases", func(n *strictjson.Node) { l.phases(n, p) }})
		s.strangers = otherwise("parameters", "put it into a phase")
	} else {
		s.required = append(s.required, "parameters")
		s.members = append(s.members, member{"parameters", func(n *strictjson.Node) { p.Parameters = l.objectSchema(n, "parameters") }})
		s.strangers = func(name string) string {
			if name == "attachment" || name == "phases" {
				return "delete it; only middleware has it"
			}
			return ""
		}
	}
	if l.object(n, s) {
		l.checkCodes(n, p)
	}
	return p
}

func (l *loader) providerSchemaURI(n *strictjson.Node) {
	if n.Kind != strictjson.String || n.Text != ProviderSchemaURI {
		l.misshapen(n, `write "`+ProviderSchemaURI+`"`, "$schema does not name the language's provider documents")
	}
}

func (l *loader) ownURI(n *strictjson.Node, p *Provider) {
	typ := "provider.call"
	if p.Middleware {
		typ = "provider.middleware"
	}
	if l.providerURI(n, typ) {
		p.URI = n.Text
	}
}

func (l *loader) codePrefix(n *strictjson.Node) string {
	prefix, ok := l.text(n, "codePrefix")
	if ok && !codePrefixPattern.MatchString(prefix) {
		l.misshapen(n, "write a capital letter, and then letters and digits", "%q is no codePrefix", prefix)
	}
	return prefix
}

// objectSchema reads a JSON Schema for objects.
func (l *loader) objectSchema(n *strictjson.Node, what string) ProviderSchema {
	return ProviderSchema{Source: n.Source(), compiled: l.compileSchema(n, what)}
}

// maxSchemaValues bounds a JSON Schema: compiling takes the square of its size.
const maxSchemaValues = 5000

// values returns how many values there may still be after those of the node, less
// than zero when it has too many.
func values(n *strictjson.Node, most int) int {
	most--
	for _, item := range n.Items {
		if most >= 0 {
			most = values(item, most)
		}
	}
	for _, m := range n.Members {
		if most >= 0 {
			most = values(m.Value, most)
		}
	}
	return most
}

// compileSchema returns nil if the node holds no schema for objects.
func (l *loader) compileSchema(n *strictjson.Node, what string) *schema.Schema {
	remedy := `write a JSON Schema with "type": "object"`
	if n.Kind != strictjson.Object {
		l.misshapen(n, remedy, "%s is a JSON Schema object, not %s", what, kind(n))
		return nil
	}
	switch typ := n.Member("type"); {
	case typ == nil:
		l.misshapen(n, remedy, `%s lacks "type": "object"`, what)
		return nil
	case typ.Kind != strictjson.String || typ.Text != "object":
		l.misshapen(typ, `write "object"`, `the type of %s is "object"; its properties are the members`, what)
		return nil
	}
	if l.shapeOnly {
		return nil
	}
	if values(n, maxSchemaValues) < 0 {
		l.refuse(n, "make it smaller", "%s has more than %d values", what, maxSchemaValues)
		return nil
	}
	compiled, err := schema.Compile(n.Value())
	if err == nil {
		return compiled
	}
	at, remedy := n, ""
	var problem *schema.Error
	if errors.As(err, &problem) {
		remedy = problem.Remedy
		if there := n.At(problem.Pointer); there != nil {
			at = there
		}
		err = errors.New(problem.Text)
	}
	l.refuse(at, remedy, "%s is no JSON Schema: %s", what, err)
	return nil
}

func (l *loader) metadata(n *strictjson.Node, middleware bool) ProviderSchema {
	read := l.objectSchema(n, "metadata")
	if middleware {
		for _, name := range []string{"enteredAt", "exitedAt"} {
			if taken := n.At("/properties/" + name); taken != nil {
				l.refuse(taken, "take another name", "every record has the member %s already", name)
			}
		}
	}
	return read
}

func (l *loader) failureCatalog(n *strictjson.Node, p *Provider) {
	codes := func(to *[]string, what string, pattern *regexp.Regexp, remedy string) func(*strictjson.Node) {
		return func(n *strictjson.Node) {
			l.array(n, what, 0, func(n *strictjson.Node) {
				code, ok := l.text(n, "a code")
				if !ok {
					return
				}
				if !pattern.MatchString(code) {
					l.misshapen(n, remedy, "%q cannot be among the codes that are %s", code, what)
				}
				*to = append(*to, code)
			})
		}
	}
	l.object(n, shape{
		what: "a failureCatalog", required: []string{"closed", "open"},
		members: []member{
			{"closed", codes(&p.Failures.Closed, "closed", closedCodePattern, "write Provider.<Kind>.<codePrefix>.<Code>")},
			{"open", codes(&p.Failures.Open, "open", openCodePattern, "write Provider.<Kind>.<codePrefix>.* or *")},
		},
	})
}

func (l *loader) attachment(n *strictjson.Node) (levels definition.Level) {
	l.array(n, "attachment", 1, func(n *strictjson.Node) {
		level, ok := map[string]definition.Level{"step": definition.StepLevel, "flow": definition.FlowLevel}[n.Text]
		switch {
		case !ok || n.Kind != strictjson.String:
			l.misshapen(n, `write "step" or "flow"`, "an element of attachment is neither step nor flow")
		case levels&level != 0:
			l.misshapen(n, "delete it", "%q is there twice", n.Text)
		}
		levels |= level
	})
	return levels
}

func (l *loader) phases(n *strictjson.Node, p *Provider) {
	s := shape{what: "phases"}
	for phase := range definition.PhaseCount {
		s.members = append(s.members, member{phase.String(), func(n *strictjson.Node) { p.Phases[phase] = l.phase(n) }})
	}
	if l.object(n, s) && len(n.Members) == 0 {
		l.misshapen(n, "add a phase", "phases is empty")
	}
}

var actionKinds = map[string]definition.ActionKind{
	"side-effect": definition.SideEffect, "control": definition.Control, "transform": definition.Transform,
}

func (l *loader) phase(n *strictjson.Node) *ProviderPhase {
	p := &ProviderPhase{}
	l.object(n, shape{
		what: "a phase", required: []string{"action"},
		members: []member{
			{"action", func(n *strictjson.Node) {
				l.object(n, shape{
					what: "an action", required: []string{"kind", "description"},
					members: []member{
						{"kind", func(n *strictjson.Node) {
							var ok bool
							if p.Kind, ok = actionKinds[n.Text]; !ok || n.Kind != strictjson.String {
								l.misshapen(n, `write "side-effect", "control" or "transform"`, "the kind of an action is none of the three")
							}
						}},
						{"description", l.textTo(&p.Description, "a description")},
						{"acceptance", l.textTo(&p.Acceptance, "acceptance")},
					},
				})
			}},
			{"parameters", func(n *strictjson.Node) { p.Parameters = l.objectSchema(n, "parameters") }},
			{"structural", func(n *strictjson.Node) {
				l.array(n, "structural", 0, func(n *strictjson.Node) {
					if name, ok := l.text(n, "a structural parameter"); ok {
						p.Structural = append(p.Structural, name)
					}
				})
			}},
		},
	})
	if parameters := n.Member("parameters"); parameters != nil {
		for _, name := range items(n.Member("structural")) {
			if name.Kind == strictjson.String && parameters.At(strictjson.AppendToken("/properties", name.Text)) == nil {
				l.refuse(name, "declare it in the parameters", "there is no parameter %q", name.Text)
			}
		}
	}
	return p
}

// checkCodes refuses codes that are not under the provider's own prefix.
func (l *loader) checkCodes(n *strictjson.Node, p *Provider) {
	prefix := "Provider.Call." + p.CodePrefix + "."
	if p.Middleware {
		prefix = "Provider.Middleware." + p.CodePrefix + "."
	}
	for _, list := range []string{"/failureCatalog/closed", "/failureCatalog/open"} {
		codes := n.At(list)
		if codes == nil {
			continue
		}
		for _, code := range codes.Items {
			if code.Kind == strictjson.String && code.Text != "*" && !strings.HasPrefix(code.Text, prefix) {
				l.refuse(code, "begin it with "+prefix, "%q is not a code of this provider", code.Text)
			}
		}
	}
}
