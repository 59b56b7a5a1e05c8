package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Durable is the name of the workload of the rivals that keep events on disk. Each of its rivals has a
// Program.
const Durable = "Durable"

// DurablePublishers are the numbers of concurrent publishers of the workload Durable.
var DurablePublishers = []int{1, 64, 512}

const (
	mattn     = "github.com/mattn/go-sqlite3"
	modernc   = "modernc.org/sqlite"
	zombiezen = "zombiezen.com/go/sqlite"

	// The kinds of the cases of the workload Durable.
	accept, started, settled = "accept", "started", "settled"
)

// durableRivals are the rivals of the workload Durable.
var durableRivals = []Rival{
	{Name: "insert", Title: "one INSERT per commit", Program: "rows", Synchronous: "FULL", Driver: zombiezen, Yardstick: true},
	{Name: "grouped", Title: "bare multi-row INSERT, grouped commits", Program: "rows", Synchronous: "FULL", Driver: zombiezen, Yardstick: true},
	{Name: "bbolt", Title: "bbolt, commits grouped by hand", Module: "go.etcd.io/bbolt", Program: "bbolt", Yardstick: true},
	{
		Name: "backlite", Title: "backlite", Module: "github.com/mikestefanello/backlite", Program: "backlite", Synchronous: "FULL", Driver: mattn, Cgo: true,
		Can: Abilities{Errors: yes, Panics: yes, Timeout: "cancels, does not abandon", Retry: "fixed backoff", DeadLetters: "a table, by retention", Bounded: "on disk"},
	},
	{
		Name: "goqite", Title: "goqite", Module: "maragu.dev/goqite", Program: "goqite", Synchronous: "FULL", Driver: mattn, Cgo: true,
		Can: Abilities{Errors: "redelivered after a timeout", Panics: "with its job runner", Retry: "after a timeout", Bounded: "on disk"},
	},
	{
		Name: "river", Title: "River, SQLite driver", Module: "github.com/riverqueue/river", Program: "river", Synchronous: "FULL", Driver: modernc,
		Settles: 200 * time.Millisecond,
		Can:     Abilities{Errors: yes, Panics: yes, Timeout: "cancels, does not abandon", Retry: yes, DeadLetters: "discarded jobs, kept 7 days", Bounded: "on disk"},
	},
	{Name: "backlite-normal", Title: "backlite, NORMAL: a power cut loses events", Module: "github.com/mikestefanello/backlite", Program: "backlite", Synchronous: "NORMAL", Driver: mattn, Cgo: true},
	{Name: "goqite-normal", Title: "goqite, NORMAL: a power cut loses events", Module: "maragu.dev/goqite", Program: "goqite", Synchronous: "NORMAL", Driver: mattn, Cgo: true},
}

// durableWorkloads are the workloads of systems that keep events on disk.
var durableWorkloads = []Workload{{
	Name:  Durable,
	Title: "Durable events",
	Text: "Events of 150 bytes of JSON in an embedded database on a real disk, with 1, 64 and 512 publishers. A publisher waits until its event is durable. The first tables show the acceptance alone: before the workers start, then beside workers that handle and settle the events. The others show the time until all events are handled and their completion is durable. " +
		"SQLite runs in WAL mode with `synchronous=FULL`: a commit returns after it is flushed to the disk. Each program reads the setting back. " +
		"The documentation of goqite and backlite opens SQLite through mattn/go-sqlite3 with `_journal=WAL` and no `_sync`. The driver then sets `synchronous=NORMAL`, and no commit is flushed. The rows with NORMAL show this: a crash of the process loses nothing, but a power cut or a crash of the system can lose events that were accepted, and can run handled events again. In all other rows each commit is flushed. " +
		"Each rival has one connection: goqite and River document it, and backlite is up to three times as fast with it as with several. River and backlite have 1,000 workers, goqite has one worker loop per processor. Other numbers were not faster in trials with 64 and 512 publishers. This bus has its default settings. In the tables without workers its subscription is paused: a bus that is not started leaves its events to the one that has the lease, as a standby does. " +
		"The first yardstick commits each event by itself. The second gathers the events that wait and inserts them in one commit. Both only accept, into a table with the columns of this bus's store and no indexes. bbolt has the same group commit, also for its deletions.",
	Shortest: 100 * time.Millisecond,
	Cases: []Case{
		durableCase(accept, 1, often(Us, "insert", "backlite"), "bbolt", "goqite", "river"),
		durableCase(accept, 64, nil, Us, "insert", "grouped", "bbolt", "backlite", "goqite", "river", "backlite-normal", "goqite-normal"),
		durableCase(accept, 512, often(Us, "insert"), "grouped", "bbolt", "backlite", "goqite", "river"),
		durableCase(started, 1, often(Us, "backlite"), "bbolt", "goqite", "river"),
		durableCase(settled, 1, often(Us, "backlite"), "bbolt", "goqite", "river"),
		durableCase(settled, 64, nil, Us, "bbolt", "backlite", "goqite", "river", "backlite-normal", "goqite-normal"),
		durableCase(settled, 512, often(Us), "bbolt", "backlite", "goqite", "river"),
	},
}}

// often names rivals whose figures are close to a bound.
func often(rivals ...string) []string { return rivals }

func durableCase(kind string, publishers int, often []string, rivals ...string) Case {
	title := map[string]string{
		accept:  "accepted",
		started: "accepted beside workers",
		settled: "accepted, handled and settled",
	}[kind]
	return Case{
		Name: durableName(kind, publishers), Title: title + ", " + count(publishers, "publisher"),
		Rivals: slices.Concat(often, rivals), Often: often, Unit: Time, More: []string{Rate},
	}
}

func durableName(kind string, publishers int) string {
	return fmt.Sprintf("%s,publishers=%d", kind, publishers)
}

// Accept is the run of a rival that only accepts events.
func Accept(publishers int, rival string) Run {
	return Run{Workload: Durable, Case: durableName(accept, publishers), Rival: rival}
}

// Started is the run of a rival that accepts events while its workers handle and settle them.
func Started(publishers int, rival string) Run {
	return Run{Workload: Durable, Case: durableName(started, publishers), Rival: rival}
}

// Settled is the run of a rival that accepts, handles and settles events.
func Settled(publishers int, rival string) Run {
	return Run{Workload: Durable, Case: durableName(settled, publishers), Rival: rival}
}

// DurableCase is a case of the workload Durable.
type DurableCase struct {
	Publishers int
	Handles    bool // workers handle the events
	Settles    bool // the time ends when all events have settled, not when they are accepted
}

// ParseDurable returns the case of the workload Durable that has a name.
func ParseDurable(name string) (DurableCase, error) {
	kind, n, ok := strings.Cut(name, ",publishers=")
	publishers, err := strconv.Atoi(n)
	if !ok || err != nil || publishers < 1 || (kind != accept && kind != started && kind != settled) {
		return DurableCase{}, fmt.Errorf("case %q: the names are such as %s", name, durableName(accept, 64))
	}
	return DurableCase{Publishers: publishers, Handles: kind != accept, Settles: kind == settled}, nil
}
