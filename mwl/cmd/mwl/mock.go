package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// mocks has what the calls of each provider give, in their order; the last one for all
// further calls.
type mocks struct {
	mu      sync.Mutex // guards the following
	answers map[string][]mock
}

// mock is what a call gives.
type mock struct {
	flow     *mwl.Definition // its Result is the call's
	metadata map[string]any
}

// readMocks reads --mock files.
func (a *app) readMocks(ctx context.Context, files []string) (*mocks, error) {
	own, err := mwl.NewCatalog()
	if err != nil {
		return nil, err
	}
	m := &mocks{answers: map[string][]mock{}}
	for _, file := range files {
		source, err := a.read(ctx, file)
		if err != nil {
			return nil, err
		}
		root, err := parse(source)
		if err != nil {
			return nil, usage("see 'mwl run --help'", "--mock %s is not valid JSON: %w", file, err)
		}
		if root.Kind != strictjson.Object {
			return nil, usage("see 'mwl run --help'", "--mock %s is not an object of providers", file)
		}
		for _, member := range root.Members {
			uri := member.Name
			if !strings.HasPrefix(uri, callScheme) {
				return nil, usage("write URIs of call providers: "+callScheme+"…", "--mock %s: %q is no call provider", file, uri)
			}
			if _, ok := own.Document(uri); ok {
				return nil, usage("leave it out, or change the with of the call", "--mock %s: %s is the language's own, which runs as its arguments say", file, uri)
			}
			if m.have(uri) {
				return nil, usage("leave one of the two out", "--mock %s: an earlier file has %s, too", file, uri)
			}
			list := []*strictjson.Node{member.Value}
			if member.Value.Kind == strictjson.Array {
				if list = member.Value.Items; len(list) == 0 {
					return nil, usage("write an object for each call", "--mock %s: %s has an empty list", file, uri)
				}
			}
			for i, answer := range list {
				made, err := newMock(answer)
				if err != nil {
					return nil, usage("its members are value or failure, metadata and delay", "--mock %s: %s, answer %d: %w", oneLine(file), oneLine(uri), i+1, err)
				}
				m.answers[uri] = append(m.answers[uri], made)
			}
		}
	}
	return m, nil
}

// newMock makes a definition that calls the language's own mock with these arguments.
func newMock(with *strictjson.Node) (m mock, err error) {
	if with.Kind != strictjson.Object {
		return m, errors.New("it is not an object")
	}
	if failure := with.Member("failure"); failure != nil && failure.Kind != strictjson.Null && with.Member("value") != nil {
		return m, errors.New("it has a value and a failure; leave one out")
	}
	// As text, an expression would fail only when the call is made.
	if text := with.Member("delay"); text != nil && text.Kind == strictjson.String {
		if delay, err := temporal.ParseDuration(text.Text); err != nil || delay < 0 {
			return m, fmt.Errorf("the delay %q is not a duration of zero or more, such as PT2S", text.Text)
		}
	}
	if metadata := with.Member("metadata"); metadata != nil {
		m.metadata, _ = metadata.Value().(map[string]any)
	}
	arguments, err := json.Marshal(asText(with.Value()))
	if err != nil {
		return m, err
	}
	source := fmt.Appendf(nil, `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "call", "steps": {
		"call": {"action": "Call", "call": {"provider": "mwl:provider.call/mwl/mock/v1", "with": %s}, "next": "end"},
		"end": {"action": "Return"}}}`, arguments)
	m.flow, err = mwl.Load(source)
	return m, err
}

// asText returns a value of a definition that evaluates to v: it makes a literal of each
// string that could be an expression.
func asText(v any) any {
	switch v := v.(type) {
	case string:
		if !strings.Contains(v, "{{") {
			return v
		}
		quoted, _ := json.Marshal(v) // a string always has a JSON form
		return "{{ " + strings.NewReplacer("{", `\u007b`, "}", `\u007d`).Replace(string(quoted)) + " }}"
	case []any:
		for i := range v {
			v[i] = asText(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = asText(v[name])
		}
	}
	return v
}

// answer gives what the provider's next call gives.
func (m *mocks) answer(ctx context.Context, uri string, r mwl.CallRequest) (mwl.CallResponse, error) {
	m.mu.Lock()
	next := m.answers[uri][0]
	if len(m.answers[uri]) > 1 {
		m.answers[uri] = m.answers[uri][1:]
	}
	m.mu.Unlock()
	result := next.flow.Execute(ctx, r.Input)
	return mwl.CallResponse{Value: result.Value, Metadata: next.metadata}, result.Err()
}

// have reports whether the provider has a mock.
func (m *mocks) have(uri string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.answers[uri]) > 0
}

// uris returns the set of the providers that have a mock.
func (m *mocks) uris() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	set := map[string]bool{}
	for uri := range m.answers {
		set[uri] = true
	}
	return set
}
