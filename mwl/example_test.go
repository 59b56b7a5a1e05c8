package mwl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/surebus/eventbus/mwl"
)

func Example() {
	catalog, err := mwl.NewCatalog(mwl.CallProvider{
		URI:        "mwl:provider.call/shop/price/v1",
		CodePrefix: "Price",
		Parameters: json.RawMessage(`{"type":"object","required":["currency"],"properties":{"currency":{"type":"string"}}}`),
		Failures:   mwl.FailureCatalog{Closed: []string{"Provider.Call.Price.Unknown"}},
		Call: func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
			if r.Input != "apple" {
				return mwl.CallResponse{}, &mwl.Failure{Code: "Provider.Call.Price.Unknown", Message: fmt.Sprint("no price for ", r.Input)}
			}
			return mwl.CallResponse{Value: map[string]any{"amount": 3, "currency": r.With["currency"]}}, nil
		},
	})
	if err != nil {
		panic(err)
	}
	definition, err := mwl.Load([]byte(`{
		"$schema": "https://mwl.dev/v0.1/flow/schema.json",
		"parameters": {"type": "object", "properties": {"currency": {"type": "string", "default": "EUR"}}},
		"entrypoint": "price",
		"steps": {
			"price": {
				"action": "Call",
				"call": {"provider": "mwl:provider.call/shop/price/v1", "with": {"currency": "{{ vars.currency }}"}},
				"next": "done"
			},
			"done": {"action": "Return", "value": "{{ string(step.input.amount) + ' ' + step.input.currency }}"}
		}
	}`), mwl.WithCatalog(catalog))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	fmt.Println(definition.Execute(ctx, "apple").Value)
	fmt.Println(definition.Execute(ctx, "apple", mwl.WithArguments(map[string]any{"currency": "CHF"})).Value)
	fmt.Println(definition.Execute(ctx, "stone").Err())
	// Output:
	// 3 EUR
	// 3 CHF
	// Provider.Call.Price.Unknown: no price for stone
}

// run executes the definition whose members, $schema apart, are given, and prints
// the Result.
func run(members string, input any) {
	definition, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", ` + members + `}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := json.Marshal(definition.Execute(context.Background(), input))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(result))
}

// A Call runs a provider or a Flow, and routes on what comes of it.
func Example_call() {
	run(`"entrypoint": "pay", "steps": {
		"pay": {
			"action": "Call",
			"call": {
				"provider": "mwl:provider.call/mwl/mock/v1",
				"with": {"failure": {"code": "Provider.Call.Card.Declined", "message": "no funds"}}
			},
			"next": "done",
			"catch": [{"match": {"codes": ["Provider.Call.Card.*"]}, "output": "{{ failure.message }}", "next": "done"}]
		},
		"done": {"action": "Return"}
	}`, nil)
	// Output: {"type":"success","value":"no funds"}
}

// A Call can run a Flow, which has variables of its own.
func Example_subflow() {
	run(`"flows": {
		"Greet": {
			"parameters": {"type": "object", "required": ["greeting"], "properties": {"greeting": {"type": "string"}}},
			"entrypoint": "done",
			"steps": {"done": {"action": "Return", "value": "{{ vars.greeting + ', ' + step.input }}"}}
		}
	},
	"entrypoint": "greet", "steps": {
		"greet": {"action": "Call", "call": {"flow": "Greet", "with": {"greeting": "Hello"}}, "next": "done"},
		"done": {"action": "Return"}
	}`, "world")
	// Output: {"type":"success","value":"Hello, world"}
}

// A Gather dispatches a call for each element, all at once or a few at a time, and
// says how many must succeed.
func Example_gather() {
	run(`"entrypoint": "all", "steps": {
		"all": {
			"action": "Gather",
			"over": "{{ step.input }}",
			"call": {
				"provider": "mwl:provider.call/mwl/mock/v1",
				"with": {
					"value": "{{ call.input * 2.0 }}",
					"failure": "{{ call.input == 2 ? {'code': 'Odd.One'} : null }}"
				}
			},
			"concurrency": 2,
			"completion": {"successes": 2},
			"output": "{{ step.results.map(r, r.type == 'success' ? r.value : r.code) }}",
			"next": "done"
		},
		"done": {"action": "Return"}
	}`, []int{1, 2, 3})
	// Output: {"type":"success","value":[2,"Odd.One",6]}
}

// The scatter form of a Gather makes calls that differ.
func Example_scatter() {
	run(`"entrypoint": "both", "steps": {
		"both": {
			"action": "Gather",
			"calls": [
				{"provider": "mwl:provider.call/mwl/mock/v1", "with": {"value": "a price"}},
				{"flow": {"entrypoint": "done", "steps": {"done": {"action": "Return", "value": "a stock"}}}}
			],
			"next": "done"
		},
		"done": {"action": "Return"}
	}`, nil)
	// Output: {"type":"success","value":["a price","a stock"]}
}

// A Match routes by the first predicate that holds.
func Example_match() {
	members := `"entrypoint": "size", "steps": {
		"size": {
			"action": "Match",
			"cases": [{"when": "{{ match.input > 100.0 }}", "output": "large", "next": "done"}],
			"default": {"output": "small", "next": "done"}
		},
		"done": {"action": "Return"}
	}`
	run(members, 7)
	run(members, 700)
	// Output:
	// {"type":"success","value":"small"}
	// {"type":"success","value":"large"}
}

// A Pass shapes the value and captures variables.
func Example_pass() {
	run(`"entrypoint": "shape", "steps": {
		"shape": {
			"action": "Pass",
			"output": "{{ {'name': step.input.split(' ')[0]} }}",
			"assign": {"whole": "{{ step.input }}"},
			"next": "done"
		},
		"done": {"action": "Return", "value": {"of": "{{ vars.whole }}", "is": "{{ step.input.name }}"}}
	}`, "Ada Lovelace")
	// Output: {"type":"success","value":{"is":"Ada","of":"Ada Lovelace"}}
}

// A Sleep waits for a duration, or until an instant.
func Example_sleep() {
	run(`"entrypoint": "pause", "steps": {
		"pause": {"action": "Sleep", "for": "PT0.01S", "next": "later"},
		"later": {"action": "Sleep", "until": "2001-01-01T00:00:00Z", "next": "done"},
		"done": {"action": "Return"}
	}`, "awake")
	// Output: {"type":"success","value":"awake"}
}

// A Return completes its Flow with a value.
func Example_return() {
	run(`"entrypoint": "done", "steps": {"done": {"action": "Return", "value": "{{ size(step.input) }}"}}`, []string{"a", "b"})
	// Output: {"type":"success","value":2}
}

// A Raise completes its Flow with a failure; what is being handled becomes its
// previous.
func Example_raise() {
	run(`"entrypoint": "call", "steps": {
		"call": {
			"action": "Call",
			"call": {"provider": "mwl:provider.call/mwl/mock/v1", "with": {"failure": {"code": "Stock.Empty"}}},
			"next": "done",
			"catch": [{"match": {"codes": ["*"]}, "next": "refuse"}]
		},
		"refuse": {"action": "Raise", "result": {"code": "Order.Refused"}},
		"done": {"action": "Return"}
	}`, nil)
	// Output: {"type":"error","code":"Order.Refused","previous":{"type":"error","code":"Stock.Empty"}}
}

// Retry runs again what a policy's matcher selects; assign carries over what the
// next attempt is to know.
func Example_retry() {
	run(`"parameters": {"type": "object", "properties": {"tries": {"default": 0}}},
	"entrypoint": "call", "steps": {
		"call": {
			"action": "Call",
			"call": {
				"provider": "mwl:provider.call/mwl/mock/v1",
				"with": {"value": "{{ vars.tries }}", "failure": "{{ vars.tries < 2 ? {'code': 'Net.Down'} : null }}"}
			},
			"middleware": [{
				"provider": "mwl:provider.middleware/mwl/retry/v1",
				"onEntry": {"with": {"policies": [
					{"match": {"codes": ["Net.*"]}, "attempts": 3, "backoff": {"initial": "PT0.001S", "rate": 2, "jitter": "full"}}
				]}},
				"onFailure": {"assign": {"tries": "{{ vars.tries + 1.0 }}"}}
			}],
			"next": "done"
		},
		"done": {"action": "Return"}
	}`, nil)
	// Output: {"type":"success","value":2}
}

// Timeout bounds what is inside of it.
func Example_timeout() {
	run(`"entrypoint": "call", "steps": {
		"call": {
			"action": "Call",
			"call": {"provider": "mwl:provider.call/mwl/mock/v1", "with": {"delay": "PT1H"}},
			"middleware": [{"provider": "mwl:provider.middleware/mwl/timeout/v1", "onEntry": {"with": {"duration": "PT0.01S"}}}],
			"next": "done",
			"catch": [{"match": {"types": ["timeout"]}, "output": "{{ failure.code }}", "next": "done"}]
		},
		"done": {"action": "Return"}
	}`, nil)
	// Output: {"type":"success","value":"Provider.Middleware.Timeout.Exceeded"}
}

// Loop runs again while its continuation holds; what a run gives, the next one gets.
func Example_loop() {
	run(`"entrypoint": "double", "steps": {
		"double": {
			"action": "Call",
			"call": {"provider": "mwl:provider.call/mwl/mock/v1", "with": {"value": "{{ call.input * 2.0 }}"}},
			"middleware": [{
				"provider": "mwl:provider.middleware/mwl/loop/v1",
				"onSuccess": {"when": "{{ middleware.result.value < 100.0 }}"}
			}],
			"next": "done"
		},
		"done": {"action": "Return"}
	}`, 3)
	// Output: {"type":"success","value":192}
}

// Finally makes its call on every way out. A cleanup that fails takes the place of
// what was on its way.
func Example_finally() {
	run(`"middleware": [{
		"provider": "mwl:provider.middleware/mwl/finally/v1",
		"onAlways": {"with": {"call": {
			"provider": "mwl:provider.call/mwl/mock/v1",
			"with": {"failure": {"code": "Lock.Lost"}}
		}}}
	}],
	"entrypoint": "fail", "steps": {"fail": {"action": "Raise", "result": {"code": "Work.Failed"}}}`, nil)
	// Output: {"type":"error","code":"Lock.Lost","previous":{"type":"error","code":"Work.Failed"}}
}

// A middleware of one's own: a cache, whose entries a phase keeps for the next.
func ExampleMiddleware() {
	stored := map[any]any{}
	catalog, err := mwl.NewCatalog(mwl.Middleware{
		URI:        "mwl:provider.middleware/shop/cache/v1",
		CodePrefix: "Cache",
		OnEntry: &mwl.PhaseAction{
			Kind:       mwl.Control,
			Parameters: json.RawMessage(`{"type":"object","required":["key"],"properties":{"key":{"type":"string"}}}`),
			Run: func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				r.State = r.With["key"]
				if value, hit := stored[r.State]; hit {
					return mwl.Substitute(mwl.Result{Value: value}), nil
				}
				return mwl.Decision{}, nil
			},
		},
		OnSuccess: &mwl.PhaseAction{
			Kind: mwl.SideEffect,
			Run: func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				stored[r.State] = r.Result.Value
				return mwl.Decision{}, nil
			},
		},
	})
	if err != nil {
		panic(err)
	}
	definition, err := mwl.Load([]byte(`{
		"$schema": "https://mwl.dev/v0.1/flow/schema.json",
		"entrypoint": "call",
		"steps": {
			"call": {
				"action": "Call",
				"call": {"provider": "mwl:provider.call/mwl/mock/v1", "with": {"value": "{{ call.input.value }}"}},
				"middleware": [{
					"provider": "mwl:provider.middleware/shop/cache/v1",
					"onEntry": {"with": {"key": "{{ middleware.input.key }}"}}
				}],
				"next": "done"
			},
			"done": {"action": "Return"}
		}
	}`), mwl.WithCatalog(catalog))
	if err != nil {
		panic(err)
	}
	for _, value := range []string{"first", "second"} {
		fmt.Println(definition.Execute(context.Background(), map[string]any{"key": "k", "value": value}).Value)
	}
	// Output:
	// first
	// first
}

// Load lists everything that is wrong, with the place and what to do.
func ExampleLoad_errors() {
	_, err := mwl.Load([]byte(`{
  "$schema": "https://mwl.dev/v0.1/flow/schema.json",
  "entrypoint": "start",
  "steps": {
    "begin": {"action": "Pass", "output": "{{ step. }}", "next": "end"},
    "done": {"action": "Return"}
  }
}`))
	var refused *mwl.DefinitionError
	if errors.As(err, &refused) {
		for _, p := range refused.Problems {
			fmt.Println(p.Line, p.Pointer)
		}
	}
	// Output:
	// 3 /entrypoint
	// 5 /steps/begin/output
	// 5 /steps/begin/next
}

// A failure is an error, and its chain one for errors.As.
func ExampleFailure() {
	err := error(&mwl.Failure{Code: "Order.Refused", Previous: &mwl.Failure{Type: mwl.TypeTimeout, Code: mwl.CodeTimeoutExceeded}})
	for err != nil {
		fmt.Println(err)
		err = errors.Unwrap(err)
	}
	// Output:
	// Order.Refused
	// Provider.Middleware.Timeout.Exceeded
}

// Schema serves an editor: save it as a file and name the file in the editor's
// settings for workflow definitions.
func ExampleSchema() {
	var schema struct {
		Title    string
		Required []string
	}
	fmt.Println(json.Unmarshal(mwl.Schema(), &schema))
	fmt.Println(schema.Title, schema.Required)
	// Output:
	// <nil>
	// Workflow definition [$schema entrypoint steps]
}

// A tool that does not run a definition takes any provider that the definition names.
func ExampleWithResolver() {
	definition, err := mwl.Load([]byte(`{
  "$schema": "https://mwl.dev/v0.1/flow/schema.json",
  "entrypoint": "charge",
  "steps": {
    "charge": {"action": "Call", "call": {"provider": "mwl:provider.call/shop/charge/v1", "with": {"amount": 5}}, "next": "done"},
    "done": {"action": "Return"}
  }
}`), mwl.WithResolver(func(uri string) (mwl.CatalogEntry, error) {
		fmt.Println("taken for granted:", uri)
		return mwl.CallProvider{
			URI: uri, CodePrefix: "Any",
			Parameters: json.RawMessage(`{"type": "object", "additionalProperties": true}`),
			Call: func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				return mwl.CallResponse{}, errors.New("the definition is not run")
			},
		}, nil
	}))
	fmt.Println(err)
	fmt.Println(len(definition.Graph().Flows[0].Steps), "Steps")
	// Output:
	// taken for granted: mwl:provider.call/shop/charge/v1
	// <nil>
	// 2 Steps
}
