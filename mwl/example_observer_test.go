package mwl_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/surebus/eventbus/mwl"
)

// retried is a definition whose call fails twice.
func retried() *mwl.Definition {
	definition, err := mwl.Load([]byte(`{
		"$schema": "https://mwl.dev/v0.1/flow/schema.json",
		"parameters": {"type": "object", "properties": {"tries": {"default": 0}}},
		"entrypoint": "charge",
		"steps": {
			"charge": {
				"action": "Call",
				"call": {
					"provider": "mwl:provider.call/mwl/mock/v1",
					"with": {"failure": "{{ vars.tries < 2.0 ? {'code': 'Card.Busy'} : null }}"}
				},
				"middleware": [{
					"provider": "mwl:provider.middleware/mwl/retry/v1",
					"onEntry": {"with": {"policies": [{"match": {"codes": ["Card.Busy"]}, "attempts": 3}]}},
					"onFailure": {"assign": {"tries": "{{ vars.tries + 1.0 }}"}}
				}],
				"next": "done"
			},
			"done": {"action": "Return"}
		}
	}`), mwl.WithClock(clock.NewMock()))
	if err != nil {
		panic(err)
	}
	return definition
}

// A Trace shows what an execution did. Values are shown only if ValueBytes asks for
// them. In a subscription, pass [mwl.WithExecuteOptions] with the same option, or use
// [mwl.Definition.WithObserver].
func ExampleTrace() {
	var trace mwl.Trace
	retried().Execute(context.Background(), 42, mwl.WithExecutionID("order-7"), mwl.WithObserver(trace.Observer()))
	fmt.Print(&trace)
	// Output:
	// execution order-7: success
	//        0s  flow
	//        0s    step charge (Call) → done
	//        0s      middleware mwl/retry/v1
	//        0s        phase onEntry
	//        0s        call mwl/mock/v1 run 1: error Card.Busy
	//        0s        phase onFailure run 1
	//        0s        wait run 1
	//        0s        call mwl/mock/v1 run 2: error Card.Busy
	//        0s        phase onFailure run 2
	//        0s        wait run 2
	//        0s        call mwl/mock/v1 run 3
	//        0s    step done (Return)
}

// The observer of a definition sees all its executions, also those of a handler.
func ExampleDefinition_WithObserver() {
	definition := retried().WithObserver(mwl.Observer{
		SpanBegun: func(_ context.Context, s mwl.Span) {
			if s.Kind == mwl.SpanWait {
				fmt.Printf("%s: run %d of %s failed\n", s.ExecutionID, s.Run, s.Pointer)
			}
		},
		SpanEnded: func(_ context.Context, s mwl.EndedSpan) {
			if s.Kind == mwl.SpanStep {
				fmt.Printf("%s: %s ended with %s after %s\n", s.ExecutionID, s.Name, s.Outcome, s.End.Sub(s.Start))
			}
		},
	})
	definition.Execute(context.Background(), nil, mwl.WithExecutionID("order-7"))
	// Output:
	// order-7: run 1 of /steps/charge/middleware/0 failed
	// order-7: run 2 of /steps/charge/middleware/0 failed
	// order-7: charge ended with success after 0s
	// order-7: done ended with success after 0s
}

// Spans of OpenTelemetry have a trace id of 16 bytes and span ids of 8. An execution is a
// trace: its id gives the one, and the ids of its spans give the others.
func ExampleTrace_Spans() {
	var trace mwl.Trace
	retried().Execute(context.Background(), nil, mwl.WithExecutionID("order-7"), mwl.WithObserver(trace.Observer()))
	for _, s := range trace.Spans()[:5] {
		hash := sha256.Sum256([]byte(s.ExecutionID))
		traceID, spanID, status := hex.EncodeToString(hash[:16]), otelID(s.ID), "Ok"
		if s.Outcome != mwl.TypeSuccess {
			status = "Error: " + s.Code
		}
		fmt.Println(traceID[:8], spanID, otelID(s.ParentID), s.Kind, s.Start.Format(time.RFC3339Nano), s.End.Format(time.RFC3339Nano), status)
	}
	// Output:
	// df8cf802 0000000000000001 0000000000000000 flow 1970-01-01T00:00:00Z 1970-01-01T00:00:00Z Ok
	// df8cf802 0000000000000002 0000000000000001 step 1970-01-01T00:00:00Z 1970-01-01T00:00:00Z Ok
	// df8cf802 0000000000000003 0000000000000002 middleware 1970-01-01T00:00:00Z 1970-01-01T00:00:00Z Ok
	// df8cf802 0000000000000004 0000000000000003 phase 1970-01-01T00:00:00Z 1970-01-01T00:00:00Z Ok
	// df8cf802 0000000000000005 0000000000000003 call 1970-01-01T00:00:00Z 1970-01-01T00:00:00Z Error: Card.Busy
}

func otelID(id uint64) string { return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, id)) }
