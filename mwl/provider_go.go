package mwl

import (
	"context"
	"errors"
	"fmt"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// goProvider runs a Go function as a call provider.
type goProvider struct {
	contract *definition.CallContract
	function func(ctx context.Context, request CallRequest) (CallResponse, error)
	// errorCode is that of failures which the function did not name.
	errorCode string
}

func (g *goProvider) call(ctx context.Context, c *callRun, with map[string]any) (outcome, map[string]any) {
	request := CallRequest{With: map[string]any{}, ExecutionID: c.f.x.id, Index: c.index}
	if c.step != nil {
		request.StepID = c.step.id()
	}
	var (
		o        outcome
		metadata = map[string]any{}
	)
	run := isolated
	if c.hired {
		run = recovered
	}
	err := run(func() error {
		if with != nil {
			request.With, _ = value.Copy(with).(map[string]any)
		}
		request.Input = value.Copy(c.payload)
		response, err := g.function(ctx, request)
		reported, invalid := g.report(response.Metadata)
		if invalid != nil {
			return invalid
		}
		metadata = reported
		if err != nil {
			// Here, because the methods of an error are somebody else's, too.
			o = failed(failureOf(err, g.errorCode, g.contract.Failures, nil, nil))
			return nil
		}
		v, err := value.Of(response.Value)
		if err != nil {
			return fmt.Errorf("its value has no JSON form: %w", err)
		}
		o = succeeded(v)
		return nil
	})
	if err != nil {
		o = failed(failureOf(err, g.errorCode, g.contract.Failures, nil, nil))
	}
	return o, metadata
}

// report is the metadata that the provider reports, which its schema has to allow.
func (g *goProvider) report(members map[string]any) (map[string]any, error) {
	if len(members) == 0 {
		return map[string]any{}, nil
	}
	v, err := value.Of(members)
	if err != nil {
		return nil, fmt.Errorf("its metadata has no JSON form: %w", err)
	}
	reported, _ := v.(map[string]any)
	if violation := g.contract.Metadata.Validate(reported); violation != nil {
		return nil, fmt.Errorf("its metadata is not what it declares: %s", violation.Message())
	}
	return reported, nil
}

// failureOf is the failure that an error of somebody else's function is. A failure
// whose code is not declared is the cause of one that is. The error's own methods
// may panic.
func failureOf(err error, errorCode string, declared definition.FailureCatalog, given *failure, exported *Failure) (read *failure) {
	defer func() {
		if p := recover(); p != nil {
			read = newError(errorCode, fmt.Sprintf("its error of type %T panicked: %s", err, panicText(p)))
		}
	}()
	named, ok := errors.AsType[*Failure](err)
	switch {
	case !ok:
		return newError(errorCode, err.Error())
	case named == nil:
		return newError(errorCode, "its error is a nil *mwl.Failure")
	}
	f, err := importFailure(named, given, exported)
	switch {
	case err != nil:
		return newError(errorCode, fmt.Sprintf("the details of its failure %s have no JSON form: %v", named.Code, err))
	case f == given:
		return f
	case f.typ == TypeSuccess:
		return newError(errorCode, fmt.Sprintf("its failure %s is of the type success", f.code))
	case f.code != errorCode && !definition.MatchesCode(declared.Closed, f.code) && !definition.MatchesCode(declared.Open, f.code):
		return newFailure(TypeError, errorCode, fmt.Sprintf("its failure %s is not in its catalog", f.code), nil, f)
	default:
		return f
	}
}
