package mwl

import (
	"maps"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
)

// WithResolver sets a function that [Load] calls for each provider that the definition names and the catalog does not
// have. It is for tools that check, draw or mock definitions whose providers they do not know.
//
// The function returns the entry of the URI; nil leaves the provider unknown, which is
// a problem of the definition. It is called once per URI, before Load returns, on the
// goroutine of Load. It is not called for the namespaces mwl and example, which can have
// no entries. An error of the function, and the [*CatalogError] of an entry that is not
// valid or has another URI, are the error of Load.
func WithResolver(resolve func(uri string) (CatalogEntry, error)) LoadOption {
	return func(s *settings) error {
		if resolve == nil {
			return &OptionError{"WithResolver", "the function is nil; pass one, or leave the option out"}
		}
		s.resolve = resolve
		return nil
	}
}

// contracts is the catalog as the loader asks it, for one call of Load.
type contracts struct {
	*Catalog
	resolve func(uri string) (CatalogEntry, error) // nil: none
	// resolved has the entries of resolve; nil before the first.
	resolved *Catalog
	// asked are the URIs that resolve has been called for.
	asked map[string]bool
	// err is the first error of resolve.
	err error
}

// CallProvider returns the contract of a call provider.
func (c *contracts) CallProvider(uri string) (*definition.CallContract, bool) {
	contract, ok := c.calls[uri]
	if !ok && c.ask(uri) {
		contract, ok = c.resolved.calls[uri]
	}
	return contract, ok
}

// Middleware returns the contract of a middleware.
func (c *contracts) Middleware(uri string) (*definition.MiddlewareContract, bool) {
	contract, ok := c.middlewares[uri]
	if !ok && c.ask(uri) {
		contract, ok = c.resolved.middlewares[uri]
	}
	return contract, ok
}

// ask calls resolve, unless it has been called for the URI. It reports whether there
// are resolved entries.
func (c *contracts) ask(uri string) bool {
	if c.resolve == nil || c.err != nil {
		return false
	}
	if c.resolved == nil {
		c.resolved = emptyCatalog()
		c.asked = map[string]bool{}
	}
	if namespace := strings.Split(uri, "/")[1]; c.asked[uri] || slices.Contains(reserved, namespace) {
		return true
	}
	c.asked[uri] = true
	entry, err := c.resolve(uri)
	if err != nil {
		c.err = err
		return false
	}
	if isNil(entry) {
		return true
	}
	one := emptyCatalog()
	if c.err = entry.register(one); c.err != nil {
		return false
	}
	if one.calls[uri] == nil && one.middlewares[uri] == nil {
		c.err = &CatalogError{uri, "URI", "is not that of the entry that the resolver returned; return the entry of this URI, or nil"}
		return false
	}
	maps.Copy(c.resolved.calls, one.calls)
	maps.Copy(c.resolved.middlewares, one.middlewares)
	return true
}

// reserved are the namespaces of the language itself and of its documentation.
var reserved = []string{"mwl", "example"}
