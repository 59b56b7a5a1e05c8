package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/mwl"
)

// finding is a problem or a warning as --json prints it.
type finding struct {
	File     string `json:"file"`
	Severity string `json:"severity"` // error, warning or note
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Pointer  string `json:"pointer"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy,omitempty"`

	source []byte // the line
}

func (a *app) checkCommand() *cobra.Command {
	var (
		documents                         []string
		strict, deferArguments, untrusted bool
	)
	c := &cobra.Command{
		Use:   "check FILE...",
		Short: "Print the problems and warnings of definitions",
		Long: `Print the problems and warnings of definitions, each with its line, column and
JSON pointer, and what to do about it. - is the standard input. A file that cannot
be read ends with exit code 3, after the others have been checked.

Providers that no --catalog describes are taken for granted: their arguments are
not checked, and a note names them.`,
		Example: `  mwl check saga.json
  mwl check --strict --catalog providers/charge.json flows/*.json`,
	}
	c.Flags().StringArrayVar(&documents, "catalog", nil, "provider definition `FILE`; may be repeated")
	c.Flags().BoolVar(&strict, "strict", false, "end with exit code 1 for warnings, too")
	c.Flags().BoolVar(&deferArguments, "defer-arguments", false, "report literal arguments that are not valid as warnings, as the language's text says")
	c.Flags().BoolVar(&untrusted, "untrusted", false, "check under the limits for definitions that nobody vetted")
	a.jsonFlag(c)
	c.RunE = func(c *cobra.Command, files []string) error {
		if len(files) == 0 {
			return usage("name a file, or - for the standard input", "check needs a definition")
		}
		known, err := a.readCatalog(c.Context(), documents)
		if err != nil {
			return err
		}
		var options []mwl.LoadOption
		if deferArguments {
			options = append(options, mwl.DeferArgumentErrors())
		}
		if untrusted {
			options = append(options, mwl.Untrusted())
		}
		var t tally
		for _, file := range files {
			source, err := a.definition(c.Context(), file, untrusted)
			if f, ok := errors.AsType[*failure](err); ok && f.code == exitIO {
				a.report(err)
				t.unreadable++
				continue
			}
			var findings []finding
			if large, ok := errors.AsType[*tooLargeError](err); ok {
				findings, err = []finding{{File: file, Severity: "error", Message: large.Error(), Remedy: "make it smaller"}}, nil
			} else if err == nil {
				findings, err = check(file, source, known, options)
			}
			if err != nil {
				return err
			}
			t.add(findings)
			for _, f := range findings {
				if err := a.show(f); err != nil {
					return err
				}
			}
		}
		if !a.json {
			fmt.Fprintln(a.out, t.summary(strict))
		}
		return t.verdict(strict)
	}
	return c
}

// tally counts definitions.
type tally struct{ checked, bad, warned, unreadable int }

func (t *tally) add(findings []finding) {
	t.checked++
	has := func(severity string) bool {
		return slices.ContainsFunc(findings, func(f finding) bool { return f.Severity == severity })
	}
	switch {
	case has("error"):
		t.bad++
	case has("warning"):
		t.warned++
	}
}

func (t *tally) summary(strict bool) string {
	text := fmt.Sprintf("%s checked, %d with problems", counted(t.checked, "definition"), t.bad)
	if strict && t.warned > 0 {
		text += fmt.Sprintf(", %d with warnings, which --strict refuses", t.warned)
	}
	if t.unreadable > 0 {
		text += fmt.Sprintf("; %s cannot be read", counted(t.unreadable, "file"))
	}
	return text
}

func (t *tally) verdict(strict bool) error {
	switch {
	case t.unreadable > 0:
		return shown(exitIO)
	case t.bad > 0, strict && t.warned > 0:
		return shown(exitProblem)
	}
	return nil
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// check returns what it finds in a definition: problems, or warnings and notes.
func check(file string, source []byte, known *catalog, options []mwl.LoadOption) ([]finding, error) {
	lines := bytes.Split(source, []byte("\n"))
	d, unknown, err := load(source, known, options...)
	var findings []finding
	add := func(severity string, problems []mwl.Problem) {
		for _, p := range problems {
			f := finding{File: file, Severity: severity, Line: p.Line, Column: p.Column, Pointer: p.Pointer, Message: p.Message, Remedy: p.Remedy}
			if p.Line > 0 && p.Line <= len(lines) {
				f.source = bytes.TrimRight(lines[p.Line-1], "\r")
			}
			findings = append(findings, f)
		}
	}
	if refused, ok := errors.AsType[*mwl.DefinitionError](err); ok {
		add("error", refused.Problems)
		if refused.More > 0 {
			findings = append(findings, finding{File: file, Severity: "error", Message: fmt.Sprintf("there are %d more problems", refused.More), Remedy: "mend these first"})
		}
		return findings, nil
	}
	if err != nil {
		return nil, err
	}
	add("warning", d.Warnings())
	for _, uri := range unknown {
		findings = append(findings, finding{
			File: file, Severity: "note", Message: "no catalog describes " + uri + ", so its arguments are not checked", Remedy: "give its document with --catalog",
		})
	}
	return findings, nil
}

// show prints a finding, with the line of the source and a mark under the column.
func (a *app) show(f finding) error {
	if a.json {
		return a.line(f)
	}
	place := f.File
	if f.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
	}
	fmt.Fprintf(a.out, "%s: %s: %s", oneLine(place), f.Severity, oneLine(f.Message))
	if f.Remedy != "" {
		fmt.Fprintf(a.out, "; %s", oneLine(f.Remedy))
	}
	fmt.Fprintln(a.out)
	if f.Pointer != "" {
		fmt.Fprintf(a.out, "    at %s\n", oneLine(f.Pointer))
	}
	if len(f.source) > 0 {
		a.mark(f)
	}
	return nil
}

// The part of a long line that is shown: some characters before the column, which may
// be more than that in escapes.
const (
	columnsBefore = 60
	columnsAfter  = 60
)

// mark prints the line of the source and a caret under the column.
func (a *app) mark(f finding) {
	line := []rune(string(f.source)) // a byte that is not UTF-8 counts as a character, as in Column
	column := min(max(f.Column-1, 0), len(line))
	begin, end := max(0, column-columnsBefore), min(len(line), column+columnsAfter)
	before, after := string(line[begin:column]), string(line[column:end])
	if begin == 0 {
		before = strings.TrimLeft(before, " \t")
	} else {
		before = "…" + before
	}
	if end < len(line) {
		after += "…"
	}
	before, after = strings.ReplaceAll(before, "\t", " "), strings.ReplaceAll(after, "\t", " ")
	before, after = oneLine(before), oneLine(after)
	fmt.Fprintf(a.out, "    | %s%s\n    | %s^\n", before, after, strings.Repeat(" ", len([]rune(before))))
}
