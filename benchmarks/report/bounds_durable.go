package main

import "github.com/surebus/eventbus/benchmarks/plan"

// durableBounds returns the bounds on the bus with a store. All runs flush every commit
// (synchronous=FULL).
func durableBounds() []bound {
	us := plan.Us
	accept := func(publishers int, rival string) func(lookup) float64 {
		return times(plan.Accept(publishers, rival), plan.Accept(publishers, us), plan.Time)
	}
	started := func(publishers int, rival string) func(lookup) float64 {
		return times(plan.Started(publishers, rival), plan.Started(publishers, us), plan.Time)
	}
	settled := func(publishers int, rival string) func(lookup) float64 {
		return times(plan.Settled(publishers, rival), plan.Settled(publishers, us), plan.Time)
	}
	// The two INSERTs only accept. They are also the yardstick of the runs that settle.
	settledAgainst := func(rival string) func(lookup) float64 {
		return times(plan.Accept(512, rival), plan.Settled(512, us), plan.Time)
	}
	const (
		single  = "throughput, against one INSERT per commit"
		grouped = "throughput, against a bare multi-row INSERT with grouped commits"
		one     = "durable, accepted, 1 publisher"
		beside  = "durable, accepted beside workers, 1 publisher"
		oneEnd  = "durable, accepted, handled and settled, 1 publisher"
		some    = "durable, accepted, 64 publishers"
		many    = "durable, accepted, 512 publishers"
		ended   = "durable, accepted, handled and settled, 64 publishers"
		all     = "durable, accepted, handled and settled, 512 publishers"

		sync = "a rival's event pays for a sync of the disk, an event of the bus for 20 to 35 µs of work: kept where a sync took 2 ms, missed where it takes 0.3 ms"
	)
	return []bound{
		{work: many, against: single, limit: 20, least: true, figure: accept(512, "insert"), left: sync},
		{work: some, against: single, limit: 10, least: true, figure: accept(64, "insert"), left: sync},
		{work: one, against: single, limit: 0.5, least: true, figure: accept(1, "insert")},
		{work: all, against: single, limit: 15, least: true, figure: settledAgainst("insert")},
		{work: many, against: grouped, limit: 0.3, least: true, figure: accept(512, "grouped"), left: "an event of the bus takes 20 to 35 µs beside the INSERT; 0.26 to 0.3 × in the runs so far"},
		{work: all, against: grouped, limit: 0.25, least: true, figure: settledAgainst("grouped")},
		{work: some, against: "faster than backlite", limit: 8, least: true, figure: accept(64, "backlite"), left: sync},
		{work: some, against: "faster than goqite", limit: 10, least: true, figure: accept(64, "goqite"), left: sync},
		{work: some, against: "faster than River's SQLite driver", limit: 20, least: true, figure: accept(64, "river"), left: sync},
		{work: ended, against: "faster than backlite", limit: 15, least: true, figure: settled(64, "backlite")},
		{work: ended, against: "faster than goqite", limit: 25, least: true, figure: settled(64, "goqite")},
		{work: ended, against: "faster than River's SQLite driver", limit: 30, least: true, figure: settled(64, "river")},
		{work: one, against: "throughput, against backlite", limit: 0.7, least: true, figure: accept(1, "backlite")},
		{work: beside, against: "throughput, against backlite", limit: 0.9, least: true, figure: started(1, "backlite")},
		{work: oneEnd, against: "throughput, against backlite", limit: 1, least: true, figure: settled(1, "backlite")},
	}
}
