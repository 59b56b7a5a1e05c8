package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	xterm "golang.org/x/term"

	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

// app has the streams and the global flags of a run.
type app struct {
	in       io.Reader
	out, err io.Writer

	store, url string
	schema     string     // of a store on a server
	connect    connection // its flags
	json       bool
	by, why    string
	byGiven    bool

	began bool // a command's own function runs

	opened backend // what open returns, in tests; nil otherwise
}

const environment = `The command reads these variables:

  EVENTBUS_STORE     the default of --store
  EVENTBUS_SCHEMA    the default of --schema
  EVENTBUS_URL       the default of --url
  EVENTBUS_TOKEN     the token for --url
  EVENTBUS_USER      the user for --url, with
  EVENTBUS_PASSWORD  the password
  EVENTBUS_HEADERS   headers for --url, such as those of a company login: one a
                     line, 'Name: value'. --header replaces those of its name
  EVENTBUS_CLIENT_CERT, EVENTBUS_CLIENT_KEY, EVENTBUS_CA
                     the defaults of --client-cert, --client-key and --ca
  PGHOST, PGUSER,    what a postgres:// URL leaves out, as for psql; PGPASSWORD or
  PGSERVICE ...      the file ~/.pgpass have the password
  EDITOR             the editor of 'dlq edit'; VISUAL has precedence
  COLUMNS            the width of tables; without it that of the terminal
  USER               the default of --by

No flag takes a password or a token, because other users of the machine see the
arguments of a process. Give --header no secret: use EVENTBUS_HEADERS.
`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "eventbus",
		Short:         "Look after the dead letters, subscriptions and store of an event bus",
		SilenceErrors: true,
		SilenceUsage:  true,

		DisableAutoGenTag: true,
		Long: `Look after the dead letters, subscriptions and store of an event bus.

--store opens the SQLite file of a bus, or its schema on a Postgres server, while
the bus runs or not. --url speaks to the admin API of a running bus.`,
		Example: `  eventbus dlq groups --store events.db
  eventbus dlq replay --store events.db --type 'order.*' --dry-run
  eventbus subs pause mail --url http://localhost:8080/admin --because 'mail server is down'`,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.store, "store", "", "`STORE`: a file, or postgres://USER@HOST/DATABASE (EVENTBUS_STORE)")
	flags.StringVar(&a.schema, "schema", "", "`SCHEMA` of a store on a server; eventbus by default (EVENTBUS_SCHEMA)")
	flags.StringVar(&a.url, "url", "", "`URL` of the admin page of a running bus (EVENTBUS_URL)")
	flags.StringArrayVar(&a.connect.headers, "header", nil, "`HEADER` for --url, 'Name: value'; may be repeated (EVENTBUS_HEADERS)")
	flags.StringVar(&a.connect.cert, "client-cert", "", "`FILE` with a client certificate for --url, as PEM (EVENTBUS_CLIENT_CERT)")
	flags.StringVar(&a.connect.key, "client-key", "", "`FILE` with its private key (EVENTBUS_CLIENT_KEY)")
	flags.StringVar(&a.connect.ca, "ca", "", "`FILE` with the authority of the server's certificate, as PEM (EVENTBUS_CA)")
	flags.BoolVar(&a.json, "json", false, "print JSON, one object a line")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		a.dlqCommand(), a.operationsCommand(), a.eventsCommand(), a.subsCommand(), a.explainCommand(), a.statsCommand(), a.auditCommand(),
		a.verifyCommand(), a.doctorCommand(), a.backupCommand(), a.serveCommand(), a.manCommand(),
		&cobra.Command{Use: "exit-codes", Short: "The exit codes", Long: exitCodes},
		&cobra.Command{Use: "environment", Short: "The environment variables", Long: environment},
	)
	group(root)
	root.InitDefaultCompletionCmd()
	return root
}

// group makes a command that only has subcommands refuse to run.
func group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			_ = c.Help() // it writes to the standard output
			return nil
		}
		return unknownCommand(c, args[0])
	}
	return c
}

// command adds a function to a command.
func (a *app) command(c *cobra.Command, f func(ctx context.Context, args []string) error) *cobra.Command {
	c.Args = arguments(c.Use)
	c.RunE = func(c *cobra.Command, args []string) error {
		a.began = true
		if flag := c.Flag("by"); flag != nil {
			a.byGiven = flag.Changed
		}
		return f(c.Context(), args)
	}
	return c
}

// with adds a function that needs a store or a running bus.
func (a *app) with(c *cobra.Command, f func(ctx context.Context, b backend, args []string) error) *cobra.Command {
	return a.command(c, func(ctx context.Context, args []string) error {
		b, err := a.open(ctx)
		if err != nil {
			return err
		}
		err = f(ctx, b, args)
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if closed := b.Close(closing); err == nil {
			err = closed
		}
		return err
	})
}

// closeTimeout bounds the checkpoint that closing a store may do.
const closeTimeout = 30 * time.Second

// operatorFlags adds the flags that name the operator.
func (a *app) operatorFlags(c *cobra.Command) {
	c.Flags().StringVar(&a.by, "by", userName(), "`NAME` of the operator, for the audit; with --url the server knows it")
	c.Flags().Lookup("by").DefValue = "$USER" // in help and man pages
	c.Flags().StringVar(&a.why, "because", "", "`REASON`, for the audit")
}

// checkOperator refuses --by where the server names the operator.
func (a *app) checkOperator(b backend) error {
	if _, remote := b.(*urlBackend); remote && a.byGiven {
		return usage("leave --by out", "--by is for --store: %s names the operator by the credentials", b.Where())
	}
	return nil
}

func userName() string {
	if name := env("USER"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// printJSON prints a value as a line.
func (a *app) printJSON(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(term.EscapeJSON(text), '\n'))
	return err
}

// printf prints a text for people. It does not escape its arguments.
func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }

// notef prints a text for people that is not the result of the command.
func (a *app) notef(format string, args ...any) { fmt.Fprintf(a.err, format, args...) }

func (a *app) printTable(t *term.Table) error { return t.Write(a.out, a.columns()) }

// columns returns the width of the output, or 0 if it has none.
func (a *app) columns() int {
	if n, err := strconv.Atoi(env("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if f, ok := a.out.(*os.File); ok {
		if n, _, err := xterm.GetSize(int(f.Fd())); err == nil {
			return n
		}
	}
	return 0
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && xterm.IsTerminal(int(f.Fd()))
}

// progress returns the progress line of a long operation, or nil if the error output is no terminal.
func (a *app) progress() *term.Progress {
	if !isTerminal(a.err) {
		return nil
	}
	return term.NewProgress(a.err)
}

// isInterrupted reports whether Ctrl-C ended an operation. A failure has its own text, such as that of a lost connection to a
// server that may go on.
func isInterrupted(ctx context.Context, err error) bool {
	return err != nil && !errors.As(err, new(*failure)) && (errors.Is(err, context.Canceled) || ctx.Err() != nil)
}
