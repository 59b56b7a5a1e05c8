package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
	"github.com/surebus/eventbus/store/postgres"
)

func (a *app) doctorCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look at the server of a store for what slows it down or endangers it",
		Long: `Look at the server of a store for what slows it down or endangers what it has
confirmed: settings of durability, data checksums, old snapshots and idle transactions,
dead rows, the lag of replicas, connections, and who has the lease.

It changes nothing. The role sees all of it with pg_monitor. The exit code is 1 if there
is a warning. 'eventbus verify' looks at the store itself.`,
	}
	return a.command(c, func(ctx context.Context, _ []string) error {
		at, err := a.storePlace("doctor")
		if err == nil && !at.isServer() {
			err = usage("'eventbus verify' looks at a store file", "doctor works on a store on a server only")
		}
		if err != nil {
			return err
		}
		var found []postgres.Finding
		err = withStore(ctx, at, openServer, func(s *postgres.Store) (err error) {
			found, err = s.Diagnose(ctx)
			return err
		})
		if err != nil {
			return err
		}
		return a.diagnosed(found)
	})
}

func (a *app) diagnosed(found []postgres.Finding) error {
	warnings := int64(0)
	for _, f := range found {
		if f.Level == postgres.LevelWarning {
			warnings++
		}
		if a.json {
			if err := a.printJSON(f); err != nil {
				return err
			}
			continue
		}
		a.printf("%-8s %s: %s\n", f.Level, f.Check, term.Escape(f.Detail))
		if f.Remedy != "" {
			a.printf("         next: %s\n", term.Escape(f.Remedy))
		}
	}
	if warnings == 0 {
		return nil
	}
	return &failure{exitFailure, fmt.Errorf("the server has %s", plural(warnings, "warning")), "do what they say, or know why not"}
}
