package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// What was typed wrong gets the nearest name, and each error names what is missing.
func TestZ19_NamesTypedWrong(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	code, _, errOut := call(t, "subs", "pause", "billing", "--store", path)
	require.Zero(t, code, errOut)
	server := newServed(t, nil)
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"dql"}, exitUsage, []string{`unknown command "dql" for "eventbus"`, "did you mean dlq? "}},
		{[]string{"dlq", "grops"}, exitUsage, []string{`unknown command "grops" for "eventbus dlq"`, "did you mean groups? "}},
		{[]string{"operations", "stop"}, exitUsage, []string{"next: 'eventbus operations --help' lists the commands"}},
		{[]string{"dlq", "list", "--fingerprnt", "x"}, exitUsage, []string{"unknown flag: --fingerprnt", "did you mean --fingerprint? see 'eventbus dlq list --help'"}},
		{[]string{"dlq", "list", "--stoer", "x"}, exitUsage, []string{"did you mean --store?"}},
		{[]string{"dlq", "list", "--zzzzzzzz"}, exitUsage, []string{"next: see 'eventbus dlq list --help'"}},
		{[]string{"dlq", "list", "--type"}, exitUsage, []string{"flag needs an argument: --type"}},
		{[]string{"dlq", "list", "--reason", "exausted"}, exitUsage, []string{`"exausted"`, "--reason", "must be one of: exhausted, permanent", "did you mean exhausted? see "}},
		{[]string{"dlq", "list", "--reason", "nonsense"}, exitUsage, []string{": must be one of: exhausted"}},
		{[]string{"dlq", "export", "--format", "json"}, exitUsage, []string{"did you mean jsonl?", "one of: jsonl, csv"}},
		{[]string{"events", "list", "--state", "schedule"}, exitUsage, []string{"did you mean scheduled?"}},
		{[]string{"audit", "--action", "replay_matchin"}, exitUsage, []string{"did you mean replay_matching?"}},
		{[]string{"dlq", "show"}, exitUsage, []string{"ID is missing", "next: use it as: eventbus dlq show ID"}},
		{[]string{"subs", "hold-until", "mail"}, exitUsage, []string{"TIME is missing"}},
		{[]string{"subs", "hold-until"}, exitUsage, []string{"NAME is missing"}},
		{[]string{"subs", "pause", "mail", "down"}, exitUsage, []string{`the argument "down" is one too many`}},
		{[]string{"dlq", "list", "x"}, exitUsage, []string{`the argument "x" is one too many`}},
		{[]string{"dlq", "import", "a", "b"}, exitUsage, []string{`the argument "b" is one too many`}},
		{[]string{"subs", "show", "biling", "--store", path}, exitNotFound, []string{"did you mean billing?"}},
		{[]string{"subs", "pause", "biling", "--url", server.URL}, exitNotFound, []string{"did you mean billing?"}},
		{[]string{"subs", "show", "biling", "--url", server.URL}, exitNotFound, []string{"did you mean billing?"}},
		{[]string{"subs", "retire", "biling", "--yes", "--url", server.URL}, exitNotFound, []string{"did you mean billing?"}},
		{[]string{"subs", "show", "crm", "--url", server.URL}, exitNotFound, []string{"next: 'eventbus subs list' shows the names"}},
		{[]string{"dlq", "list", "--subscription", "Billing", "--store", path}, exitOK, []string{"no subscription has this name; did you mean --subscription billing?"}},
		{[]string{"dlq", "groups", "--subscription", "billin", "--url", server.URL}, exitOK, []string{"did you mean --subscription billing?"}},
		{[]string{"dlq", "replay", "--subscription", "billng", "--yes", "--url", server.URL}, exitOK, []string{"did you mean --subscription billing?"}},
		{[]string{"events", "list", "--subscription", "bilingg", "--url", server.URL}, exitOK, []string{"did you mean --subscription billing?"}},
	} {
		code, _, errOut := call(t, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errOut)
		for _, want := range c.want {
			require.Contains(t, errOut, want, c.args)
		}
		if code != exitOK {
			require.Contains(t, errOut, "\nnext: ", c.args)
		}
	}
	code, _, errOut = call(t, "dlq", "list", "--subscription", "billing", "--key", "none", "--store", path)
	require.Zero(t, code)
	require.NotContains(t, errOut, "did you mean", "the name is right")
}

// Every command says what it needs: its arguments are checked by its line of use.
func TestZ19_EveryCommandChecksItsArguments(t *testing.T) {
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			check(sub)
		}
		if !c.Runnable() || c.HasSubCommands() || c.Name() == "help" || strings.HasPrefix(c.CommandPath(), "eventbus completion") {
			return
		}
		require.NotNil(t, c.Args, c.CommandPath())
		require.Equal(t, strings.Contains(c.Use, " ") && !strings.Contains(c.Use, "["), c.Args(c, nil) != nil, c.CommandPath())
	}
	check((&app{}).root())
}

// Hostile and very long names are shown with escapes, and cut.
func TestZ20_HostileNames(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	server := newServed(t, nil)
	for _, name := range []string{"\x1b[2J", "a\nb", "\u202egnp.exe", "\u2066x", "\xff", strings.Repeat("n", 8<<10), strings.Repeat("日", 3000)} {
		for _, at := range [][]string{{"--store", path}, {"--url", server.URL}} {
			for _, args := range [][]string{
				{"subs", "show", name},
				{"subs", "pause", name},
				{"subs", "retire", name, "--yes"},
				{"subs", "retire", name, "--dry-run"},
				{"dlq", "list", "--subscription", name},
				{"dlq", "groups", "--subscription", name},
				{"dlq", "list", "--reason", name},
				{"dlq", "list", "--" + name},
				{"operations", "show", name},
				{"operations", "cancel", name},
				{"operations", name},
				{"events", "list", "--state", name},
				{"explain", name},
				{"stats", name},
				{"stats", "--header", name},
				{"dlq", "replay", "--subscription", name, "--yes", "--because", name},
			} {
				what := fmt.Sprintf("%.60q", args)
				_, out, errOut := call(t, append(args, at...)...)
				harmless(t, what, out+errOut)
				require.Less(t, len(errOut), 40<<10, what)
			}
		}
	}
}
