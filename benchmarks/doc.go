// Package benchmarks measures the bus beside what else one would use in its place,
// at the same work. Its workloads are benchmarks, a file each, and every rival is
// adapted to them in a file of its own; package plan says who takes part in what.
//
// The command report runs them, each rival in a process of its own, and writes
// RESULTS.md and charts:
//
//	(cd benchmarks && GOWORK=off go run ./report)
//
// One of them alone:
//
//	(cd benchmarks && GOWORK=off go test -run '^$' -bench 'Publish/subscribers=1/channel' .)
//
// The module is apart from the workspace, so that what the rivals need never
// touches the library's versions. It is not released and always builds with the
// library beside it; for routing it reaches into the library's internals, for how a
// publish finds the subscriptions, and no more.
package benchmarks
