package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
	"github.com/surebus/eventbus/store/sqlite"
)

func (a *app) verifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Verify a store file: pages, rows, states and counts",
		Long: `Verify a store file: each page and index, the checksum of each row, whether each
state is legal, and whether the counts of the store are those of its rows.

It reads the whole file and changes nothing. A bus may use the file meanwhile.
The exit code is 5 if the file is damaged.`,
		Args: cobra.NoArgs,
	}
	return a.command(c, func(ctx context.Context, _ []string) error {
		return a.withStore(ctx, "verify", func(s *sqlite.Store, path string) error {
			line := a.progress()
			var progress func(sqlite.VerifyProgress)
			if line != nil {
				progress = func(p sqlite.VerifyProgress) { line.Draw(verifyProgress(p)) }
			}
			report, err := s.Verify(ctx, progress)
			if line != nil {
				line.End()
			}
			if err != nil {
				return err
			}
			return a.verified(path, &report)
		})
	})
}

// withStore opens the store of a command that needs a file, beside the bus.
func (a *app) withStore(ctx context.Context, command string, f func(s *sqlite.Store, path string) error) error {
	path, err := a.storePath(command)
	if err != nil {
		return err
	}
	if err := checkFile(path); err != nil {
		return err
	}
	s, err := sqlite.Open(ctx, path, sqlite.Beside())
	if err != nil {
		return err
	}
	err = f(s, path)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if closed := s.Close(closing); err == nil {
		err = closed
	}
	return err
}

func verifyProgress(p sqlite.VerifyProgress) string {
	const bar = 20
	if p.Rows >= p.Total && !p.Pages {
		return fmt.Sprintf("verify %s %s; pages and indexes ...", term.Bar(int(p.Rows), int(p.Total), bar), plural(p.Rows, "row"))
	}
	return fmt.Sprintf("verify %s %s of %s", term.Bar(int(p.Rows), int(p.Total), bar), count(p.Rows), plural(p.Total, "row"))
}

func (a *app) verified(path string, r *sqlite.VerifyReport) error {
	for _, p := range r.Problems {
		if a.json {
			if err := a.printJSON(map[string]string{"table": p.Table, "row": p.Row, "problem": p.Detail}); err != nil {
				return err
			}
			continue
		}
		where := ""
		if p.Table != "" {
			where = "table " + p.Table
		}
		if p.Row != "" {
			where += ", row " + p.Row
		}
		if where != "" {
			where += ": "
		}
		a.printf("%s\n", term.Escape(where+p.Detail))
	}
	if r.More > 0 && !a.json {
		a.printf("and %s\n", plural(r.More, "problem"))
	}
	if a.json {
		err := a.printJSON(struct {
			*sqlite.VerifyReport
			Sound bool `json:"sound"`
		}{r, r.IsSound()})
		if err != nil {
			return err
		}
	} else {
		a.printf("%s: %s, %s, %s\n", term.Escape(path), plural(r.Records, "record"), plural(r.Letters, "letter"), plural(r.Others, "other row"))
	}
	if !r.IsSound() {
		return &failure{
			exitDamaged, fmt.Errorf("store %s is damaged: %s", path, plural(int64(len(r.Problems))+r.More, "problem")),
			"stop the program, keep a copy of the file with its -wal and -lease, and restore a backup; 'eventbus dlq export' saves letters that can be read",
		}
	}
	if !a.json {
		a.printf("sound: the books balance\n")
	}
	return nil
}

func (a *app) backupCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy a store to a new file, while the bus runs or not",
		Long: `Copy a store to a new file, which only you can read, while the bus runs or not.

To restore it, stop the program, move the store and its files -wal, -shm and
-lease away, and copy the backup to the path of the store. Events that were
handled after the backup are handled again.`,
		Args: cobra.ExactArgs(1),
	}
	return a.command(c, func(ctx context.Context, args []string) error {
		return a.withStore(ctx, "backup", func(s *sqlite.Store, path string) error {
			if err := s.Backup(ctx, args[0]); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"store": path, "backup": args[0]})
			}
			a.printf("copied %s to %s\n", term.Escape(path), term.Escape(args[0]))
			return nil
		})
	})
}
