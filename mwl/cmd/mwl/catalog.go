package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl"
)

const (
	callScheme       = "mwl:provider.call/"
	middlewareScheme = "mwl:provider.middleware/"
)

// anyObject accepts any arguments.
var anyObject = json.RawMessage(`{"type": "object", "additionalProperties": true}`)

// catalog is what definitions are loaded with: the providers that documents describe,
// and stand-ins for the others.
type catalog struct {
	calls       map[string]mwl.CallProvider
	middlewares map[string]mwl.Middleware
}

// readCatalog reads provider definition documents.
func (a *app) readCatalog(files []string) (*catalog, error) {
	c := &catalog{map[string]mwl.CallProvider{}, map[string]mwl.Middleware{}}
	for _, file := range files {
		document, err := a.read(file)
		if err != nil {
			return nil, err
		}
		call, err := mwl.ParseCallProvider(document)
		if err == nil {
			c.calls[call.URI] = call
			continue
		}
		middleware, other := mwl.ParseMiddleware(document)
		if other == nil {
			c.middlewares[middleware.URI] = middleware
			continue
		}
		if strings.Contains(string(document), middlewareScheme) {
			err = other
		}
		return nil, &failure{exitProblem, fmt.Errorf("--catalog %s: %w", file, err), "give documents of call providers and middlewares"}
	}
	return c, nil
}

// answerer does the work of a call provider.
type answerer func(ctx context.Context, uri string, r mwl.CallRequest) (mwl.CallResponse, error)

// build makes the catalog of a definition. answer does the work of the call providers.
// It returns the URIs of the providers that no document describes.
func (c *catalog) build(source []byte, answer answerer) (built *mwl.Catalog, unknown []string, err error) {
	own, err := mwl.NewCatalog()
	if err != nil {
		return nil, nil, err
	}
	known := own.URIs()
	var entries []mwl.CatalogEntry
	for _, uri := range providersOf(source) {
		if slices.Contains(known, uri) {
			continue
		}
		call, described := c.calls[uri]
		middleware, describedMiddleware := c.middlewares[uri]
		var entry mwl.CatalogEntry
		switch {
		case strings.HasPrefix(uri, callScheme):
			if !described {
				call = mwl.CallProvider{URI: uri, CodePrefix: "Any", Parameters: anyObject, Metadata: anyObject, Failures: mwl.FailureCatalog{Open: []string{"*"}}}
			}
			call.Call = func(ctx context.Context, r mwl.CallRequest) (mwl.CallResponse, error) { return answer(ctx, uri, r) }
			entry = call
		case strings.HasPrefix(uri, middlewareScheme):
			described = describedMiddleware
			if !described {
				middleware = mwl.Middleware{URI: uri, CodePrefix: "Any", Metadata: anyObject, OnEntry: anyAction(), OnSuccess: anyAction(), OnFailure: anyAction(), OnAlways: anyAction()}
			}
			for _, action := range []*mwl.PhaseAction{middleware.OnEntry, middleware.OnSuccess, middleware.OnFailure, middleware.OnAlways} {
				if action != nil {
					action.Run = pass
				}
			}
			entry = middleware
		default:
			continue // Load says what is wrong with it
		}
		if _, err := mwl.NewCatalog(entry); err != nil {
			continue // likewise: no provider can have the URI
		}
		if !described {
			unknown = append(unknown, uri)
		}
		entries = append(entries, entry)
	}
	built, err = mwl.NewCatalog(entries...)
	return built, unknown, err
}

func anyAction() *mwl.PhaseAction {
	return &mwl.PhaseAction{Kind: mwl.SideEffect, Parameters: anyObject}
}

func pass(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, nil }

// providersOf returns the values of all members named provider, sorted. Text that is no
// JSON has none.
func providersOf(source []byte) []string {
	var document any
	if json.Unmarshal(source, &document) != nil {
		return nil
	}
	found := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for name, member := range v {
				if uri, ok := member.(string); ok && name == "provider" {
					found[uri] = true
				}
				walk(member)
			}
		}
	}
	walk(document)
	uris := make([]string, 0, len(found))
	for uri := range found {
		uris = append(uris, uri)
	}
	slices.Sort(uris)
	return uris
}

// load reads a definition for commands that do not run it.
func (a *app) load(name string, c *catalog, options ...mwl.LoadOption) (d *mwl.Definition, unknown []string, err error) {
	source, err := a.read(name)
	if err != nil {
		return nil, nil, err
	}
	built, unknown, err := c.build(source, notCalled)
	if err != nil {
		return nil, nil, err
	}
	d, err = mwl.Load(source, append([]mwl.LoadOption{mwl.WithCatalog(built)}, options...)...)
	return d, unknown, err
}

func notCalled(context.Context, string, mwl.CallRequest) (mwl.CallResponse, error) {
	return mwl.CallResponse{}, errors.New("the definition is not run")
}
