package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/sqlite"
)

func (a *app) verifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Verify a store: rows, states and counts, and the pages of a file",
		Long: `Verify a store: whether each row can be decoded and each state is legal, and
whether the counts of the store are those of its rows. Of a file also each page and
index, and the checksum of each row. If they are, it reads all that a bus reads:
records, letters, directives, the audit and the catalog, up to the first of each kind
that a bus cannot decode.

It reads the whole store and changes nothing. A bus may use it meanwhile. The exit
code is 5 if the store is damaged.`,
	}
	return a.command(c, func(ctx context.Context, _ []string) error {
		at, err := a.storePlace("verify")
		if err != nil {
			return err
		}
		line := a.progress()
		report, err := verifyStore(ctx, at, func(rows, total int64, pages bool) {
			if line != nil {
				line.Draw(verifyProgress(rows, total, pages))
			}
		})
		if line != nil {
			line.End()
		}
		if err == nil && report.isSound() {
			report.problems, err = readAsABus(ctx, at)
		}
		if err != nil {
			return err
		}
		return a.verified(at, &report)
	})
}

// verifyReport is what the verification of a store has found.
type verifyReport struct {
	Records  int64 `json:"records"`
	Letters  int64 `json:"letters"`
	Others   int64 `json:"others"`
	More     int64 `json:"more"` // problems that are not in the list
	problems []problem
}

type problem struct{ table, row, detail string }

func (r *verifyReport) isSound() bool { return len(r.problems) == 0 }

func verifyStore(ctx context.Context, at place, progress func(rows, total int64, pages bool)) (r verifyReport, err error) {
	if !at.isServer() {
		return r, withStore(ctx, at, openFile, func(s *sqlite.Store) error {
			found, err := s.Verify(ctx, func(p sqlite.VerifyProgress) { progress(p.Rows, p.Total, p.Pages) })
			r = verifyReport{Records: found.Records, Letters: found.Letters, Others: found.Others, More: found.More}
			for _, p := range found.Problems {
				r.problems = append(r.problems, problem{p.Table, p.Row, p.Detail})
			}
			return err
		})
	}
	return r, withStore(ctx, at, openServer, func(s *postgres.Store) error {
		found, err := s.Verify(ctx, func(p postgres.VerifyProgress) { progress(p.Rows, p.Total, true) })
		r = verifyReport{Records: found.Records, Letters: found.Letters, Others: found.Others, More: found.More}
		for _, p := range found.Problems {
			r.problems = append(r.problems, problem{p.Table, p.Row, p.Detail})
		}
		return err
	})
}

// readAsABus reads what a bus reads of a sound store, and returns the first of each kind that it cannot decode.
func readAsABus(ctx context.Context, at place) (problems []problem, err error) {
	take := func(err error) error { // most reads begin with the catalog, and find the same
		if decode := (*eventbus.DecodeError)(nil); errors.As(err, &decode) {
			if found := (problem{detail: decode.Error()}); !slices.Contains(problems, found) {
				problems = append(problems, found)
			}
			return nil
		}
		return err
	}
	b, err := openStore(ctx, at)
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

// withStore opens a store for f, beside the bus.
func withStore[S driver.Store](ctx context.Context, at place, open func(context.Context, place) (S, error), f func(s S) error) error {
	s, err := open(ctx, at)
	if err != nil {
		return err
	}
	err = f(s)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if closed := s.Close(closing); err == nil {
		err = closed
	}
	return err
}

func verifyProgress(rows, total int64, pages bool) string {
	const bar = 20
	if rows >= total && !pages {
		return fmt.Sprintf("verify %s %s; pages and indexes ...", term.Bar(int(rows), int(total), bar), plural(rows, "row"))
	}
	return fmt.Sprintf("verify %s %s of %s", term.Bar(int(rows), int(total), bar), count(rows), plural(total, "row"))
}

func (a *app) verified(at place, r *verifyReport) error {
	for _, p := range r.problems {
		if a.json {
			if err := a.printJSON(map[string]string{"table": p.table, "row": p.row, "problem": p.detail}); err != nil {
				return err
			}
			continue
		}
		where := ""
		if p.table != "" {
			where = "table " + p.table
		}
		if p.row != "" {
			where += ", row " + p.row
		}
		if where != "" {
			where += ": "
		}
		a.printf("%s\n", term.Escape(where+p.detail))
	}
	if r.More > 0 && !a.json {
		a.printf("and %s\n", plural(r.More, "problem"))
	}
	if a.json {
		err := a.printJSON(struct {
			*verifyReport
			Sound bool `json:"sound"`
		}{r, r.isSound()})
		if err != nil {
			return err
		}
	} else {
		a.printf("%s: %s, %s, %s\n", term.Escape(at.String()), plural(r.Records, "record"), plural(r.Letters, "letter"), plural(r.Others, "other row"))
	}
	if !r.isSound() {
		next := "stop the program, keep a copy of the file with its -wal and -lease, and restore a backup; 'eventbus dlq export' saves letters that can be read"
		if at.isServer() {
			next = "stop the program, dump the schema (pg_dump), and restore a backup of the server; 'eventbus dlq export' saves letters that can be read"
		}
		return &failure{exitDamaged, fmt.Errorf("store %s is damaged: %s", at, plural(int64(len(r.problems))+r.More, "problem")), next}
	}
	if !a.json {
		a.printf("sound: the books balance\n")
	}
	return nil
}

func (a *app) backupCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy a store file to a new one, while the bus runs or not",
		Long: `Copy a store file to a new one, which only you can read, while the bus runs or not.

To restore it, stop the program, move the store and its files -wal, -shm and
-lease away, and copy the backup to the path of the store. Events that were
handled after the backup are handled again.`,
	}
	return a.command(c, func(ctx context.Context, args []string) error {
		path, err := a.storePath("backup", "back up a store on a server with the server's tools: pg_dump --schema, or pg_basebackup")
		if err != nil {
			return err
		}
		return withStore(ctx, place{file: path}, openFile, func(s *sqlite.Store) error {
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
