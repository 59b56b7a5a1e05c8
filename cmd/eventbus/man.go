package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write the man pages to a directory",
		Example: `  eventbus man /usr/local/share/man/man1`,
	}
	return a.command(c, func(_ context.Context, args []string) error {
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return err
		}
		// The date is SOURCE_DATE_EPOCH, or today.
		return doc.GenManTree(c.Root(), &doc.GenManHeader{Title: "EVENTBUS", Section: "1", Source: "eventbus"}, args[0])
	})
}
