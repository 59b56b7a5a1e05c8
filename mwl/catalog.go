package mwl

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// Catalog is what definitions can call and be wrapped by. Every catalog has the
// language's own providers: mock, and the middlewares Retry, Timeout, Loop and
// Finally. It is immutable and may be shared by definitions and goroutines.
type Catalog struct {
	calls       map[string]*definition.CallContract
	middlewares map[string]*definition.MiddlewareContract
	// documents are the contracts as JSON, by URI.
	documents map[string]json.RawMessage
}

// CatalogEntry is a [CallProvider] or a [Middleware].
type CatalogEntry interface{ register(c *Catalog) error }

// NewCatalog makes a catalog of the entries and the language's own providers. The
// error is a [*CatalogError].
func NewCatalog(entries ...CatalogEntry) (*Catalog, error) {
	own := ownProviders()
	c := &Catalog{calls: maps.Clone(own.calls), middlewares: maps.Clone(own.middlewares), documents: maps.Clone(own.documents)}
	for i, entry := range entries {
		if entry == nil {
			return nil, &CatalogError{Field: fmt.Sprintf("entry %d", i), Message: "is nil; pass a CallProvider or a Middleware"}
		}
		if err := entry.register(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// URIs are those of all entries, sorted.
func (c *Catalog) URIs() []string {
	uris := slices.Collect(maps.Keys(c.calls))
	return slices.Sorted(func(yield func(string) bool) {
		for _, uri := range slices.AppendSeq(uris, maps.Keys(c.middlewares)) {
			if !yield(uri) {
				return
			}
		}
	})
}

func (p CallProvider) register(c *Catalog) error {
	prefix := "Provider.Call." + p.CodePrefix
	if err := checkEntry(p.URI, "provider.call", p.CodePrefix, prefix, p.Failures); err != nil {
		return err
	}
	if p.Call == nil {
		return &CatalogError{p.URI, "Call", "is nil; set the function that does the work"}
	}
	if _, taken := c.calls[p.URI]; taken {
		return &CatalogError{p.URI, "URI", "is there twice; leave one of the two out"}
	}
	parameters, err := compileSchema(p.URI, "Parameters", p.Parameters)
	if err != nil {
		return err
	}
	metadata, err := compileSchema(p.URI, "Metadata", p.Metadata)
	if err != nil {
		return err
	}
	contract := &definition.CallContract{
		URI: p.URI, CodePrefix: p.CodePrefix, Parameters: parameters, Metadata: metadata, Failures: p.Failures.contract(),
	}
	contract.Implementation = &goProvider{contract: contract, function: p.Call, errorCode: prefix + ".Error"}
	c.calls[p.URI] = contract
	c.documents[p.URI] = p.document()
	return nil
}

func (m Middleware) register(c *Catalog) error {
	prefix := "Provider.Middleware." + m.CodePrefix
	if err := checkEntry(m.URI, "provider.middleware", m.CodePrefix, prefix, m.Failures); err != nil {
		return err
	}
	if _, taken := c.middlewares[m.URI]; taken {
		return &CatalogError{m.URI, "URI", "is there twice; leave one of the two out"}
	}
	if m.Attach&^(AttachStep|AttachFlow) != 0 {
		return &CatalogError{m.URI, "Attach", "has an unknown level; use AttachStep and AttachFlow, or zero for both"}
	}
	metadata, err := compileSchema(m.URI, "Metadata", m.Metadata)
	if err != nil {
		return err
	}
	for _, name := range universal {
		if declares(m.Metadata, name) {
			return &CatalogError{m.URI, "Metadata", "declares " + name + ", which every record has; use another name"}
		}
	}
	levels := definition.StepLevel | definition.FlowLevel
	if m.Attach != 0 {
		levels = definition.Level(m.Attach)
	}
	implementation := &goMiddleware{
		actions:   [definition.PhaseCount]*PhaseAction{m.OnEntry, m.OnSuccess, m.OnFailure, m.OnAlways},
		errorCode: prefix + ".Error",
	}
	contract := &definition.MiddlewareContract{
		URI: m.URI, CodePrefix: m.CodePrefix, Levels: levels, Metadata: metadata, Failures: m.Failures.contract(),
		Implementation: implementation,
	}
	implementation.contract = contract
	acts := false
	for phase, action := range implementation.actions {
		contract.Phases[phase].Parameters = schema.Empty
		if action == nil {
			continue
		}
		acts = true
		if contract.Phases[phase], err = action.contract(m.URI, definition.Phase(phase)); err != nil {
			return err
		}
	}
	if !acts {
		return &CatalogError{m.URI, "OnEntry, OnSuccess, OnFailure, OnAlways", "are all nil; set an action"}
	}
	c.middlewares[m.URI] = contract
	c.documents[m.URI] = m.document(levels)
	return nil
}

func (a *PhaseAction) contract(uri string, phase definition.Phase) (definition.PhaseContract, error) {
	field := strings.ToUpper(phase.String()[:1]) + phase.String()[1:]
	if a.Kind < SideEffect || a.Kind > Transform {
		return definition.PhaseContract{}, &CatalogError{uri, field + ".Kind", "is not set; use SideEffect, Control or Transform"}
	}
	if a.Run == nil {
		return definition.PhaseContract{}, &CatalogError{uri, field + ".Run", "is nil; set the function that does the work"}
	}
	parameters, err := compileSchema(uri, field+".Parameters", a.Parameters)
	return definition.PhaseContract{Kind: definition.ActionKind(a.Kind), Parameters: parameters}, err
}

func (f FailureCatalog) contract() definition.FailureCatalog {
	return definition.FailureCatalog{Closed: slices.Clone(f.Closed), Open: slices.Clone(f.Open)}
}

var (
	entryURI   = regexp.MustCompile(`^mwl:([A-Za-z0-9._-]+)/([A-Za-z0-9._-]+)(/[A-Za-z0-9._-]+)+$`)
	codePrefix = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
)

// checkEntry checks what the entries of both kinds have.
func checkEntry(uri, typ, prefix, codes string, failures FailureCatalog) error {
	parts := entryURI.FindStringSubmatch(uri)
	switch {
	case parts == nil || parts[1] != typ || slices.ContainsFunc(strings.Split(uri, "/"), isDots):
		return &CatalogError{uri, "URI", "is not of the form mwl:" + typ + "/<namespace>/<name>, of letters, digits, -, _ and ."}
	case parts[2] == "mwl":
		return &CatalogError{uri, "URI", "is in the namespace mwl, which is the language's own; use yours"}
	case parts[2] == "example":
		return &CatalogError{uri, "URI", "is in the namespace example, which is for documentation; use your own"}
	case !codePrefix.MatchString(prefix):
		return &CatalogError{uri, "CodePrefix", fmt.Sprintf("is %q; set one segment of a code, such as Payments", prefix)}
	}
	for _, code := range failures.Closed {
		if !strings.HasPrefix(code, codes+".") || strings.HasSuffix(code, "*") {
			return &CatalogError{uri, "Failures.Closed", fmt.Sprintf("has %q; write codes that begin with %s., without a pattern", code, codes)}
		}
	}
	for _, pattern := range failures.Open {
		if pattern != "*" && (!strings.HasPrefix(pattern, codes+".") || !strings.HasSuffix(pattern, ".*")) {
			return &CatalogError{uri, "Failures.Open", fmt.Sprintf(`has %q; write "*", or patterns such as %s.Errors.*`, pattern, codes)}
		}
	}
	return nil
}

func isDots(segment string) bool { return segment == "." || segment == ".." }

func compileSchema(uri, field string, source json.RawMessage) (*schema.Schema, error) {
	if len(source) == 0 {
		return schema.Empty, nil
	}
	document, err := value.Parse(source)
	if err != nil {
		return nil, &CatalogError{uri, field, "is not JSON: " + err.Error()}
	}
	compiled, err := schema.Compile(document)
	if err != nil {
		return nil, &CatalogError{uri, field, "is no usable JSON Schema: " + err.Error()}
	}
	return compiled, nil
}

// universal are the members of every metadata record.
var universal = []string{"enteredAt", "exitedAt"}

func isUniversal(name string) bool { return slices.Contains(universal, name) }

// declares reports whether a schema, which compiles, declares the property.
func declares(source json.RawMessage, property string) bool {
	var declared struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(source, &declared) != nil {
		return false
	}
	_, ok := declared.Properties[property]
	return ok
}
