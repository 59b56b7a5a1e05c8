package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/surebus/eventbus/mwl"
)

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

// progress counts what an execution has done.
type progress struct {
	steps, calls atomic.Int64
	last         atomic.Pointer[string]
}

func (p *progress) observer() mwl.Observer {
	return mwl.Observer{SpanBegun: func(_ context.Context, s mwl.Span) {
		switch s.Kind {
		case mwl.SpanStep:
			p.steps.Add(1)
			p.last.Store(&s.Name)
		case mwl.SpanCall:
			p.calls.Add(1)
		default:
		}
	}}
}

// String says how far the execution is.
func (p *progress) String() string {
	text := fmt.Sprintf("%s, %s", counted(int(p.steps.Load()), "step"), counted(int(p.calls.Load()), "call"))
	if last := p.last.Load(); last != nil {
		text += ", at " + shortened(oneLine(*last))
	}
	return text
}

// shownName is how much of a name a line of progress has: the line is to fit a terminal.
const shownName = 40

func shortened(name string) string {
	if runes := []rune(name); len(runes) > shownName {
		return string(runes[:shownName]) + "…"
	}
	return name
}
