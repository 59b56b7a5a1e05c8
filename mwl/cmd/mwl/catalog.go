package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/surebus/eventbus/mwl"
)

const (
	callScheme       = "mwl:provider.call/"
	middlewareScheme = "mwl:provider.middleware/"
)

// anyObject accepts any arguments.
var anyObject = json.RawMessage(`{"type": "object", "additionalProperties": true}`)

// catalog has the providers that documents describe.
type catalog struct {
	calls       map[string]mwl.CallProvider
	middlewares map[string]mwl.Middleware
}

// readCatalog reads provider definition documents.
func (a *app) readCatalog(ctx context.Context, files []string) (*catalog, error) {
	c := &catalog{map[string]mwl.CallProvider{}, map[string]mwl.Middleware{}}
	for _, file := range files {
		document, err := a.read(ctx, file)
		if err != nil {
			return nil, err
		}
		call, err := mwl.ParseCallProvider(document)
		middleware, other := mwl.ParseMiddleware(document)
		switch {
		case err == nil:
			if _, twice := c.calls[call.URI]; twice {
				return nil, describedTwice(file, call.URI)
			}
			c.calls[call.URI] = call
			continue
		case other == nil:
			if _, twice := c.middlewares[middleware.URI]; twice {
				return nil, describedTwice(file, middleware.URI)
			}
			c.middlewares[middleware.URI] = passing(middleware)
			continue
		}
		if strings.Contains(string(document), middlewareScheme) {
			err = other
		}
		return nil, &failure{exitProblem, fmt.Errorf("--catalog %s: %w", oneLine(file), err), "give documents of call providers and middlewares"}
	}
	return c, nil
}

func describedTwice(file, uri string) error {
	return usage("leave one of the two out", "--catalog %s: an earlier document describes %s, too", file, uri)
}

// answerer does the work of a call provider.
type answerer func(ctx context.Context, uri string, r mwl.CallRequest) (mwl.CallResponse, error)

// resolver resolves the providers of a definition. answer does the work of the call
// providers. asked is called with each URI and whether a document describes it, once, in
// the order of the definition. A provider that none describes takes any arguments.
func (c *catalog) resolver(answer answerer, asked func(uri string, described bool)) mwl.LoadOption {
	return mwl.WithResolver(func(uri string) (mwl.CatalogEntry, error) {
		call, isCall := c.calls[uri]
		middleware, isMiddleware := c.middlewares[uri]
		asked(uri, isCall || isMiddleware)
		if strings.HasPrefix(uri, callScheme) {
			if !isCall {
				call = mwl.CallProvider{URI: uri, CodePrefix: "Any", Parameters: anyObject, Metadata: anyObject, Failures: mwl.FailureCatalog{Open: []string{"*"}}}
			}
			call.Call = func(ctx context.Context, r mwl.CallRequest) (mwl.CallResponse, error) { return answer(ctx, uri, r) }
			return call, nil
		}
		if !isMiddleware {
			middleware = passing(mwl.Middleware{
				URI: uri, CodePrefix: "Any", Metadata: anyObject, Failures: mwl.FailureCatalog{Open: []string{"*"}},
				OnEntry: anyAction(), OnSuccess: anyAction(), OnFailure: anyAction(), OnAlways: anyAction(),
			})
		}
		return middleware, nil
	})
}

func anyAction() *mwl.PhaseAction {
	return &mwl.PhaseAction{Kind: mwl.SideEffect, Parameters: anyObject}
}

// passing returns the middleware with actions that let every Result pass.
func passing(m mwl.Middleware) mwl.Middleware {
	for _, action := range []*mwl.PhaseAction{m.OnEntry, m.OnSuccess, m.OnFailure, m.OnAlways} {
		if action != nil {
			action.Run = func(context.Context, *mwl.PhaseRun) (mwl.Decision, error) { return mwl.Decision{}, nil }
		}
	}
	return m
}

// load loads a definition for commands that do not run it. It returns the URIs of the
// providers that no document describes.
func load(source []byte, c *catalog, options ...mwl.LoadOption) (d *mwl.Definition, unknown []string, err error) {
	asked := func(uri string, described bool) {
		if !described {
			unknown = append(unknown, uri)
		}
	}
	d, err = mwl.Load(source, append([]mwl.LoadOption{c.resolver(notCalled, asked)}, options...)...)
	return d, unknown, err
}

func notCalled(context.Context, string, mwl.CallRequest) (mwl.CallResponse, error) {
	return mwl.CallResponse{}, errors.New("the definition is not run")
}
