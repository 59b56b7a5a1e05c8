package mwl

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/loader"
	"github.com/surebus/eventbus/mwl/internal/schema"
)

// Catalog has the providers that definitions can call, and the middleware that can wrap them. Every catalog has the
// language's own: the provider mock, and the middleware Retry, Timeout, Loop and Finally. It is immutable and may be
// shared by definitions and goroutines.
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
		if isNil(entry) {
			return nil, &CatalogError{Field: fmt.Sprintf("entry %d", i), Message: "is nil; pass a CallProvider or a Middleware"}
		}
		if err := entry.register(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// isNil reports whether v is nil, or a nil pointer that is boxed.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return v == nil || r.Kind() == reflect.Pointer && r.IsNil()
}

func emptyCatalog() *Catalog {
	return &Catalog{
		calls:       map[string]*definition.CallContract{},
		middlewares: map[string]*definition.MiddlewareContract{},
		documents:   map[string]json.RawMessage{},
	}
}

// URIs returns the URIs of all entries, sorted.
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
	if err := checkURI(p.URI, "provider.call"); err != nil {
		return err
	}
	if p.Call == nil {
		return &CatalogError{p.URI, "Call", "is nil; set the function that does the work"}
	}
	if _, taken := c.calls[p.URI]; taken {
		return &CatalogError{p.URI, "URI", "is there twice; leave one of the two out"}
	}
	read, text, err := p.document().read(loader.CallProvider)
	if err != nil {
		return err
	}
	contract := &definition.CallContract{
		URI: read.URI, CodePrefix: read.CodePrefix, Parameters: read.Parameters.Compiled(), Metadata: read.Metadata.Compiled(),
		Failures: read.Failures,
	}
	contract.Implementation = &goProvider{contract: contract, function: p.Call, errorCode: "Provider.Call." + p.CodePrefix + ".Error"}
	c.calls[p.URI] = contract
	c.documents[p.URI] = text
	return nil
}

func (m Middleware) register(c *Catalog) error {
	if err := checkURI(m.URI, "provider.middleware"); err != nil {
		return err
	}
	if _, taken := c.middlewares[m.URI]; taken {
		return &CatalogError{m.URI, "URI", "is there twice; leave one of the two out"}
	}
	if m.Attach&^(AttachStep|AttachFlow) != 0 {
		return &CatalogError{m.URI, "Attach", "has an unknown level; use AttachStep and AttachFlow, or zero for both"}
	}
	levels := definition.StepLevel | definition.FlowLevel
	if m.Attach != 0 {
		levels = definition.Level(m.Attach)
	}
	implementation := &goMiddleware{
		actions:   [definition.PhaseCount]*PhaseAction{m.OnEntry, m.OnSuccess, m.OnFailure, m.OnAlways},
		errorCode: "Provider.Middleware." + m.CodePrefix + ".Error",
	}
	acts := false
	for phase, action := range implementation.actions {
		if action == nil {
			continue
		}
		acts = true
		if err := action.check(m.URI, phaseField(definition.Phase(phase))); err != nil { //nolint:gosec // there are four
			return err
		}
	}
	if !acts {
		return &CatalogError{m.URI, "OnEntry, OnSuccess, OnFailure, OnAlways", "are all nil; set an action"}
	}
	read, text, err := m.document(levels).read(loader.MiddlewareProvider)
	if err != nil {
		return err
	}
	contract := &definition.MiddlewareContract{
		URI: read.URI, CodePrefix: read.CodePrefix, Levels: levels, Metadata: read.Metadata.Compiled(), Failures: read.Failures,
		Implementation: implementation,
	}
	implementation.contract = contract
	for phase, declared := range read.Phases {
		contract.Phases[phase].Parameters = schema.Empty
		if declared != nil {
			contract.Phases[phase] = definition.PhaseContract{
				Kind: declared.Kind, Parameters: declared.Parameters.Compiled(), Structural: structural(declared, nil),
			}
		}
	}
	c.middlewares[m.URI] = contract
	c.documents[m.URI] = text
	return nil
}

func (a *PhaseAction) check(uri, field string) error {
	if a.Kind < SideEffect || a.Kind > Transform {
		return &CatalogError{uri, field + ".Kind", "is not set; use SideEffect, Control or Transform"}
	}
	if a.Run == nil {
		return &CatalogError{uri, field + ".Run", "is nil; set the function that does the work"}
	}
	return nil
}

var entryURI = regexp.MustCompile(`^mwl:([A-Za-z0-9._-]+)/([A-Za-z0-9._-]+)(/[A-Za-z0-9._-]+)+$`)

// checkURI checks what only entries in Go have to satisfy: documents may be of the
// reserved namespaces.
func checkURI(uri, typ string) error {
	parts := entryURI.FindStringSubmatch(uri)
	switch {
	case parts == nil || parts[1] != typ || slices.ContainsFunc(strings.Split(uri, "/"), isDots):
		return &CatalogError{uri, "URI", "is not of the form mwl:" + typ + "/<namespace>/<name>, of letters, digits, -, _ and ."}
	case parts[2] == "mwl":
		return &CatalogError{uri, "URI", "is in the namespace mwl, which is the language's own; use yours"}
	case parts[2] == "example":
		return &CatalogError{uri, "URI", "is in the namespace example, which is for documentation; use your own"}
	}
	return nil
}

func isDots(segment string) bool { return segment == "." || segment == ".." }

// isUniversal reports whether every metadata record has the member.
func isUniversal(name string) bool { return name == "enteredAt" || name == "exitedAt" }
