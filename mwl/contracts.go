package mwl

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/loader"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// contractFiles are the contracts of the language's own providers. The engine's
// contracts are made of them, so that there is one statement of each.
//
//go:embed contracts/*.json
var contractFiles embed.FS

// ownBehaviors are what the contracts do not say: what runs.
var ownBehaviors = []struct {
	file       string
	middleware definition.MiddlewareContract
	call       any
}{
	{file: "mock", call: mockProvider{}},
	{file: "retry", middleware: definition.MiddlewareContract{Implementation: retryMiddleware{}, Reruns: true}},
	{file: "timeout", middleware: definition.MiddlewareContract{Implementation: timeoutMiddleware{}}},
	{file: "loop", middleware: definition.MiddlewareContract{
		Implementation: loopMiddleware{}, Reruns: true, OwnsRuns: true, NeedsContinuation: true,
	}},
	{file: "finally", middleware: definition.MiddlewareContract{Implementation: finallyMiddleware{}}},
}

// structures are the kinds of the language's own structural parameters, which documents
// only name.
var structures = map[string]definition.StructureKind{
	"call": definition.CallStructure, "middleware": definition.MiddlewareStructure,
}

// ownProviders are those that the language defines.
var ownProviders = sync.OnceValue(func() *Catalog {
	c := emptyCatalog()
	for _, own := range ownBehaviors {
		if err := c.addOwn(own.file, own.middleware, own.call); err != nil {
			panic(err) // a mistake in the embedded files
		}
	}
	return c
})

func (c *Catalog) addOwn(file string, behavior definition.MiddlewareContract, call any) error {
	document, err := contractFiles.ReadFile("contracts/" + file + ".json")
	if err != nil {
		return err
	}
	p, problems, _ := loader.LoadProvider(document, loader.AnyProvider, loader.Options{})
	if len(problems) > 0 {
		return fmt.Errorf("%s: %s: %s", file, problems[0].Pointer, problems[0].Message)
	}
	c.documents[p.URI] = document
	metadata := p.Metadata.Compiled()
	if !p.Middleware {
		c.calls[p.URI] = &definition.CallContract{
			URI: p.URI, CodePrefix: p.CodePrefix, Parameters: p.Parameters.Compiled(), Metadata: metadata, Failures: p.Failures, Implementation: call,
		}
		return nil
	}
	behavior.URI, behavior.CodePrefix, behavior.Levels = p.URI, p.CodePrefix, p.Levels
	behavior.Metadata, behavior.Failures = metadata, p.Failures
	for phase, declared := range p.Phases {
		if declared == nil {
			declared = &loader.ProviderPhase{}
		}
		behavior.Phases[phase] = definition.PhaseContract{
			Kind: declared.Kind, Parameters: declared.Parameters.Compiled(), Structural: structural(declared, structures),
		}
	}
	c.middlewares[p.URI] = &behavior
	return nil
}

// structural returns the structural parameters of a phase, with their kinds.
func structural(declared *loader.ProviderPhase, kinds map[string]definition.StructureKind) map[string]definition.StructureKind {
	if len(declared.Structural) == 0 {
		return nil
	}
	parameters := make(map[string]definition.StructureKind, len(declared.Structural))
	for _, name := range declared.Structural {
		parameters[name] = cmp.Or(kinds[name], definition.OtherStructure)
	}
	return parameters
}

// Document returns the contract of the entry with the URI as a provider definition document, the form that
// [ParseCallProvider] and [ParseMiddleware] read. It returns false if the catalog has no such entry. The documents of
// the language's own entries describe each argument. The document of an entry in Go has the fields of the entry. The
// caller may change the result.
func (c *Catalog) Document(uri string) (json.RawMessage, bool) {
	document, ok := c.documents[uri]
	return slices.Clone(document), ok
}

// contractDocument is the JSON form of a contract.
type contractDocument struct {
	Schema      string                   `json:"$schema"`
	URI         string                   `json:"uri"`
	CodePrefix  string                   `json:"codePrefix"`
	Description string                   `json:"description"`
	Attachment  []string                 `json:"attachment,omitempty"`
	Parameters  json.RawMessage          `json:"parameters,omitempty"`
	Phases      map[string]phaseDocument `json:"phases,omitempty"`
	Metadata    json.RawMessage          `json:"metadata,omitempty"`
	Failures    failuresDocument         `json:"failureCatalog"`
}

type phaseDocument struct {
	Action     actionDocument  `json:"action"`
	Parameters json.RawMessage `json:"parameters,omitempty"`
	Structural []string        `json:"structural,omitempty"`
}

type actionDocument struct {
	Kind        string `json:"kind"`
	Description string `json:"description"`
}

type failuresDocument struct {
	Closed []string `json:"closed"`
	Open   []string `json:"open"`
}

func (p CallProvider) document() contractDocument {
	d := contractDocument{
		URI: p.URI, CodePrefix: p.CodePrefix, Description: p.Description, Parameters: p.Parameters, Metadata: p.Metadata,
		Failures: p.Failures.document(),
	}
	if len(d.Parameters) == 0 {
		d.Parameters = json.RawMessage(`{"type":"object"}`)
	}
	return d
}

func (m Middleware) document(levels definition.Level) contractDocument {
	d := contractDocument{
		URI: m.URI, CodePrefix: m.CodePrefix, Description: m.Description, Metadata: m.Metadata,
		Phases: map[string]phaseDocument{}, Failures: m.Failures.document(),
	}
	if levels&definition.StepLevel != 0 {
		d.Attachment = append(d.Attachment, "step")
	}
	if levels&definition.FlowLevel != 0 {
		d.Attachment = append(d.Attachment, "flow")
	}
	for phase, action := range []*PhaseAction{m.OnEntry, m.OnSuccess, m.OnFailure, m.OnAlways} {
		if action != nil {
			d.Phases[definition.Phase(phase).String()] = phaseDocument{ //nolint:gosec // there are four
				Action: actionDocument{Kind: actionKinds[action.Kind]}, Parameters: action.Parameters, Structural: action.Structural,
			}
		}
	}
	return d
}

var actionKinds = [...]string{SideEffect: "side-effect", Control: "control", Transform: "transform"}

func (f FailureCatalog) document() failuresDocument {
	return failuresDocument{Closed: append([]string{}, f.Closed...), Open: append([]string{}, f.Open...)}
}

// read returns the provider that the document describes, and its text. What
// [Catalog.Document] returns can be read again, because this is how it is checked.
func (d contractDocument) read(kind loader.ProviderKind) (*loader.Provider, json.RawMessage, error) {
	d.Schema = loader.ProviderSchemaURI
	for _, s := range d.schemas() {
		if len(s.source) == 0 {
			continue
		}
		if err := value.Valid(s.source); err != nil {
			return nil, nil, &CatalogError{d.URI, s.field, "is not JSON: " + err.Error() + "; write a JSON Schema"}
		}
	}
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d); err != nil {
		return nil, nil, &CatalogError{d.URI, "Parameters", "has no JSON form: " + err.Error()}
	}
	text := json.RawMessage(b.String())
	p, problems, _ := readProvider(text, kind)
	if len(problems) > 0 {
		return nil, nil, d.refused(problems[0])
	}
	return p, text, nil
}

// documentSchema is a schema in a document, and the field of the entry that it is.
type documentSchema struct {
	pointer, field string
	source         json.RawMessage
}

func (d contractDocument) schemas() []documentSchema {
	schemas := []documentSchema{{"/parameters", "Parameters", d.Parameters}, {"/metadata", "Metadata", d.Metadata}}
	for phase := range definition.PhaseCount {
		schemas = append(schemas, documentSchema{
			"/phases/" + phase.String() + "/parameters", phaseField(phase) + ".Parameters", d.Phases[phase.String()].Parameters,
		})
	}
	return schemas
}

// phaseField is the field of a [Middleware] that has the action of the phase.
func phaseField(phase definition.Phase) string {
	name := phase.String()
	return strings.ToUpper(name[:1]) + name[1:]
}

// refused is the problem of the document as one of the entry.
func (d contractDocument) refused(p definition.Problem) *CatalogError {
	message := p.Message
	if p.Remedy != "" {
		message += "; " + p.Remedy
	}
	for _, s := range d.schemas() {
		if inside, ok := strings.CutPrefix(p.Pointer, s.pointer); ok {
			if inside != "" {
				message = fmt.Sprintf("at %s: %s", inside, message)
			}
			return &CatalogError{d.URI, s.field, message}
		}
	}
	for phase := range definition.PhaseCount {
		if strings.HasPrefix(p.Pointer, "/phases/"+phase.String()+"/structural") {
			return &CatalogError{d.URI, phaseField(phase) + ".Structural", message}
		}
	}
	for pointer, field := range map[string]string{
		"/codePrefix": "CodePrefix", "/failureCatalog/closed": "Failures.Closed", "/failureCatalog/open": "Failures.Open",
	} {
		if strings.HasPrefix(p.Pointer, pointer) {
			return &CatalogError{d.URI, field, message}
		}
	}
	return &CatalogError{d.URI, "Document", message}
}
