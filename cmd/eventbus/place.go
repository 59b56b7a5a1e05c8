package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres"
)

// place is where a store is: in a file, or in a schema of a server.
type place struct {
	file string // empty for a server

	dsn    string
	shown  string // the dsn, without a password
	schema string // empty for the default
}

const defaultSchema = "eventbus"

// place reads --store and --schema.
func (a *app) place(store string) (place, error) {
	if err := a.connect.check(); err != nil {
		return place{}, err
	}
	schema := a.schema
	if schema == "" {
		schema = env("EVENTBUS_SCHEMA")
	}
	if !strings.HasPrefix(store, "postgres://") && !strings.HasPrefix(store, "postgresql://") {
		if schema != "" && a.schema != "" {
			return place{}, usage("leave --schema out, or give --store postgres://...", "--schema is for a store on a server, and %s is a file", store)
		}
		return place{file: store}, nil
	}
	u, err := url.Parse(store)
	if err != nil {
		return place{}, usage("give postgres://USER@HOST:PORT/DATABASE; what is left out comes from PGHOST, PGSERVICE and so on", "the URL of the store is not valid")
	}
	_, password := u.User.Password()
	query := u.Query()
	if (password || query.Has("password") || query.Has("sslpassword")) && a.store != "" {
		return place{}, usage("leave it out, and set PGPASSWORD, write it to ~/.pgpass, or set PGSERVICE", "--store has a password: each user of this machine sees it in the list of processes")
	}
	shown := *u
	if shown.User != nil {
		shown.User = url.User(u.User.Username())
	}
	if query.Has("password") || query.Has("sslpassword") {
		query.Del("password")
		query.Del("sslpassword")
		shown.RawQuery = query.Encode()
	}
	return place{dsn: store, shown: shown.String(), schema: schema}, nil
}

func (p place) isServer() bool { return p.file == "" }

// String returns the place for messages, without a password.
func (p place) String() string {
	if !p.isServer() {
		return p.file
	}
	schema := p.schema
	if schema == "" {
		schema = defaultSchema
	}
	return fmt.Sprintf("%s, schema %s", p.shown, schema)
}

// flags returns the flags of the place, for a command that is shown to the user.
func (p place) flags() string {
	if !p.isServer() {
		return "--store " + shellQuote(p.file)
	}
	flags := "--store " + shellQuote(p.shown)
	if p.schema != "" {
		flags += " --schema " + shellQuote(p.schema)
	}
	return flags
}

func (p place) open(ctx context.Context) (driver.Store, error) {
	if p.isServer() {
		return openServer(ctx, p)
	}
	return openFile(ctx, p)
}

func openServer(ctx context.Context, p place) (*postgres.Store, error) {
	opts := []postgres.Option{postgres.MustExist()}
	if p.schema != "" {
		opts = append(opts, postgres.WithSchema(p.schema))
	}
	return postgres.Open(ctx, p.dsn, opts...)
}
