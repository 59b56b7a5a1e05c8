// Command admin runs a shop whose services fail now and then, and serves the admin page beside it.
//
//	go run ./examples/admin [-listen 127.0.0.1:8080] [-for 10s]
//
// The first line of the output is the address of the page. The second line has the operator's name and
// password: that of ADMIN_PASSWORD, or a random one. Ctrl-C ends the program.
//
// With -for, the program is its own operator: over HTTP it requests the pages, replays, pauses and resumes, and checks the answers.
// It ends after that time, or later if the checks take longer. The exit status is 0 if they passed and the books balance.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/surebus/eventbus/admin"
)

const operator = "operator"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("admin", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:0", "serve the page on this loopback `address`")
	checkFor := flags.Duration("for", 0, "check the page over HTTP for this `time`, then end")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *checkFor < 0 {
		fmt.Fprintln(stderr, "usage: admin [-listen ADDRESS] [-for TIME]")
		return 2
	}
	if err := serve(ctx, *listen, *checkFor, stdout); err != nil {
		fmt.Fprintln(stderr, "admin:", err)
		return 1
	}
	if *checkFor > 0 {
		fmt.Fprintln(stdout, "OK: the page showed and did what an operator asked for, and the books balance")
	}
	return 0
}

// serve runs the shop and its admin page until ctx ends, or until the checks are done.
func serve(ctx context.Context, address string, checkFor time.Duration, stdout io.Writer) (err error) {
	s, err := openShop(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	password := cmp.Or(os.Getenv("ADMIN_PASSWORD"), rand.Text())
	authorizer, err := admin.BasicAuth(admin.Operator{Name: operator, Secret: password})
	if err != nil {
		return err
	}
	handler, err := admin.New(s.bus, admin.WithAuthorizer(authorizer), admin.WithPrefix("/admin"))
	if err != nil {
		return err
	}
	mux := http.NewServeMux() // the monolith's own
	mux.Handle("/admin/", handler)
	mux.Handle("/{$}", http.RedirectHandler("/admin/", http.StatusFound))

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: mux,
		// Slow and idle clients must not hold connections. There is no WriteTimeout: the live page and a
		// large export are long answers. The handler bounds its other requests itself.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	url := "http://" + listener.Addr().String() + "/admin"
	fmt.Fprintf(stdout, "%s/\nuser %s, password %s\n", url, operator, password)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { cancel(<-served) }()
	if checkFor == 0 {
		fmt.Fprint(stdout, "\nThe page shows a shop, which publishes orders until Ctrl-C. Its warehouse fails now and then, the bank is busy at times, and\n"+
			"some refunds are invalid: see the dead letters, replay them, pause a subscription.\n")
		<-ctx.Done()
	} else {
		fmt.Fprint(stdout, "\nThe page shows a shop whose services fail now and then. This program uses it as an operator does:\n")
		end := time.NewTimer(checkFor)
		err = (&client{url: url, password: password, http: new(http.Client), out: stdout}).check(ctx)
		if err == nil {
			select {
			case <-end.C:
			case <-ctx.Done():
			}
		}
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, server.Close()) // live pages would keep Shutdown waiting
}
