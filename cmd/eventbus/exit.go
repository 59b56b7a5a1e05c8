package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"unicode"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/sqlite"
)

// The exit codes. exitCodes documents them.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitNotFound = 3
	exitConflict = 4
	exitDamaged  = 5
)

const exitCodes = `The command ends with one of these codes:

  0  success
  1  any other failure, an interrupt, or letters that could not be replayed
  2  usage: an unknown flag, a missing or invalid argument, no confirmation
  3  not found: no such letter, event, subscription or file
  4  conflict: the state changed meanwhile, another process holds the file, or the
     process that runs the bus, or the store, does not answer in time
  5  damaged: the file is damaged, or is not a store
`

// failure is an error with its exit code and what to do next.
type failure struct {
	code int
	err  error
	next string // what to do, or ""
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func usage(next, format string, args ...any) error {
	return &failure{exitUsage, fmt.Errorf(format, args...), next}
}

func conflict(next, format string, args ...any) error {
	return &failure{exitConflict, fmt.Errorf(format, args...), next}
}

func notFound(next, format string, args ...any) error {
	return &failure{exitNotFound, fmt.Errorf(format, args...), next}
}

func failed(next, format string, args ...any) error {
	return &failure{exitFailure, fmt.Errorf(format, args...), next}
}

// known are the errors of the bus and the store, with what to do. The first one that matches counts.
var known = []struct {
	err  error
	code int
	next string
}{
	{eventbus.ErrNotErased, exitFailure, "the letters are purged; end long reads of the file, such as a backup: the next checkpoint erases the payloads"},
	{eventbus.ErrNotFound, exitNotFound, "the letter may have been replayed or purged: see 'eventbus audit' and 'eventbus dlq list'"},
	{eventbus.ErrUnknownEvent, exitNotFound, "check the id: an event that was handled leaves the bus after a while"},
	{eventbus.ErrSettled, exitConflict, "'eventbus events show ID' shows what became of the event"},
	{eventbus.ErrNothingDone, exitConflict, "'eventbus events show ID' shows where the event is"},
	{eventbus.ErrNoSubscription, exitConflict, "'eventbus subs list' shows the subscriptions"},
	{eventbus.ErrNameInUse, exitConflict, "look whether its deployment is right; to retire the name, end that process or deploy it without the subscription; a killed standby counts for up to an hour"},
	{eventbus.ErrCircuitDisabled, exitConflict, "'eventbus subs pause NAME' holds the deliveries without a circuit"},
	{eventbus.ErrNoAnswer, exitConflict, "look whether the program that runs the bus is stopped or hangs: it keeps the lease until its process ends"},
	{eventbus.ErrNoCatalog, exitNotFound, "start the program that runs the bus once, or use --url"},
	{sqlite.ErrOtherProgram, exitDamaged, "give the path of the store that the program opens"},
	{sqlite.ErrSchemaTooNew, exitFailure, "use the eventbus command of the version that the program was built with"},
	{sqlite.ErrNotMigrated, exitFailure, "open the file with the program once: it migrates the schema"},
	{sqlite.ErrLocked, exitConflict, "use the admin API of the program that has the file: --url; or stop that program"},
	{sqlite.ErrBusy, exitConflict, "try again: another process was writing for a long time"},
	{sqlite.ErrFull, exitFailure, "make room on the disk and try again"},
	{sqlite.ErrReplaced, exitConflict, "run the command again: the file is another one now"},
	{sqlite.ErrNetworkFileSystem, exitFailure, "run the command on the host of the file system"},
	{postgres.ErrServerTooOld, exitFailure, "use a newer server"},
	{postgres.ErrReadOnly, exitFailure, "name the primary"},
	{postgres.ErrNoRights, exitFailure, "give the role of the program, or grant this one the rights"},
	{postgres.ErrSchemaTooNew, exitFailure, "use the eventbus command of the version that the program was built with"},
	{postgres.ErrNotMigrated, exitFailure, "start the program that runs the bus: it makes and migrates the schema; or give its --schema"},
	{postgres.ErrOtherSchema, exitDamaged, "give the schema that the program uses (--schema), or restore it from a backup"},
	{fs.ErrPermission, exitFailure, "run the command as the user of the program: sudo -u USER eventbus ...; that user writes to the file and to its directory"},
	{syscall.EROFS, exitFailure, "the file system is read-only: copy the file with its -wal to another one"},
	{fs.ErrNotExist, exitNotFound, "check the path"},
	{fs.ErrExist, exitConflict, "give another path: the command overwrites no file"},
	{context.DeadlineExceeded, exitConflict, "look whether the program that runs the bus, or the disk or the server of the store, hangs; 'eventbus audit' shows what was done"},
	{context.Canceled, exitFailure, "run the command again"},
}

// describe returns an error with its exit code and what to do next. began is whether the command has begun:
// errors before that are errors of usage.
func describe(err error, began bool) *failure {
	if f := (*failure)(nil); errors.As(err, &f) {
		return &failure{f.code, err, f.next}
	}
	if !began {
		return &failure{exitUsage, err, "see 'eventbus help'"}
	}
	var (
		option  *eventbus.OptionError
		pattern *eventbus.PatternError
		invalid *eventbus.EventError
		line    *eventbus.ImportError
		corrupt *sqlite.CorruptError
		decode  *eventbus.DecodeError
		path    *sqlite.PathError
		server  *postgres.OptionError
	)
	switch {
	case errors.As(err, &option):
		return &failure{exitUsage, fmt.Errorf("%s %s: %s", flagOf(option.Option), option.Value, option.Reason), "correct the argument; --help explains it"}
	case errors.As(err, &server): // of --schema only
		return &failure{exitUsage, fmt.Errorf("--schema %s: %s", server.Value, server.Reason), "give the schema that the program uses"}
	case errors.As(err, &pattern), errors.As(err, &invalid):
		return &failure{exitUsage, err, "correct the argument; --help explains it"}
	case errors.As(err, &line):
		return &failure{exitFailure, err, "nothing was imported: correct the line, or export the letters again"}
	case errors.As(err, &corrupt), errors.As(err, &decode):
		return &failure{exitDamaged, err, "copy the file with its -wal and -lease before anything else, then run 'eventbus verify', and restore a backup"}
	case errors.As(err, &path):
		return &failure{exitFailure, err, "give another path"}
	}
	if errors.Is(err, context.Canceled) {
		err = interruptError{err}
	}
	for _, k := range known {
		if errors.Is(err, k.err) {
			return &failure{k.code, err, k.next}
		}
	}
	return &failure{exitFailure, err, "run the command again; if it fails again, 'eventbus verify' checks the store"}
}

// interruptError is an interrupt of a command that has nothing more to say about it.
type interruptError struct{ error }

func (e interruptError) Error() string { return "interrupted" }
func (e interruptError) Unwrap() error { return e.error }

// flagOf returns the flag for an option of the Go API, such as --metadata-name for
// LetterQuery.MetadataName.
func flagOf(option string) string {
	switch option {
	case "Because":
		return "--because"
	case "StopAfter":
		return "--stop-after-failures"
	case "HoldUntil":
		return "TIME"
	}
	if _, field, found := strings.Cut(option, "."); found {
		option = field
	}
	var b strings.Builder
	b.WriteString("-")
	for _, r := range option {
		if unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// report prints a failure.
func (a *app) report(f *failure) {
	text := strings.TrimPrefix(f.Error(), "eventbus: ")
	fmt.Fprintf(a.err, "eventbus: %s\n", term.EscapeLines(text))
	if f.next != "" {
		fmt.Fprintf(a.err, "next: %s\n", term.EscapeLines(f.next))
	}
}

// env returns an environment variable without surrounding space.
func env(name string) string { return strings.TrimSpace(os.Getenv(name)) }
