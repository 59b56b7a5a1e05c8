package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/mwl"
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
func (a *app) readMocks(files []string) (*mocks, error) {
	m := &mocks{answers: map[string][]mock{}}
	for _, file := range files {
		source, err := a.read(file)
		if err != nil {
			return nil, err
		}
		var byURI map[string]json.RawMessage
		if err := json.Unmarshal(source, &byURI); err != nil {
			return nil, usage("see 'mwl run --help'", "--mock %s is not an object of providers: %w", file, err)
		}
		for uri, answers := range byURI {
			if !strings.HasPrefix(uri, callScheme) {
				return nil, usage("write URIs of call providers: "+callScheme+"…", "--mock %s: %q is no call provider", file, uri)
			}
			list := []json.RawMessage{answers}
			if bytes.HasPrefix(bytes.TrimSpace(answers), []byte("[")) {
				if err := json.Unmarshal(answers, &list); err != nil || len(list) == 0 {
					return nil, usage("write an object for each call", "--mock %s: %s has an invalid or empty list", file, uri)
				}
			}
			if m.have(uri) {
				return nil, usage("leave one of the two out", "--mock %s: an earlier file has %s, too", file, uri)
			}
			for i, answer := range list {
				made, err := newMock(answer)
				if err != nil {
					return nil, usage("its members are value, failure, metadata and delay", "--mock %s: %s, answer %d: %w", file, uri, i+1, err)
				}
				m.answers[uri] = append(m.answers[uri], made)
			}
		}
	}
	return m, nil
}

// newMock makes a definition that calls the language's own mock with these arguments.
func newMock(with json.RawMessage) (m mock, err error) {
	var members map[string]any
	if err := json.Unmarshal(with, &members); err != nil || members == nil {
		return m, errors.New("it is not an object")
	}
	m.metadata, _ = members["metadata"].(map[string]any)
	arguments, err := json.Marshal(asText(members))
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

// progress counts what an execution has done.
type progress struct {
	steps, calls atomic.Int64
	last         atomic.Pointer[string]
}

func (p *progress) observer() mwl.Observer {
	return mwl.Observer{SpanBegun: func(_ context.Context, s mwl.Span) {
		switch s.Kind {
		case mwl.SpanStep:
			p.steps.Add(1)
			p.last.Store(&s.Name)
		case mwl.SpanCall:
			p.calls.Add(1)
		default:
		}
	}}
}

// String says how far the execution is.
func (p *progress) String() string {
	text := fmt.Sprintf("%s, %s", counted(int(p.steps.Load()), "step"), counted(int(p.calls.Load()), "call"))
	if last := p.last.Load(); last != nil {
		text += ", at " + oneLine(*last)
	}
	return text
}
