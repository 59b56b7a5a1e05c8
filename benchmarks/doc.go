// Package benchmarks compares the bus with other libraries at the same work. Each workload is
// a benchmark in a file of its own, and each rival has an adapter in a file of its own. Package
// plan lists the rivals of each workload.
//
// The command report runs the benchmarks, each rival in a process of its own, and writes
// RESULTS.md and charts:
//
//	(cd benchmarks && GOWORK=off go run ./report)
//
// The rivals that keep events on disk are programs of their own, see package durable. The report runs
// them, too. Those that keep events in Postgres need a server, see package server.
//
// To run a single benchmark:
//
//	(cd benchmarks && GOWORK=off go test -run '^$' -bench 'Publish/subscribers=1/channel' .)
//
// The module is not part of the workspace, so the requirements of the rivals never change the
// versions of the library. The module is not released and always builds with the library in the
// parent directory. The workload Routing imports the library's package internal/route. Two of the
// durable rivals need a C compiler.
package benchmarks
