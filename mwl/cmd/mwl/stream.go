package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// output is the standard output. It remembers the first error, so that no command needs
// to look at those of its prints.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (n int, err error) {
	if o.err == nil {
		n, o.err = o.w.Write(p)
	}
	return n, o.err
}

// line prints a value as JSON on one line.
func (a *app) line(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, printableJSON(text))
	return err
}

// maxBytes bounds inputs, arguments, mocks and catalogs: a value that is larger exceeds
// the limit of the field that takes it.
var maxBytes = mwl.DefaultLimits().ValueBytes

// tooLargeError is the error of a file that exceeds its limit.
type tooLargeError struct{ limit int }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("it has more than %d bytes, the limit", e.limit)
}

// read reads a file, or the standard input for "-".
func (a *app) read(ctx context.Context, name string) ([]byte, error) {
	return a.readLimited(ctx, name, maxBytes, exitUsage)
}

// definition reads a definition.
func (a *app) definition(ctx context.Context, name string, untrusted bool) ([]byte, error) {
	limits := mwl.DefaultLimits()
	if untrusted {
		limits = mwl.UntrustedLimits()
	}
	return a.readLimited(ctx, name, limits.DefinitionBytes, exitProblem)
}

// readLimited reads up to limit bytes. tooLarge is the exit code if there are more.
func (a *app) readLimited(ctx context.Context, name string, limit, tooLarge int) ([]byte, error) {
	if name == "-" {
		if a.inRead {
			return nil, usage("give a file for one of them", "two arguments read the standard input")
		}
		a.inRead = true
	}
	data, err := within(ctx, func() ([]byte, error) {
		from := a.in
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			defer func() { _ = f.Close() }()
			from = f
		}
		return io.ReadAll(io.LimitReader(from, int64(limit)+1))
	})
	switch {
	case ctx.Err() != nil:
		return nil, &failure{exitProblem, fmt.Errorf("interrupted while reading %s", name), "run it again"}
	case err != nil:
		return nil, &failure{exitIO, err, "check the name of the file; - is the standard input"}
	case len(data) > limit:
		return nil, &failure{tooLarge, fmt.Errorf("%s: %w", name, &tooLargeError{limit}), "make it smaller"}
	}
	return data, nil
}

// within returns what f returns, or the error of ctx if that ends first. f then goes on:
// nothing ends the read of a pipe that nobody writes to.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type returned struct {
		v   T
		err error
	}
	done := make(chan returned, 1)
	go func() {
		v, err := f()
		done <- returned{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// parse reads JSON as strictly as definitions are read: a member that repeats, or text
// that is not UTF-8, is an error.
func parse(source []byte) (*strictjson.Node, error) {
	root, problems, _ := strictjson.Parse(source, strictjson.Limits{Problems: 1})
	if len(problems) > 0 {
		return nil, &problems[0]
	}
	return root, nil
}
