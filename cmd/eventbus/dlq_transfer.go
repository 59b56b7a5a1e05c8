package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) dlqExport() *cobra.Command {
	var q eventbus.LetterQuery
	var output string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write dead letters as JSON lines or CSV, oldest first",
		Long: `Write dead letters as JSON lines or CSV, oldest first.

Both have the payloads. 'dlq import' reads JSON lines. In CSV, a text that a
spreadsheet would take for a formula begins with an apostrophe.`,
		Example: `  eventbus dlq export --type 'order.*' --output letters.jsonl
  eventbus dlq export --format csv > letters.csv`,
	}
	filterFlags(c, &q)
	c.Flags().StringVar(&output, "output", "", "`FILE` to make, readable by you only; the standard output without it")
	format := "jsonl"
	choiceFlag(c, &format, "format", "`FORMAT`", []string{"jsonl", "csv"})
	return a.with(c, func(ctx context.Context, b backend, _ []string) error {
		if output == "" {
			return a.export(ctx, b, a.out, q, format)
		}
		return a.exportFile(ctx, b, output, q, format)
	})
}

// exportFile makes a file with the letters. Until it is complete, it has another name: a part would look like the whole, also
// after the process was killed.
func (a *app) exportFile(ctx context.Context, b backend, output string, q eventbus.LetterQuery, format string) error {
	if _, err := os.Lstat(output); err == nil {
		return &fs.PathError{Op: "make", Path: output, Err: fs.ErrExist}
	}
	part := output + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return conflict("remove it if no export runs", "%s exists: it is of an export that still runs, or was killed", part)
	case err != nil:
		return err
	}
	err = a.export(ctx, b, f, q, format)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = rename(part, output)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(part))
	}
	return err
}

// rename renames a file, unless another one has the new name.
func rename(from, to string) error {
	switch err := os.Link(from, to); {
	case err == nil:
		return os.Remove(from)
	case errors.Is(err, fs.ErrExist):
		return err
	}
	if _, err := os.Lstat(to); err == nil { // of a file system without links
		return &fs.PathError{Op: "make", Path: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}

func (a *app) export(ctx context.Context, b backend, w io.Writer, q eventbus.LetterQuery, format string) error {
	buffered := bufio.NewWriterSize(w, 64<<10)
	var to io.Writer = &jsonLines{w: buffered}
	var table *csvLetters
	if format == "csv" {
		table = newCSVLetters(buffered)
		to = table
	}
	progress, end := a.bulkProgress("export")
	if isTerminal(w) { // the letters are there
		progress = nil
	}
	report, err := b.Export(ctx, to, q, progress)
	end()
	if table != nil {
		table.out.Flush()
		err = errors.Join(err, table.out.Error())
	}
	err = errors.Join(err, buffered.Flush())
	if isInterrupted(ctx, err) {
		if report.Exported == 0 {
			return failed("run the command again", "interrupted: nothing was exported yet")
		}
		return failed("run the command again, from the beginning", "interrupted: %s of %s were exported", count(report.Exported), plural(report.Matched, "letter"))
	}
	a.notef("exported %s of %s", count(report.Exported), plural(report.Matched, "letter"))
	if report.Gone > 0 {
		a.notef(", %s gone meanwhile", count(report.Gone))
	}
	a.notef("\n")
	for _, u := range report.Unexported {
		a.notef("%s cannot be exported: %s\n", u.ID, term.Escape(u.Err.Error()))
	}
	if err == nil && len(report.Unexported) > 0 {
		err = failed("'eventbus dlq show ID' shows these letters", "%s not exported", plural(len(report.Unexported), "letter"))
	}
	return err
}

// jsonLines escapes the lines of an export for terminals.
type jsonLines struct{ w io.Writer }

func (j *jsonLines) Write(line []byte) (int, error) {
	if _, err := j.w.Write(term.EscapeJSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// csvLetters converts the lines of an export to CSV. Each call of Write is a line.
type csvLetters struct{ out *csv.Writer }

var csvColumns = []string{
	"id", "died_at", "type", "event_id", "key", "subscription", "reason", "attempts", "replays", "class", "error", "fingerprint", "published", "payload",
}

func newCSVLetters(w io.Writer) *csvLetters {
	c := &csvLetters{csv.NewWriter(w)}
	_ = c.out.Write(csvColumns) // the writer keeps its error
	return c
}

func (c *csvLetters) Write(line []byte) (int, error) {
	l, err := decodeLetter(line)
	if err != nil {
		return 0, err
	}
	class := ""
	if n := len(l.Failures); n > 0 {
		class = l.Failures[n-1].Class
	}
	row := []string{
		l.ID.String(), timeText(l.DiedAt), l.Event.Type, l.Event.ID.String(), l.Event.Key, l.Subscription, string(l.Reason),
		fmt.Sprint(l.Attempts), fmt.Sprint(l.Replays), class, lastError(&l), l.Fingerprint, timeText(l.Event.Time), string(payloadBytes(l.Event.Payload)),
	}
	for i := range row {
		row[i] = csvCell(row[i])
	}
	if err := c.out.Write(row); err != nil {
		return 0, err
	}
	return len(line), nil
}

// csvCell returns a text that a spreadsheet shows as a text. It puts an apostrophe before a text that begins
// like a formula, and escapes control characters but newlines and tabs.
func csvCell(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if s = term.EscapeLines(s); s != "" && strings.ContainsRune("=+-@\t\n＝＋－＠", firstRune(s)) {
		return "'" + s
	}
	return s
}

func firstRune(s string) rune {
	r, _ := utf8.DecodeRuneInString(s)
	return r
}

// decodeLetter decodes a letter from JSON and keeps the bytes of its payloads.
func decodeLetter(text []byte) (eventbus.DeadLetter, error) {
	var l eventbus.DeadLetter
	in := struct {
		*eventbus.DeadLetter
		Event struct {
			eventbus.Event
			Payload json.RawMessage `json:"payload"`
		} `json:"event"`
		Original json.RawMessage `json:"original"`
	}{DeadLetter: &l}
	if err := json.Unmarshal(text, &in); err != nil {
		return l, err
	}
	l.Event, l.Event.Payload, l.Original = in.Event.Event, rawPayload(in.Event.Payload), rawPayload(in.Original)
	return l, nil
}

func rawPayload(text json.RawMessage) any {
	if text == nil || bytes.Equal(text, []byte("null")) {
		return nil
	}
	return text
}

func (a *app) dlqImport() *cobra.Command {
	c := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Add the dead letters that export wrote as JSON lines",
		Long: `Add the dead letters that export wrote as JSON lines.

It reads the whole file, or the standard input without one, before it adds a
letter. It skips letters that are there already, so an import can be repeated:
after an error, the same import continues where it stopped.`,
	}
	a.operatorFlags(c)
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		if err := a.checkOperator(b); err != nil {
			return err
		}
		in := a.in
		if len(args) == 0 && isTerminal(in) {
			return usage("give a FILE, or redirect one to the standard input", "no letters: the input is a terminal")
		}
		if len(args) == 1 {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close() //nolint:errcheck // it was only read
			in = f
		}
		letters := newInterruptible(ctx, in)
		defer letters.stop()
		progress, end := a.bulkProgress("import")
		report, err := b.Import(ctx, letters, a.operator(), progress)
		end()
		if isInterrupted(ctx, err) {
			return interruptedImport(b, letters, report)
		}
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(report)
		}
		a.printf("imported %s, skipped %s\n", plural(report.Imported, "letter"), count(report.Skipped))
		if report.Resumed > 0 {
			a.notef("continued behind %s of an import that did not complete\n", plural(report.Resumed, "letter"))
		}
		if report.Evicted > 0 {
			a.notef("%s evicted: the queue of the bus was full; raise WithDeadLetterCapacity\n", plural(report.Evicted, "old letter"))
		}
		return nil
	})
}
