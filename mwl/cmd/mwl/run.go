package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

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
the call's arms read, delay how long the call takes, such as PT2S. Without value and
failure the call gives its input. Text with {{ }} in a mock stays text. A list of such objects
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
	c.RunE = func(c *cobra.Command, args []string) error {
		for _, name := range []string{"args", "trace"} {
			if flag := c.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
				return usage("give it a value, or leave it out", "--%s is empty", name)
			}
		}
		return a.execute(c.Context(), args[0], f)
	}
	return c
}

func (a *app) execute(ctx context.Context, file string, f runFlags) error {
	if f.trace != "" && f.trace != "tree" && f.trace != "json" {
		return usage("write --trace=tree or --trace=json", "--trace=%s is unknown", f.trace)
	}
	if f.timeout < 0 {
		return usage("write a duration such as 30s", "--timeout %s is negative", f.timeout)
	}
	input, err := a.value(ctx, "--input", f.input)
	if err != nil {
		return err
	}
	execute, err := a.options(ctx, f)
	if err != nil {
		return err
	}
	d, err := a.runnable(ctx, file, f)
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
	var untraced error
	if f.trace != "" {
		untraced = a.writeTrace(&trace, f.trace)
	}
	if err := a.line(result); err != nil {
		return err
	}
	if untraced != nil {
		return untraced
	}
	if result.Failure != nil {
		return shown(exitProblem)
	}
	return nil
}

// value reads a JSON value from a flag. Its numbers are json.Number: the execution refuses those that a double would change.
func (a *app) value(ctx context.Context, flag, text string) (v any, err error) {
	source := []byte(text)
	if name, file := strings.CutPrefix(text, "@"); file {
		source, err = a.read(ctx, name)
	} else if text == "-" {
		source, err = a.read(ctx, "-")
	}
	if err != nil {
		return nil, err
	}
	_, err = parse(source)
	if err == nil {
		in := json.NewDecoder(bytes.NewReader(source))
		in.UseNumber()
		err = in.Decode(&v)
	}
	if err != nil {
		return nil, usage("write JSON, or @FILE; a string needs its quotes", "%s is not valid JSON: %w", flag, err)
	}
	return v, nil
}

func (a *app) options(ctx context.Context, f runFlags) ([]mwl.ExecuteOption, error) {
	if f.arguments == "" {
		return nil, nil
	}
	v, err := a.value(ctx, "--args", f.arguments)
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
func (a *app) runnable(ctx context.Context, file string, f runFlags) (*mwl.Definition, error) {
	known, err := a.readCatalog(ctx, f.documents)
	if err != nil {
		return nil, err
	}
	mocks, err := a.readMocks(ctx, f.mocks)
	if err != nil {
		return nil, err
	}
	source, err := a.definition(ctx, file, f.untrusted)
	if err != nil {
		return nil, err
	}
	var missing, passed []string
	unused := mocks.uris()
	asked := func(uri string, _ bool) {
		delete(unused, uri)
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
		return nil, definitionFailure(err, file, f.checkFlags()...)
	}
	if len(missing) > 0 {
		return nil, usage("add them to a --mock file; see 'mwl run --help'", "no mock for %s", strings.Join(missing, ", "))
	}
	for _, uri := range passed {
		fmt.Fprintf(a.err, "mwl: %s is not run: it lets every Result pass\n", oneLine(uri))
	}
	for _, uri := range slices.Sorted(maps.Keys(unused)) {
		fmt.Fprintf(a.err, "mwl: the mock of %s is not used: no call of the definition names it\n", oneLine(uri))
	}
	return d, nil
}

// checkFlags are the flags of check with which it loads the definition as run does.
func (f runFlags) checkFlags() (flags []string) {
	if f.untrusted {
		flags = append(flags, "--untrusted")
	}
	for _, document := range f.documents {
		flags = append(flags, "--catalog", document)
	}
	return flags
}

// definitionFailure is the error of a definition that does not load. The flags are those
// with which check finds the same.
func definitionFailure(err error, file string, flags ...string) error {
	if _, ok := errors.AsType[*mwl.DefinitionError](err); !ok {
		return err
	}
	command := "mwl check"
	for _, word := range append(flags, file) {
		command += " " + shellWord(word)
	}
	return &failure{exitProblem, fmt.Errorf("%s: %w", oneLine(file), err), "this shows where: " + command}
}

// shellWord quotes what a shell would not take as one word.
func shellWord(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:@%+,=", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func (a *app) writeTrace(trace *mwl.Trace, format string) error {
	if format == "tree" {
		return traceFailure(fmt.Fprint(a.err, printable(trace.String())))
	}
	text, err := json.Marshal(trace)
	if err != nil {
		return err
	}
	return traceFailure(fmt.Fprintln(a.err, printableJSON(text)))
}

func traceFailure(_ int, err error) error {
	if err == nil {
		return nil
	}
	return &failure{exitIO, fmt.Errorf("the trace cannot be written: %w", err), "look where the standard error goes"}
}
