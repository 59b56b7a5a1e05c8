package main

import (
	"context"
)

// open opens the backend that the flags or the environment select. A flag has precedence.
func (a *app) open(ctx context.Context) (backend, error) {
	const next = "give --store FILE or --url URL, or set EVENTBUS_STORE or EVENTBUS_URL; see 'eventbus help environment'"
	store, url := a.store, a.url
	if store == "" && url == "" {
		store, url = env("EVENTBUS_STORE"), env("EVENTBUS_URL")
	}
	switch {
	case store != "" && url != "":
		return nil, usage(next, "a store and a URL are given: the command works on one of them")
	case url != "":
		return openURL(url)
	case store != "":
		return openStore(ctx, store)
	}
	return nil, usage(next, "no store and no URL are given")
}

// storePath returns the store that the flags or the environment select, for a command that needs a file.
func (a *app) storePath(command string) (string, error) {
	path := a.store
	if path == "" {
		path = env("EVENTBUS_STORE")
	}
	if a.url != "" || path == "" {
		return "", usage("give --store FILE", "%s works on a store file only", command)
	}
	return path, nil
}
