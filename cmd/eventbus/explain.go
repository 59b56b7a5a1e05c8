package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) explainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain TYPE",
		Short: "Show which subscriptions receive an event type, and their retry policy",
		Long: `Show which subscriptions receive an event type, and their retry policy.

With --store, the subscriptions are those that the last bus had when it wrote
them to the file. The states of circuits are not known then.`,
	}
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		plan, err := b.Explain(ctx, args[0])
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(plan)
		}
		a.printf("%s", term.EscapeLines(plan.String()))
		if !plan.CatalogAt.IsZero() {
			a.notef("as of %s, when a bus wrote its subscriptions to the file\n", asOf(plan.CatalogAt))
		}
		return nil
	})
}
