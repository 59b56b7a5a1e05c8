package main

import (
	"context"
)

// open opens the backend that the flags or the environment select. A flag has precedence.
func (a *app) open(ctx context.Context) (backend, error) {
	const next = "give --store STORE or --url URL, or set EVENTBUS_STORE or EVENTBUS_URL; see 'eventbus help environment'"
	if a.opened != nil {
		return a.opened, nil
	}
	store, url := a.store, a.url
	if store == "" && url == "" {
		store, url = env("EVENTBUS_STORE"), env("EVENTBUS_URL")
	}
	switch {
	case store != "" && url != "":
		return nil, usage(next, "a store and a URL are given: the command works on one of them")
	case url != "":
		return openURL(url, a.connection())
	case store != "":
		at, err := a.place(store)
		if err != nil {
			return nil, err
		}
		return openStore(ctx, at)
	}
	return nil, usage(next, "no store and no URL are given")
}

// storePlace returns the store that the flags or the environment select, for a command that needs one.
func (a *app) storePlace(command string) (place, error) {
	store := a.store
	if store == "" {
		store = env("EVENTBUS_STORE")
	}
	if a.url != "" || store == "" {
		return place{}, usage("give --store STORE", "%s works on a store only", command)
	}
	return a.place(store)
}

// storePath is storePlace for a command that needs a file.
func (a *app) storePath(command, instead string) (string, error) {
	at, err := a.storePlace(command)
	if err == nil && at.isServer() {
		err = usage(instead, "%s works on a store file only", command)
	}
	return at.file, err
}
