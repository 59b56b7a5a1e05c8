package plan

import (
	"slices"
	"time"
)

// Us is the name of this library's rows.
const Us = "eventbus"

// Rival is a row of the tables.
type Rival struct {
	// Name is the last part of the benchmark's name.
	Name string
	// Title is the name in the tables.
	Title string
	// Module is the path of the rival's module. It is empty if the rival needs only the standard
	// library.
	Module string
	// Settles is the shortest useful run. In a shorter run the rival's queues are still filling,
	// and an event seems to cost a quarter less.
	Settles time.Duration
	// Program is the directory in benchmarks/durable of the program that measures the rival in the
	// workload Durable.
	Program string
	// Synchronous is the value of PRAGMA synchronous. It is empty for a rival without SQLite.
	Synchronous string
	// Driver is the path of the module with the SQLite engine, if the rival brings none.
	Driver string
	// Cgo says that the program needs a C compiler.
	Cgo bool
	// Yardstick says that the rival is no library, but a limit to compare libraries with.
	Yardstick bool
	// Can lists what the rival's users need not write themselves.
	Can Abilities
}

// Abilities are the features of a rival. An empty field means no.
type Abilities struct {
	Wildcards, Errors, Panics, Timeout, Retry, Circuit, DeadLetters, Bounded, Wait string
}

const yes = "yes"

// Rivals are all rivals, in the order of the tables.
var Rivals = slices.Concat(generalRivals, durableRivals, postgresRivals)

// generalRivals are the rivals of the benchmarks.
var generalRivals = []Rival{
	{
		Name: Us, Title: "**this bus**", Module: "github.com/surebus/eventbus",
		Program: "eventbus", Synchronous: "FULL", Driver: zombiezen,
		Can: Abilities{yes, yes, yes, yes, yes, yes, yes, yes, yes},
	},
	{
		Name: "eventbus-all-globs", Title: "**this bus**, partial segments and inner `**` too", Module: "github.com/surebus/eventbus",
	},
	{Name: "call", Title: "plain function call", Can: Abilities{Errors: yes, Bounded: "nothing waits", Wait: yes}},
	{Name: "channel", Title: "Go channel (1,024), one receiver each", Can: Abilities{Bounded: yes, Wait: "by a reply channel"}},
	{Name: "goroutine", Title: "a goroutine per event", Can: Abilities{Wait: "by a WaitGroup"}},
	{
		Name: "kelindar", Title: "kelindar/event", Module: "github.com/kelindar/event",
		Can: Abilities{Bounded: yes},
	},
	{
		Name: "cskr", Title: "cskr/pubsub", Module: "github.com/cskr/pubsub/v2",
		Can: Abilities{Bounded: "yes, the slowest holds up all"},
	},
	{
		Name: "nats", Title: "NATS core, in process", Module: "github.com/nats-io/nats-server/v2",
		Can: Abilities{Wildcards: "whole segments", Bounded: "by dropping", Wait: "by replies"},
	},
	{
		Name: "asaskevich", Title: "asaskevich/EventBus", Module: "github.com/asaskevich/EventBus",
		Can: Abilities{Wait: "by handling inline"},
	},
	{
		Name: "tailscale", Title: "tailscale util/eventbus", Module: "tailscale.com",
	},
	{
		Name: "watermill", Title: "watermill gochannel", Module: "github.com/ThreeDotsLabs/watermill",
		Can: Abilities{Errors: "redelivered at once, without end", Wait: yes},
	},
	{
		Name: "watermill-router", Title: "watermill router, same protections", Module: "github.com/ThreeDotsLabs/watermill",
		Settles: 150 * time.Millisecond,
		Can:     Abilities{Errors: yes, Panics: yes, Timeout: "cancels, does not abandon", Retry: "sleeps in a goroutine", Circuit: yes, DeadLetters: "a topic", Wait: yes},
	},
	{
		Name: "watermill-middleware", Title: "watermill's middlewares", Module: "github.com/ThreeDotsLabs/watermill",
		Can: Abilities{Errors: yes, Panics: yes, Timeout: "cancels, does not abandon", Retry: "sleeps in a goroutine", Circuit: yes, DeadLetters: "a topic", Wait: yes},
	},
	{
		Name: "failsafe", Title: "failsafe-go: retry, breaker, timeout", Module: "github.com/failsafe-go/failsafe-go",
		Can: Abilities{Errors: yes, Timeout: "cancels, waits for the handler", Retry: "sleeps in a goroutine", Circuit: yes, Wait: yes},
	},
	{
		Name: "gobreaker", Title: "goroutine + timer + gobreaker", Module: "github.com/sony/gobreaker/v2",
		Can: Abilities{Errors: yes, Panics: "by hand", Timeout: yes, Circuit: yes, Wait: yes},
	},
	{
		Name: "withtimeout", Title: "context.WithTimeout + gobreaker", Module: "github.com/sony/gobreaker/v2",
		Can: Abilities{Errors: yes, Timeout: "cancels, does not abandon", Circuit: yes, Wait: yes},
	},
	{
		Name: "sublist-cache", Title: "NATS sublist with cache", Module: "github.com/nats-io/nats-server/v2",
		Can: Abilities{Wildcards: "whole segments"},
	},
	{
		Name: "sublist", Title: "NATS sublist without cache", Module: "github.com/nats-io/nats-server/v2",
		Can: Abilities{Wildcards: "whole segments"},
	},
	{
		Name: "globloop", Title: "gobwas/glob in a loop", Module: "github.com/gobwas/glob",
		Can: Abilities{Wildcards: yes},
	},
}

// RivalNamed is the rival with a name.
func RivalNamed(name string) (Rival, bool) {
	for _, r := range Rivals {
		if r.Name == name {
			return r, true
		}
	}
	return Rival{}, false
}
