package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
	"github.com/surebus/eventbus/store/sqlite"
)

func (a *app) verifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Verify a store file: pages, rows, states and counts",
		Long: `Verify a store file: each page and index, the checksum of each row, whether each
state is legal, and whether the counts of the store are those of its rows. If they
are, it reads all that a bus reads: records, letters, directives, the audit and the
catalog, up to the first of each kind that a bus cannot decode.

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
			if err == nil && report.IsSound() {
				report.Problems, err = readAsABus(ctx, path)
			}
			if err != nil {
				return err
			}
			return a.verified(path, &report)
		})
	})
}

// readAsABus reads what a bus reads of a sound file, and returns the first of each kind that it cannot decode.
func readAsABus(ctx context.Context, path string) (problems []*sqlite.CorruptError, err error) {
	take := func(err error) error { // most reads begin with the catalog, and find the same
		if decode := (*eventbus.DecodeError)(nil); errors.As(err, &decode) {
			if !slices.ContainsFunc(problems, func(p *sqlite.CorruptError) bool { return p.Detail == decode.Error() }) {
				problems = append(problems, &sqlite.CorruptError{Path: path, Detail: decode.Error()})
			}
			return nil
		}
		return err
	}
	b, err := openStore(ctx, path)
	if err != nil {
		return problems, take(err) // a bus reads the directives first
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, b.Close(closing))
	}()
	return problems, errors.Join(take(readRecords(ctx, b)), take(readLetters(ctx, b)), take(readAudit(ctx, b)), take(readCatalog(ctx, b)))
}

func readRecords(ctx context.Context, b *storeBackend) error {
	for q := (eventbus.DispatchQuery{Limit: 1000}); ; {
		page, err := b.Dispatches(ctx, q)
		if q.After = page.Next; err != nil || q.After == "" {
			return err
		}
	}
}

func readLetters(ctx context.Context, b *storeBackend) error {
	for q := (eventbus.LetterQuery{Limit: 1000}); ; {
		page, err := b.Letters(ctx, q)
		if q.Before = page.Next; err != nil || q.Before.IsZero() {
			return err
		}
	}
}

func readAudit(ctx context.Context, b *storeBackend) error {
	for q := (eventbus.AuditQuery{Limit: 1000}); ; {
		page, err := b.Audit(ctx, q)
		if q.Before = page.Next; err != nil || q.Before == 0 {
			return err
		}
	}
}

func readCatalog(ctx context.Context, b *storeBackend) error {
	_, err := b.bus.Catalog(ctx)
	if errors.Is(err, eventbus.ErrNoCatalog) {
		return nil
	}
	return err
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
	s, err := sqlite.Open(ctx, path, sqlite.MustExist())
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
