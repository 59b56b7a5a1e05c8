package mwl

import (
	"slices"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/loader"
)

// ParseCallProvider reads a provider definition document: the JSON form in which the contract of a provider is
// published. It returns the catalog entry with the content of the document. Set Call before you use it. The error is a
// [*DefinitionError] that lists all problems. [DefaultLimits] apply to the document.
func ParseCallProvider(document []byte) (CallProvider, error) {
	p, err := parseProvider(document, loader.CallProvider)
	if err != nil {
		return CallProvider{}, err
	}
	return CallProvider{
		URI: p.URI, CodePrefix: p.CodePrefix, Description: p.Description,
		Parameters: p.Parameters.Source, Metadata: p.Metadata.Source, Failures: FailureCatalog(p.Failures),
	}, nil
}

// ParseMiddleware reads the definition document of a middleware, as [ParseCallProvider] does for providers. It sets the
// declared actions with their structural parameters. Set their Run before you use it.
func ParseMiddleware(document []byte) (Middleware, error) {
	p, err := parseProvider(document, loader.MiddlewareProvider)
	if err != nil {
		return Middleware{}, err
	}
	m := Middleware{
		URI: p.URI, CodePrefix: p.CodePrefix, Description: p.Description, Attach: Level(p.Levels),
		Metadata: p.Metadata.Source, Failures: FailureCatalog(p.Failures),
	}
	actions := [definition.PhaseCount]**PhaseAction{&m.OnEntry, &m.OnSuccess, &m.OnFailure, &m.OnAlways}
	for phase, declared := range p.Phases {
		if declared != nil {
			*actions[phase] = &PhaseAction{Kind: ActionKind(declared.Kind), Parameters: declared.Parameters.Source, Structural: declared.Structural}
		}
	}
	return m, nil
}

func parseProvider(document []byte, kind loader.ProviderKind) (*loader.Provider, error) {
	p, problems, more := readProvider(slices.Clone(document), kind)
	if len(problems) > 0 {
		return nil, &DefinitionError{Problems: problemsOf(problems), More: more}
	}
	return p, nil
}

// readProvider reads a document that must not be altered any more.
func readProvider(document []byte, kind loader.ProviderKind) (p *loader.Provider, problems []definition.Problem, more int) {
	limits := DefaultLimits()
	return loader.LoadProvider(document, kind, loader.Options{
		MaxBytes: limits.DefinitionBytes, MaxDepth: limits.Depth, MaxProblems: maxProblems,
	})
}
