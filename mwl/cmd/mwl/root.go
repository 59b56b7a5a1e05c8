package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
)

// The exit codes. exitCodes documents them.
const (
	exitOK       = 0
	exitProblem  = 1
	exitUsage    = 2
	exitNotFound = 3
)

const exitCodes = `The command ends with one of these codes:

  0  success
  1  a definition has problems, an execution ended with a failure, or a case of a
     corpus failed
  2  usage: an unknown flag, a missing or invalid argument
  3  a file cannot be read or written
`

// app has the streams and the global flags of a run.
type app struct {
	in       io.Reader
	out, err io.Writer
	json     bool
	inRead   bool // the standard input has been read
}

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

// errShown ends the command with exitProblem: what was found has been printed.
var errShown = errors.New("shown already")

// report prints an error and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errShown) {
		return exitProblem
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = &failure{exitUsage, err, "see 'mwl --help'"}
	}
	fmt.Fprintf(a.err, "mwl: %s\n", printable(f.err.Error()))
	if f.next != "" {
		fmt.Fprintf(a.err, "     %s\n", printable(f.next))
	}
	return f.code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:               "mwl",
		Short:             "Check, run and draw workflow definitions",
		Long:              "Check, run and draw workflow definitions of the Metolia Workflow Language.",
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Example: `  mwl check saga.json
  mwl run saga.json --input @order.json --mock mocks.json --trace
  mwl graph saga.json --format svg >saga.svg`,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage(fmt.Sprintf("see '%s --help'", c.CommandPath()), "%w", err)
	})
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, one object a line")
	root.AddCommand(a.checkCommand(), a.runCommand(), a.graphCommand(), a.conformCommand(), a.schemaCommand(),
		&cobra.Command{Use: "exit-codes", Short: "The exit codes", Long: exitCodes})
	root.Args = cobra.ArbitraryArgs
	root.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return usage("see 'mwl --help'", "unknown command %q", args[0])
	}
	root.InitDefaultCompletionCmd()
	return root
}

// read reads a file, or the standard input for "-".
func (a *app) read(name string) ([]byte, error) {
	var (
		data []byte
		err  error
	)
	if name == "-" {
		if a.inRead {
			return nil, usage("give a file for one of them", "two arguments read the standard input")
		}
		a.inRead = true
		data, err = io.ReadAll(a.in)
	} else {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, &failure{exitNotFound, err, "check the name of the file; - is the standard input"}
	}
	return data, nil
}

// line prints a value as JSON on one line.
func (a *app) line(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, printableJSON(text))
	return err
}

// printable shows what a terminal would execute, as Go escapes. Line breaks and tabs
// stay.
func printable(text string) string { return escaped(text, "\n\t", goEscape) }

// oneLine is printable, but shows line breaks and tabs, too: text of a definition cannot
// look like a line of the command.
func oneLine(text string) string { return escaped(text, "", goEscape) }

// printableJSON shows what a terminal would execute, as escapes of JSON.
func printableJSON(text []byte) string { return escaped(string(text), "\n\t", jsonEscape) }

func escaped(text, keep string, escape func(r rune) string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		if unicode.IsPrint(r) || strings.ContainsRune(keep, r) {
			b.WriteRune(r)
		} else {
			b.WriteString(escape(r))
		}
	}
	return b.String()
}

func goEscape(r rune) string {
	quoted := strconv.QuoteToASCII(string(r))
	return quoted[1 : len(quoted)-1]
}

func jsonEscape(r rune) string {
	if r <= 0xFFFF {
		return fmt.Sprintf(`\u%04x`, r)
	}
	high, low := utf16.EncodeRune(r)
	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}
