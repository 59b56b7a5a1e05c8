// Package durable measures systems that keep events on disk: the bus with a store, and what Go
// programs embed instead.
//
// Each rival has a main package in a directory below this one, because two SQLite engines in one
// process are unsafe. The report builds these programs and runs each measurement in a process of its
// own. A program measures one case and prints one line of JSON, a Result.
//
// Run a single measurement:
//
//	(cd benchmarks && GOWORK=off go run ./durable/goqite -rival goqite -case accept,publishers=64)
package durable

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// Options describe the system that a rival opens.
type Options struct {
	// Dir is an empty directory for the rival's files.
	Dir string
	// Synchronous is the value of PRAGMA synchronous, FULL or NORMAL, or the value of synchronous_commit
	// of Postgres. Another program flushes every commit.
	Synchronous string
	// Publishers is the number of goroutines that call Accept.
	Publishers int
	// Handle is the handler of the events. If it is nil, the rival runs no workers: the case measures
	// only the acceptance.
	Handle func()
}

// System is an open rival.
type System struct {
	// Accept returns after the event is durable. Any number of goroutines call it.
	Accept func(Event) error
	// Settled reports whether the completion of all handled events is durable.
	Settled func() (bool, error)
	// Synchronous is the value that the rival has read back. It is empty for a rival that has no such
	// setting.
	Synchronous string
	// Close releases the files.
	Close func() error
}

// Open opens a rival.
type Open func(Options) (*System, error)

// Result is a measurement. A program prints it as JSON.
type Result struct {
	Rival           string  `json:"rival"`
	Case            string  `json:"case"`
	Events          int     `json:"events"`
	Seconds         float64 `json:"seconds"`
	EventsPerSecond float64 `json:"events_per_second"`
	Synchronous     string  `json:"synchronous,omitempty"`
	FileSystem      string  `json:"file_system"`
}

// DirVariable is the environment variable with the directory for the files of the rivals. It must be
// on a disk.
const DirVariable = "EVENTBUS_BENCH_DIR"

// Main is the main function of the program of the rivals of a workload that opens has by name.
func Main(workload string, opens map[string]Open) {
	if err := run(workload, opens, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "durable:", err)
		os.Exit(1)
	}
}

func run(workload string, opens map[string]Open, args []string) (err error) {
	flags := flag.NewFlagSet("durable", flag.ContinueOnError)
	rival := flags.String("rival", "", "`name` of the rival in the plan")
	kase := flags.String("case", "", "`name` of the case, such as accept,publishers=64, started,publishers=1 or settled,publishers=512")
	duration := flags.Duration("time", time.Second, "publish for this `duration`")
	base := flags.String("dir", os.Getenv(DirVariable), "`directory` for the files, on a disk; $"+DirVariable+" or the working directory by default")
	if err := flags.Parse(args); err != nil {
		return err
	}
	open, ok := opens[*rival]
	if !ok {
		return fmt.Errorf("-rival %q: this program has no such rival", *rival)
	}
	_, synchronous := plan.ProgramOf(plan.Run{Workload: workload, Case: *kase, Rival: *rival})
	c, err := plan.ParseDurable(*kase)
	if err != nil {
		return fmt.Errorf("-case: %w", err)
	}
	if *base == "" {
		*base = "."
	}
	disk, err := FileSystem(*base)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(*base, TempPattern)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	m := &measurement{publishers: c.Publishers, duration: *duration}
	options := Options{Dir: dir, Synchronous: synchronous, Publishers: c.Publishers}
	if c.Handles {
		options.Handle = m.handle
	}
	system, err := open(options)
	if err != nil {
		return fmt.Errorf("opening %s: %w", *rival, err)
	}
	if system.Synchronous != options.Synchronous {
		return fmt.Errorf("%s runs with synchronous=%q, want %q", *rival, system.Synchronous, options.Synchronous)
	}
	events, took, err := m.run(system, c.Settles)
	if err = errors.Join(err, system.Close()); err != nil {
		return fmt.Errorf("%s, %s: %w", *rival, *kase, err)
	}
	return json.NewEncoder(os.Stdout).Encode(Result{
		Rival: *rival, Case: *kase, Events: events, Seconds: took.Seconds(),
		EventsPerSecond: float64(events) / took.Seconds(), Synchronous: system.Synchronous, FileSystem: disk,
	})
}

// TempPattern is the pattern of the directories that measurements create and remove.
const TempPattern = ".durable-*"
