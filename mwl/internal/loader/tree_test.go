package loader_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/loader"
	"github.com/surebus/eventbus/mwl/internal/schema"
)

func tree(t *testing.T, name string) *definition.Flow {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(testdata, "valid", name))
	require.NoError(t, err)
	root, problems, _ := loader.Load(source, options(t))
	require.Empty(t, problems)
	require.Equal(t, source, root.Source)
	return root.Flow
}

func literal(t *testing.T, f definition.Field) any {
	t.Helper()
	require.True(t, f.Written())
	v, ok := f.Template.Literal()
	require.True(t, ok, f.Pointer)
	return v
}

func source(t *testing.T, f definition.Field) string {
	t.Helper()
	require.True(t, f.Written())
	require.NotNil(t, f.Template.Program(), f.Pointer)
	return f.Template.Program().Source()
}

func TestTreeOfSteps(t *testing.T) {
	flow := tree(t, "everything.json")
	require.Equal(t, "Every action, and every field that each of them has.", flow.Comment)
	require.Empty(t, flow.Pointer)
	require.Equal(t, map[string]any{"attempts": 3.0, "wake": "2026-01-31T12:00:00Z"}, flow.Parameters.Defaults())
	require.Same(t, flow.Steps["shape"], flow.Entrypoint)
	for name, step := range flow.Steps {
		require.Equal(t, name, step.Name)
		require.Equal(t, "/steps/"+name, step.Pointer)
	}

	shape := flow.Steps["shape"]
	require.Equal(t, definition.ActionPass, shape.Action)
	require.Equal(t, "Pass.", shape.Comment)
	require.Equal(t, "/steps/shape/output", shape.Output.Pointer)
	require.Equal(t, []string{"items", "literal"}, []string{shape.Assign[0].Name, shape.Assign[1].Name})
	require.Equal(t, "/steps/shape/assign/items", shape.Assign[0].Value.Pointer)
	require.Same(t, flow.Steps["route"], shape.Next)

	route := flow.Steps["route"]
	require.Len(t, route.Match.Cases, 2)
	require.Equal(t, "/steps/route/cases/0", route.Match.Cases[0].Pointer)
	require.Equal(t, "The common case.", route.Match.Cases[0].Comment)
	require.Same(t, flow.Steps["each"], route.Match.Cases[0].Next)
	require.True(t, route.Match.Cases[0].Output.Written())
	require.False(t, route.Match.Cases[1].Output.Written())
	require.Nil(t, route.Match.Cases[0].Matcher)
	require.Same(t, flow.Steps["for"], route.Match.Default.Next)
	require.False(t, route.Match.Default.When.Written())
	require.Nil(t, route.Next)

	require.Equal(t, "PT0.5S", literal(t, flow.Steps["for"].For))
	require.False(t, flow.Steps["for"].Until.Written())
	require.True(t, flow.Steps["until"].Until.Written())

	each := flow.Steps["each"]
	require.True(t, each.Gather.Over.Written())
	require.Equal(t, "Check", each.Call.Flow.Name)
	require.Equal(t, "/flows/Check", each.Call.Flow.Pointer)
	require.Nil(t, each.Gather.Calls)
	require.False(t, each.Gather.Wait)
	require.Equal(t, 4, each.Gather.Concurrency)
	require.True(t, each.Gather.Successes.Written())
	require.Equal(t, []string{"System.GatherCompletionUnmet"}, each.Catch[0].Matcher.Codes)
	require.Nil(t, each.Catch[0].Matcher.Types)
	require.Nil(t, each.Catch[0].Matcher.Retryable)
	require.Same(t, flow.Steps["rejected"], each.Catch[0].Next)

	all := flow.Steps["all"]
	require.Nil(t, all.Call)
	require.Len(t, all.Gather.Calls, 2)
	require.Equal(t, "mwl:provider.call/mwl/mock/v1", all.Gather.Calls[0].Provider.URI)
	require.Nil(t, all.Gather.Calls[0].Flow)
	require.Nil(t, all.Gather.Calls[1].Provider)
	require.Equal(t, "/steps/all/calls/1/flow", all.Gather.Calls[1].Flow.Pointer)
	require.Same(t, schema.Empty, all.Gather.Calls[1].Flow.Parameters)
	require.True(t, all.Gather.Wait)
	require.Zero(t, all.Gather.Concurrency)
	require.InDelta(t, 1.0, literal(t, all.Gather.Successes), 0)

	charge := flow.Steps["charge"]
	require.Equal(t, map[string]any{"amount": 12.5}, literal(t, charge.Call.With))
	require.Equal(t, "provider.result.value", source(t, charge.Call.OnSuccessValue))
	require.Equal(t, "id", charge.Call.OnSuccessAssign[0].Name)
	require.Nil(t, charge.Call.OnFailureAssign)
	require.False(t, *charge.Catch[0].Matcher.Retryable)
	require.Equal(t, []string{"timeout", "cancellation"}, charge.Catch[1].Matcher.Types)
	require.Len(t, charge.Middleware, 1)

	declined := flow.Steps["declined"].Raise
	require.Equal(t, "/steps/declined/result", declined.Pointer)
	require.Equal(t, "Declined", literal(t, declined.Type))
	require.Equal(t, "Orders.Declined", literal(t, declined.Code))
	require.True(t, declined.Message.Written())
	require.True(t, declined.Details.Written())
	require.Nil(t, literal(t, declined.Retryable), "null is written")
	require.True(t, declined.Previous.Written())
	rejected := flow.Steps["rejected"].Raise
	require.False(t, rejected.Type.Written())
	require.Equal(t, true, literal(t, rejected.Retryable))
	require.Nil(t, flow.Steps["again"].Raise)
	require.True(t, flow.Steps["done"].Value.Written())
}

func TestTreeOfMiddleware(t *testing.T) {
	flow := tree(t, "everything.json")
	require.Len(t, flow.Middleware, 2)
	finally, cache := flow.Middleware[0], flow.Middleware[1]
	require.Equal(t, "/middleware/0", finally.Pointer)
	require.Equal(t, "Outermost: it has the last word.", finally.Comment)
	require.Equal(t, "mwl:provider.middleware/mwl/finally/v1", finally.Contract.URI)
	for phase, block := range finally.Blocks {
		require.NotNil(t, block, "blocks that are not written are empty")
		require.Equal(t, definition.Phase(phase) == definition.OnAlways, block.With.Written())
	}
	always := finally.Blocks[definition.OnAlways]
	require.True(t, always.When.Written())
	require.Empty(t, literal(t, always.With), "what is structural is not evaluated")
	require.Equal(t, "over", always.Assign[0].Name)
	call := always.Structural["call"].Call
	require.Equal(t, "mwl:provider.call/shop/charge/v1", call.Provider.URI)
	require.Equal(t, "The audit.", call.Comment)
	require.Equal(t, "/middleware/0/onAlways/with/call/input", call.Input.Pointer)
	require.Equal(t, "auditFailed", call.OnFailureAssign[0].Name)
	require.Equal(t, "The audit.", always.Structural["call"].Source.(map[string]any)["comment"])
	stack := always.Structural["middleware"].Stack
	require.Equal(t, "mwl:provider.middleware/mwl/timeout/v1", stack[0].Contract.URI)
	require.Equal(t, map[string]any{"duration": "PT5S"}, literal(t, stack[0].Blocks[definition.OnEntry].With))

	entry := cache.Blocks[definition.OnEntry]
	require.Equal(t, true, literal(t, entry.When))
	require.True(t, entry.Output.Written())
	require.True(t, cache.Blocks[definition.OnSuccess].Value.Written())
	failure := cache.Blocks[definition.OnFailure].Envelope
	require.Equal(t, "OrderFailure", literal(t, failure.Type))
	require.Nil(t, literal(t, failure.Previous))
	require.Nil(t, entry.Envelope)
	require.Nil(t, cache.Blocks[definition.OnAlways].Envelope)

	retry := flow.Steps["each"].Call.Flow.Steps["check"].Middleware[0]
	require.Nil(t, retry.Blocks[definition.OnFailure].Envelope, "no key of the envelope is written")
	require.Nil(t, retry.Blocks[definition.OnEntry].Structural)
}

func TestNamesOfFlowsResolveFromTheDeclaration(t *testing.T) {
	flow := tree(t, "nested.json")
	inner := flow.Steps["inner"].Call.Flow
	require.Equal(t, "/flows/Inner", inner.Pointer)
	require.Equal(t, "/flows/Outer/flows/Inner", flow.Steps["outer"].Call.Flow.Steps["call"].Call.Flow.Pointer)
	require.Same(t, inner, flow.Steps["inline"].Call.Flow.Steps["call"].Call.Flow)
}
