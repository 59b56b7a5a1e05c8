// Package mwl loads and runs workflow definitions of the Metolia Workflow
// Language: JSON documents whose Steps call providers, fan out, route, sleep,
// return and raise, with CEL expressions in between and middleware around.
//
// [Load] reads a definition and finds its mistakes; [Definition.Execute] runs it
// and always gives exactly one [Result]. What a definition can call is in a
// [Catalog]: Go functions with a parameter schema ([CallProvider]), and middleware
// written in Go ([Middleware]) beside the language's own Retry, Timeout, Loop and
// Finally.
package mwl
