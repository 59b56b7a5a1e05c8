package mwl

import (
	"strconv"
	"time"

	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// The binding roots, as objects whose members are made when an expression reads
// them.

var (
	executionNames = []string{"id", "metadata", "platform"}
	frameNames     = []string{"input", "metadata"}
)

// rooted gives the binding roots of a site.
type rooted interface{ Root(r expr.Root) any }

// Field is a member of the root execution.
func (x *execution) Field(name string) (any, bool) {
	switch name {
	case "id":
		return x.id, true
	case "metadata":
		return record(x.now, time.Time{}), true
	case "platform":
		x.platformOnce.Do(x.addEvent)
		return x.platform, true
	default:
		return nil, false
	}
}

// FieldNames are the members of the root execution.
func (x *execution) FieldNames() []string { return executionNames }

// record is a metadata record; exitedAt is left out while it is zero.
func record(enteredAt, exitedAt time.Time) map[string]any {
	r := make(map[string]any, 4)
	r["enteredAt"] = temporal.FormatInstant(enteredAt)
	if !exitedAt.IsZero() {
		r["exitedAt"] = temporal.FormatInstant(exitedAt)
	}
	return r
}

// Root gives the roots that every expression of the frame sees.
func (f *frame) Root(r expr.Root) any {
	switch r {
	case expr.Vars:
		return f.vars
	case expr.Execution:
		return f.x
	case expr.Frame:
		return (*frameFields)(f)
	case expr.Failure:
		if f.failure == nil {
			return nil
		}
		return f.failure.object
	default:
		return nil
	}
}

// frameFields is the root frame: a frame from within.
type frameFields frame

func (f *frameFields) Field(name string) (any, bool) {
	switch name {
	case "input":
		return f.input, true
	case "metadata":
		return record(f.enteredAt, time.Time{}), true
	default:
		return nil, false
	}
}

func (f *frameFields) FieldNames() []string { return frameNames }

// flowFields is the window flow: a completed frame.
type flowFields frame

var flowNames = []string{"input", "metadata", "vars", "result"}

func (f *flowFields) Field(name string) (any, bool) {
	switch name {
	case "input":
		return f.input, true
	case "metadata":
		return record(f.enteredAt, f.exitedAt), true
	case "vars":
		return f.vars, true
	case "result":
		return f.result.object(), true
	default:
		return nil, false
	}
}

func (f *flowFields) FieldNames() []string { return flowNames }

// Root gives what the fields of a Step see.
func (s *stepRun) Root(r expr.Root) any {
	switch r {
	case expr.Step:
		return (*stepFields)(s)
	case expr.Match:
		return (*matchFields)(s)
	default:
		return s.f.Root(r)
	}
}

// Now is the Step's entry.
func (s *stepRun) Now() time.Time { return s.enteredAt }

// Clock is the time.
func (s *stepRun) Clock() time.Time { return s.f.x.instant() }

// stepFields is the root step.
type stepFields stepRun

var (
	stepNames        = []string{"name", "id", "action", "input", "metadata"}
	stepResultNames  = []string{"name", "id", "action", "input", "metadata", "result"}
	stepResultsNames = []string{"name", "id", "action", "input", "metadata", "results"}
)

func (s *stepFields) Field(name string) (any, bool) {
	switch name {
	case "name":
		return s.step.Name, true
	case "id":
		return (*stepRun)(s).id(), true
	case "action":
		return s.step.Action.String(), true
	case "input":
		return s.input, true
	case "metadata":
		metadata := record(s.enteredAt, s.exitedAt)
		if s.enumerated {
			metadata["dispatchCount"] = float64(s.dispatches)
		}
		return metadata, true
	case "result":
		if s.result == nil {
			return nil, false
		}
		return s.result.object(), true
	case "results":
		return s.results, s.results != nil
	default:
		return nil, false
	}
}

func (s *stepFields) FieldNames() []string {
	switch {
	case s.result != nil:
		return stepResultNames
	case s.results != nil:
		return stepResultsNames
	default:
		return stepNames
	}
}

func (s *stepRun) id() string { return "step-" + strconv.FormatInt(s.number, 10) }

// matchFields is the root match: its record is the Step's.
type matchFields stepRun

func (s *matchFields) Field(name string) (any, bool) {
	switch name {
	case "input":
		return s.shaped, true
	case "metadata":
		return record(s.enteredAt, s.exitedAt), true
	default:
		return nil, false
	}
}

func (s *matchFields) FieldNames() []string { return frameNames }

// Root gives what the fields of a call object see.
func (c *callRun) Root(r expr.Root) any {
	switch r {
	case expr.Call:
		return (*callFields)(c)
	case expr.Flow:
		if c.frame == nil {
			return nil
		}
		return (*flowFields)(c.frame)
	case expr.Provider:
		return (*providerFields)(c)
	default:
		return c.outer.Root(r)
	}
}

// Now is the Call's entry.
func (c *callRun) Now() time.Time { return c.enteredAt }

// Clock is the time.
func (c *callRun) Clock() time.Time { return c.f.x.instant() }

// callFields is the root call.
type callFields callRun

func (c *callFields) Field(name string) (any, bool) {
	switch name {
	case "input":
		return c.input, true
	case "metadata":
		metadata := record(c.enteredAt, c.exitedAt)
		if !c.dispatchedAt.IsZero() {
			metadata["dispatchedAt"] = temporal.FormatInstant(c.dispatchedAt)
		}
		if !c.exitedAt.IsZero() {
			metadata["acceptedAt"] = temporal.FormatInstant(c.exitedAt)
		}
		return metadata, true
	case "index":
		return float64(c.index), c.index >= 0
	case "result":
		if !c.settled {
			return nil, false
		}
		return c.result.object(), true
	default:
		return nil, false
	}
}

func (c *callFields) FieldNames() []string {
	names := []string{"input", "metadata"}
	if c.index >= 0 {
		names = append(names, "index")
	}
	if c.settled {
		names = append(names, "result")
	}
	return names
}

// providerFields is the window provider.
type providerFields callRun

var providerNames = []string{"input", "result", "metadata"}

func (c *providerFields) Field(name string) (any, bool) {
	switch name {
	case "input":
		return c.payload, true
	case "result":
		return c.result.object(), true
	case "metadata":
		return c.metadata, true
	default:
		return nil, false
	}
}

func (c *providerFields) FieldNames() []string { return providerNames }

// Root gives what the fields of a phase block see.
func (p *phaseRun) Root(r expr.Root) any {
	if r == expr.Middleware {
		return (*middlewareFields)(p)
	}
	return p.entry.outer.Root(r)
}

// Now is the phase's entry.
func (p *phaseRun) Now() time.Time { return p.enteredAt }

// Clock is the time.
func (p *phaseRun) Clock() time.Time { return p.entry.f.x.instant() }

// middlewareFields is the root middleware.
type middlewareFields phaseRun

var (
	entryNames  = []string{"input", "metadata"}
	ascentNames = []string{"input", "metadata", "result"}
)

func (p *middlewareFields) Field(name string) (any, bool) {
	switch name {
	case "input":
		return p.entry.input, true
	case "metadata":
		return p.entry.metadata(p.enteredAt), true
	case "result":
		if p.result == nil {
			return nil, false
		}
		return p.result.object(), true
	default:
		return nil, false
	}
}

func (p *middlewareFields) FieldNames() []string {
	if p.result == nil {
		return entryNames
	}
	return ascentNames
}
