package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/mwl"
)

// The exit codes. exitCodes documents them.
const (
	exitOK      = 0
	exitProblem = 1
	exitUsage   = 2
	exitIO      = 3
)

const exitCodes = `The command ends with one of these codes:

  0  success
  1  a definition has problems, an execution ended with a failure, a case of a corpus
     failed, or the command was interrupted
  2  usage: an unknown flag, a missing or invalid argument
  3  a file, or the output, cannot be read or written
`

// app has the streams and the global flags of a run.
type app struct {
	in     io.Reader
	out    *output
	err    io.Writer
	json   bool
	inRead bool // the standard input has been read
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

// shown is an exit code whose reason has been printed.
type shown int

func (s shown) Error() string { return fmt.Sprintf("exit code %d", int(s)) }

// report prints an error and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	if code, ok := errors.AsType[shown](err); ok {
		return int(code)
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = &failure{exitUsage, err, "see 'mwl --help'"}
	}
	text := oneLine(f.err.Error())
	if _, ok := errors.AsType[*mwl.DefinitionError](f.err); ok {
		text = printable(f.err.Error()) // a line for each problem
	}
	fmt.Fprintf(a.err, "mwl: %s\n", text)
	if f.next != "" {
		fmt.Fprintf(a.err, "     %s\n", oneLine(f.next))
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
	root.SetOut(a.out) // before the completion command, which keeps the output
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage(fmt.Sprintf("see '%s --help'", c.CommandPath()), "%w", err)
	})
	root.AddCommand(a.checkCommand(), a.runCommand(), a.graphCommand(), a.conformCommand(), a.schemaCommand(),
		&cobra.Command{Use: "exit-codes", Short: "The exit codes", Long: exitCodes, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.out, exitCodes)
			return err
		}})
	root.SetHelpCommand(helpCommand(root))
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

// helpCommand is Cobra's, but an unknown command is an error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command",
		RunE: func(_ *cobra.Command, args []string) error {
			found, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usage("see 'mwl --help'", "unknown command %q", strings.Join(args, " "))
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// jsonFlag adds --json to a command that honours it.
func (a *app) jsonFlag(c *cobra.Command) {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON, one object a line")
}
