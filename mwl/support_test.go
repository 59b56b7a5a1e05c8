package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// short spells out the URIs that the tests' definitions abbreviate.
var short = strings.NewReplacer(
	"$MOCK", `"provider": "mwl:provider.call/mwl/mock/v1"`,
	"$DO", `"provider": "mwl:provider.call/test/do/v1"`,
	"$RETRY", `"provider": "mwl:provider.middleware/mwl/retry/v1"`,
	"$TIMEOUT", `"provider": "mwl:provider.middleware/mwl/timeout/v1"`,
	"$LOOP", `"provider": "mwl:provider.middleware/mwl/loop/v1"`,
	"$FINALLY", `"provider": "mwl:provider.middleware/mwl/finally/v1"`,
	"$TRACE", `"provider": "mwl:provider.middleware/test/trace/v1"`,
	"$OWN", `"provider": "mwl:provider.middleware/test/own/v1"`,
)

// load loads the definition whose members, $schema apart, are given.
func load(t *testing.T, members string, entries []mwl.CatalogEntry, options ...mwl.LoadOption) *mwl.Definition {
	t.Helper()
	catalog, err := mwl.NewCatalog(entries...)
	require.NoError(t, err)
	source := `{"$schema": "https://mwl.dev/v0.1/flow/schema.json", ` + short.Replace(members) + `}`
	def, err := mwl.Load([]byte(source), append([]mwl.LoadOption{mwl.WithCatalog(catalog)}, options...)...)
	require.NoError(t, err)
	return def
}

// do is a call provider that takes any arguments and may fail in any way.
func do(call func(context.Context, mwl.CallRequest) (mwl.CallResponse, error)) mwl.CatalogEntry {
	return mwl.CallProvider{
		URI:        "mwl:provider.call/test/do/v1",
		CodePrefix: "Do",
		Parameters: json.RawMessage(`{"type": "object", "additionalProperties": true}`),
		Metadata:   json.RawMessage(`{"type": "object", "additionalProperties": true}`),
		Failures:   mwl.FailureCatalog{Open: []string{"*"}},
		Call:       call,
	}
}

// A journal is what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.lines...)
}

func (j *journal) count(line string) int {
	n := 0
	for _, l := range j.all() {
		if l == line {
			n++
		}
	}
	return n
}

// entry is the catalog's entry for a provider that writes the argument name when
// it is called, and waits the argument ms.
func (j *journal) entry() mwl.CatalogEntry {
	return do(func(ctx context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		name, _ := r.With["name"].(string)
		j.add(name)
		if ms, ok := r.With["ms"].(float64); ok {
			select {
			case <-time.After(time.Duration(ms) * time.Millisecond):
			case <-ctx.Done():
				j.add(name + " stopped")
				return mwl.CallResponse{}, ctx.Err()
			}
		}
		if code, ok := r.With["fail"].(string); ok {
			return mwl.CallResponse{}, &mwl.Failure{Code: code}
		}
		return mwl.CallResponse{Value: r.Input}, nil
	})
}

// trace is a middleware that writes which of its phases run: its onEntry takes a
// name.
func (j *journal) trace() mwl.CatalogEntry {
	phase := func(what string) *mwl.PhaseAction {
		return &mwl.PhaseAction{Kind: mwl.SideEffect, Run: func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
			name, ok := r.State.(string)
			if !ok {
				return mwl.Decision{}, errors.New("there is no State")
			}
			j.add(what + " " + name)
			return mwl.Decision{}, nil
		}}
	}
	return mwl.Middleware{
		URI:        "mwl:provider.middleware/test/trace/v1",
		CodePrefix: "Trace",
		OnEntry: &mwl.PhaseAction{
			Kind:       mwl.SideEffect,
			Parameters: json.RawMessage(`{"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}`),
			Run: func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				name, ok := r.With["name"].(string)
				if !ok || r.State != nil {
					return mwl.Decision{}, errors.New("the entry is not fresh")
				}
				r.State = name
				j.add("entry " + name)
				return mwl.Decision{}, nil
			},
		},
		OnSuccess: phase("success"),
		OnFailure: phase("failure"),
		OnAlways:  phase("always"),
	}
}

// envelope is what the tests compare of a failure: the types and codes down the
// chain.
func envelope(f *mwl.Failure) []string {
	var chain []string
	for ; f != nil; f = f.Previous {
		chain = append(chain, f.Type+" "+f.Code)
	}
	return chain
}
