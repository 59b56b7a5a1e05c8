package mwl

import "github.com/surebus/eventbus/mwl/internal/definition"

// Catalog is what definitions can call and be wrapped by. Every catalog has the
// language's own providers: mock, and the middlewares Retry, Timeout, Loop and
// Finally. It is immutable and may be shared.
type Catalog struct {
	calls       map[string]*definition.CallContract
	middlewares map[string]*definition.MiddlewareContract
}

// CatalogEntry is a [CallProvider] or a [Middleware].
type CatalogEntry interface{ register(*Catalog) error }

// NewCatalog makes a catalog of the entries. The error is a [*CatalogError].
func NewCatalog(entries ...CatalogEntry) (*Catalog, error) {
	c := &Catalog{calls: map[string]*definition.CallContract{}, middlewares: map[string]*definition.MiddlewareContract{}}
	for _, entry := range entries {
		if err := entry.register(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (p CallProvider) register(*Catalog) error { panic("skeleton") }
func (m Middleware) register(*Catalog) error   { panic("skeleton") }

// Load reads a definition. An error is a [*DefinitionError], or an
// [*OptionError].
func Load(source []byte, options ...LoadOption) (*Definition, error) { panic("skeleton") }

// Warnings are what the definition may contain, but is likely a mistake.
func (d *Definition) Warnings() []Problem { panic("skeleton") }
