package main

import (
	"bytes"
	"errors"
	"fmt"
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
		documents           []string
		strict, asSpecified bool
	)
	c := &cobra.Command{
		Use:   "check FILE...",
		Short: "Print the problems and warnings of definitions",
		Long: `Print the problems and warnings of definitions, each with its line, column and
JSON pointer, and what to do about it. - is the standard input.

Providers that no --catalog describes are taken for granted: their arguments are
not checked, and a note names them.`,
		Example: `  mwl check saga.json
  mwl check --strict --catalog providers/charge.json flows/*.json`,
	}
	c.Flags().StringArrayVar(&documents, "catalog", nil, "provider definition `FILE`; may be repeated")
	c.Flags().BoolVar(&strict, "strict", false, "end with exit code 1 for warnings, too")
	c.Flags().BoolVar(&asSpecified, "defer-arguments", false, "report literal arguments that are not valid as warnings, as the language's text says")
	c.RunE = func(_ *cobra.Command, files []string) error {
		if len(files) == 0 {
			return usage("name a file, or - for the standard input", "check needs a definition")
		}
		known, err := a.readCatalog(documents)
		if err != nil {
			return err
		}
		var options []mwl.LoadOption
		if asSpecified {
			options = append(options, mwl.DeferArgumentErrors())
		}
		bad, refused := 0, false
		for _, file := range files {
			findings, err := a.check(file, known, options)
			if err != nil {
				return err
			}
			for _, f := range findings {
				refused = refused || f.Severity == "error" || strict && f.Severity == "warning"
				if err := a.show(f); err != nil {
					return err
				}
			}
			if len(findings) > 0 && findings[0].Severity == "error" {
				bad++
			}
		}
		if !a.json {
			fmt.Fprintf(a.out, "%s checked, %d with problems\n", counted(len(files), "definition"), bad)
		}
		if refused {
			return errShown
		}
		return nil
	}
	return c
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// check returns what it finds in a file: problems, or warnings and notes.
func (a *app) check(file string, known *catalog, options []mwl.LoadOption) ([]finding, error) {
	source, err := a.read(file)
	if err != nil {
		return nil, err
	}
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
