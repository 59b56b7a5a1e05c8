package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/surebus/eventbus/mwl"
)

// runFlags are those of the command run.
type runFlags struct {
	input, arguments, trace string
	mocks, documents        []string
	timeout                 time.Duration
	untrusted               bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Run a definition with mocked providers",
		Long: `Run a definition and print its Result as JSON. Providers are mocked: a --mock file
is an object that has, for each provider's URI, what a call gives:

  {"mwl:provider.call/shop/charge/v1": {"value": {"receipt": "r-1"}},
   "mwl:provider.call/shop/ship/v1":   {"failure": {"code": "Provider.Call.Ship.Lost"}, "delay": "PT2S"}}

value is the value of the success, failure the failure's envelope, metadata what
the call's arms read, delay how long the call takes. Without value and failure
the call gives its input. Text with {{ }} in a mock stays text. A list of such objects
gives one for each call, and the last one for all further calls. Middleware is not
mocked: a note names what lets every Result pass.

A failure ends with exit code 1. Ctrl-C cancels the execution: its cleanup runs,
and its Result is printed.`,
		Example: `  mwl run saga.json --input '{"order": "o-1"}' --mock mocks.json
  mwl run saga.json --input @order.json --mock mocks.json --trace`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&f.input, "input", "null", "the input as `JSON`, @FILE, or - for the standard input")
	c.Flags().StringVar(&f.arguments, "args", "", "the arguments as a `JSON` object, or @FILE")
	c.Flags().StringArrayVar(&f.mocks, "mock", nil, "`FILE` with what providers give; may be repeated")
	c.Flags().StringArrayVar(&f.documents, "catalog", nil, "provider definition `FILE`; may be repeated")
	c.Flags().StringVar(&f.trace, "trace", "", "print the trace on the standard error: tree or json")
	c.Flags().Lookup("trace").NoOptDefVal = "tree"
	c.Flags().DurationVar(&f.timeout, "timeout", 0, "cancel the execution after this `DURATION`, such as 30s; 0 is never")
	c.Flags().BoolVar(&f.untrusted, "untrusted", false, "run under the limits for definitions that nobody vetted")
	c.RunE = func(c *cobra.Command, args []string) error { return a.execute(c.Context(), args[0], f) }
	return c
}

func (a *app) execute(ctx context.Context, file string, f runFlags) error {
	if f.trace != "" && f.trace != "tree" && f.trace != "json" {
		return usage("write --trace=tree or --trace=json", "--trace=%s is unknown", f.trace)
	}
	if f.timeout < 0 {
		return usage("write a duration such as 30s", "--timeout %s is negative", f.timeout)
	}
	input, err := a.value("--input", f.input)
	if err != nil {
		return err
	}
	execute, err := a.options(f)
	if err != nil {
		return err
	}
	d, err := a.runnable(file, f)
	if err != nil {
		return err
	}
	var trace mwl.Trace
	if f.trace != "" {
		execute = append(execute, mwl.WithObserver(trace.Observer()))
	}
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("--timeout %s elapsed", f.timeout))
		defer cancel()
	}
	stop := a.progress(&execute)
	result := d.Execute(ctx, input, execute...)
	stop()
	if f.trace != "" {
		if err := a.writeTrace(&trace, f.trace); err != nil {
			return err
		}
	}
	if err := a.line(result); err != nil {
		return err
	}
	if result.Failure != nil {
		return errShown
	}
	return nil
}

// value reads a JSON value from a flag.
func (a *app) value(flag, text string) (v any, err error) {
	source := []byte(text)
	if name, file := strings.CutPrefix(text, "@"); file {
		source, err = a.read(name)
	} else if text == "-" {
		source, err = a.read("-")
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(source, &v); err != nil {
		return nil, usage("write JSON, or @FILE; a string needs its quotes", "%s is not JSON: %w", flag, err)
	}
	return v, nil
}

func (a *app) options(f runFlags) ([]mwl.ExecuteOption, error) {
	if f.arguments == "" {
		return nil, nil
	}
	v, err := a.value("--args", f.arguments)
	if err != nil {
		return nil, err
	}
	arguments, ok := v.(map[string]any)
	if !ok {
		return nil, usage(`write an object such as {"tries": 3}`, "--args is not an object")
	}
	return []mwl.ExecuteOption{mwl.WithArguments(arguments)}, nil
}

// runnable loads a definition whose providers are mocked.
func (a *app) runnable(file string, f runFlags) (*mwl.Definition, error) {
	known, err := a.readCatalog(f.documents)
	if err != nil {
		return nil, err
	}
	mocks, err := a.readMocks(f.mocks)
	if err != nil {
		return nil, err
	}
	source, err := a.read(file)
	if err != nil {
		return nil, err
	}
	var missing, passed []string
	asked := func(uri string, _ bool) {
		switch {
		case strings.HasPrefix(uri, middlewareScheme):
			passed = append(passed, uri)
		case !mocks.have(uri):
			missing = append(missing, uri)
		}
	}
	options := []mwl.LoadOption{known.resolver(mocks.answer, asked)}
	if f.untrusted {
		options = append(options, mwl.Untrusted())
	}
	d, err := mwl.Load(source, options...)
	if err != nil {
		return nil, definitionFailure(err, file)
	}
	if len(missing) > 0 {
		return nil, usage("add them to a --mock file; see 'mwl run --help'", "no mock for %s", strings.Join(missing, ", "))
	}
	for _, uri := range passed {
		fmt.Fprintf(a.err, "mwl: %s is not run: it lets every Result pass\n", oneLine(uri))
	}
	return d, nil
}

// definitionFailure is the error of a definition that does not load.
func definitionFailure(err error, file string) error {
	if _, ok := errors.AsType[*mwl.DefinitionError](err); ok {
		return &failure{exitProblem, fmt.Errorf("%s: %w", file, err), fmt.Sprintf("'mwl check %s' shows where", file)}
	}
	return err
}

// progress prints on a terminal, once a second, how far a long run is. It returns the
// function that ends it.
func (a *app) progress(execute *[]mwl.ExecuteOption) (stop func()) {
	f, ok := a.err.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	var p progress
	*execute = append(*execute, mwl.WithObserver(p.observer()))
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		begin := time.Now()
		shown := false
		for {
			select {
			case <-tick.C:
				shown = true
				fmt.Fprintf(f, "\r\x1b[K%s, %s", time.Since(begin).Round(time.Second), p.String())
			case <-quit:
				if shown {
					fmt.Fprint(f, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (a *app) writeTrace(trace *mwl.Trace, format string) error {
	if format == "tree" {
		_, err := fmt.Fprint(a.err, printable(trace.String()))
		return err
	}
	text, err := json.Marshal(trace)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.err, printableJSON(text))
	return err
}
