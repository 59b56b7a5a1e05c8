// Package mwl loads and runs workflow definitions of the Metolia Workflow Language: JSON documents whose Steps call
// providers, fan out, route, sleep, return and raise, with CEL expressions and middleware.
//
//	definition, err := mwl.Load(source, mwl.WithCatalog(catalog)) // source is a JSON document
//	if err != nil {
//		return err // a *DefinitionError lists all problems
//	}
//	result := definition.Execute(ctx, input)
//	if err := result.Err(); err != nil {
//		return err
//	}
//	fmt.Println(result.Value)
//
// On a bus, [Definition.Subscribe] runs a definition for each event:
//
//	sub, err := definition.Subscribe(bus, "order.*", nil, eventbus.Named("checks"))
//
// [Load] reads a definition and reports its mistakes. [Definition.Execute] runs it and always returns exactly one
// [Result]. A [Catalog] has the Go functions that a definition can call, each with a parameter schema ([CallProvider]),
// and middleware written in Go ([Middleware]). Every catalog has the language's own Retry, Timeout, Loop and Finally.
package mwl
