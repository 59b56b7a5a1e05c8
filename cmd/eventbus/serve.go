package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

func (a *app) serveCommand() *cobra.Command {
	var listen string
	var hosts []string
	var readOnly bool
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve the admin page of a store, while the bus runs or not",
		Long: `Serve the admin page of a store, while the bus runs or not.

Without credentials, the page changes nothing. With EVENTBUS_USER and
EVENTBUS_PASSWORD, that operator may do everything. With EVENTBUS_TOKEN, programs
may, and the audit names them as --by says.

The command listens on this host only. To serve others, put a proxy with TLS
before it, and give --host the name that browsers show.`,
		Example: `  EVENTBUS_USER=anna EVENTBUS_PASSWORD=... eventbus serve --store events.db`,
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "`ADDRESS` of this host and port; port 0 takes a free one")
	c.Flags().StringSliceVar(&hosts, "host", nil, "further host `NAME` under which browsers reach the page")
	c.Flags().BoolVar(&readOnly, "read-only", false, "change nothing, whoever asks")
	a.operatorFlags(c)
	return a.command(c, func(ctx context.Context, _ []string) error {
		at, err := a.storePlace("serve")
		if err != nil {
			return err
		}
		opts := []admin.Option{admin.WithHosts(hosts...), admin.WithLogger(slog.New(slog.NewTextHandler(a.err, nil)))}
		authorize, err := a.authorizer()
		if err != nil {
			return err
		}
		if authorize != nil {
			opts = append(opts, admin.WithAuthorizer(authorize))
		}
		if readOnly {
			opts = append(opts, admin.ReadOnly())
		}
		host, _, err := net.SplitHostPort(listen)
		if err != nil {
			return usage("give an address such as 127.0.0.1:8080", "--listen %q: %w", listen, err)
		}
		if !isLoopback(host) {
			return usage("listen on 127.0.0.1, and put a proxy with TLS before it", "--listen %q is not an address of this host only: passwords would be sent unencrypted", listen)
		}
		b, err := openStore(ctx, at)
		if err != nil {
			return err
		}
		return a.serve(ctx, b.bus, listen, opts)
	})
}

// authorizer returns what the environment's credentials permit, or nil without any.
func (a *app) authorizer() (admin.Authorizer, error) {
	auth, err := credentials()
	switch {
	case err != nil || auth == "":
		return nil, err
	case env("EVENTBUS_TOKEN") != "":
		return admin.BearerToken(admin.Operator{Name: a.by, Secret: env("EVENTBUS_TOKEN")})
	}
	return admin.BasicAuth(admin.Operator{Name: env("EVENTBUS_USER"), Secret: env("EVENTBUS_PASSWORD")})
}

// serve serves the page until ctx ends, and closes the bus.
func (a *app) serve(ctx context.Context, bus *eventbus.Bus, listen string, opts []admin.Option) (err error) {
	stop := func() error {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return bus.Shutdown(closing)
	}
	handler, err := admin.New(bus, opts...)
	if err != nil {
		return errors.Join(err, stop())
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", listen)
	if err != nil {
		return errors.Join(err, stop())
	}
	const headerTimeout, idleTimeout, maxHeader = 5 * time.Second, time.Minute, 16 << 10
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader}
	a.printf("http://%s/\n", l.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case <-ctx.Done():
	case err = <-ended:
		ended <- err
	}
	err = stop() // first: it ends the live pages, for which the server would wait
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err = errors.Join(err, server.Shutdown(closing))
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
