package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// VerifyReport is the result of Verify.
type VerifyReport struct {
	// Records, Letters and Others are the numbers of rows that Verify read.
	Records int64 `json:"records"`
	Letters int64 `json:"letters"`
	Others  int64 `json:"others"` // incoming events, requests, remembered ids, history, directives, catalogs, audit, outcomes, marks
	// Problems lists the damage, at most 100 of them, and More is the number of the others.
	Problems []*CorruptError `json:"-"`
	More     int64           `json:"more"`
}

// IsSound reports whether Verify has found no damage.
func (r *VerifyReport) IsSound() bool { return len(r.Problems) == 0 }

// VerifyProgress is the progress of Verify.
type VerifyProgress struct {
	Rows  int64 // rows read so far
	Total int64 // rows in the schema when Verify began
}

const (
	// maxProblems bounds the problems of a report.
	maxProblems = 100
	// verifiedRows is the number of rows that Verify reads at a time.
	verifiedRows = 5000
)

// Verify reads all rows of the schema in one snapshot. It verifies that they can be decoded, that each state is legal,
// and that the counts match the rows. It changes nothing, and a bus may work meanwhile. While it runs, the server
// cannot remove the rows that are deleted meanwhile.
//
// It cannot find damage of the disk: use data checksums (initdb --data-checksums) and pg_amcheck for that.
//
// It calls progress, which may be nil, after every 5,000 rows. The report is valid without an error only. Damage is in
// the report and no error. Errors: driver.ErrFailed, driver.ErrClosed, those of the server, the context's error.
func (s *Store) Verify(ctx context.Context, progress func(VerifyProgress)) (VerifyReport, error) {
	v := &verification{store: s, progress: progress}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := s.state()
	if err == nil {
		err = pgx.BeginTxFunc(ctx, s.reads, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			v.tx = tx
			return v.run(ctx)
		})
	}
	if err != nil {
		return VerifyReport{}, fmt.Errorf("Verify: %w", explain(err))
	}
	return v.report, nil
}

// verification is a Verify in progress.
type verification struct {
	store    *Store
	tx       pgx.Tx
	progress func(VerifyProgress)
	report   VerifyReport
	seen     VerifyProgress

	epoch   int64 // of the last lease
	holder  int64 // epoch of the lease that a store has, or 0
	nextRef int64
	counted struct {
		states          [4]int64
		letters, leased int64
	}
	audits  int64
	cursors int
}

func (v *verification) run(ctx context.Context) error {
	s := v.store
	if _, err := v.tx.Exec(ctx, "SET LOCAL statement_timeout = 0"); err != nil { // ctx bounds it
		return err
	}
	const counted = `SELECT (SELECT epoch FROM ~.slot WHERE id = 0), (SELECT coalesce(max(epoch), 0) FROM ~.instance),
		(SELECT greatest(max(i.next_ref), (SELECT next_ref FROM ~.slot WHERE id = 0)) FROM ~.instance i), (SELECT audits FROM ~.meta),
		sum(ready)::bigint, sum(waiting)::bigint, sum(scheduled)::bigint, sum(parked)::bigint, sum(letters)::bigint, sum(leased)::bigint FROM ~.instance`
	c := &v.counted
	err := v.tx.QueryRow(ctx, s.sql(counted)).Scan(&v.epoch, &v.holder, &v.nextRef, &v.audits, &c.states[0], &c.states[1], &c.states[2], &c.states[3], &c.letters, &c.leased)
	if err != nil {
		return err
	}
	if v.holder != 0 && v.holder != v.epoch {
		v.problem("instance", "", "a store has the lease %d, and the last one is %d", v.holder, v.epoch)
	}
	for _, table := range []string{"record", "letter", "incoming", "request", "dedupe", "history", "directive", "catalog", "audit", "outcome", "mark"} {
		var n int64
		if err := v.tx.QueryRow(ctx, s.sql("SELECT count(*) FROM ~."+table)).Scan(&n); err != nil {
			return err
		}
		v.seen.Total += n
	}
	for _, part := range []struct {
		verify func(context.Context) error
		rows   *int64
	}{{v.records, &v.report.Records}, {v.letters, &v.report.Letters}, {v.others, &v.report.Others}} {
		before := v.seen.Rows
		if err := part.verify(ctx); err != nil {
			return err
		}
		*part.rows = v.seen.Rows - before
	}
	return nil
}

func (v *verification) problem(table, row, format string, args ...any) {
	if len(v.report.Problems) == maxProblems {
		v.report.More++
		return
	}
	v.report.Problems = append(v.report.Problems, &CorruptError{Table: table, Row: row, Detail: fmt.Sprintf(format, args...)})
}

// rows calls row with all rows of a query. An error of row that is a *CorruptError is a problem.
func (v *verification) rows(ctx context.Context, sql string, row func(pgx.Rows) error) (err error) {
	v.cursors++ // a name of its own: the statement that fetches is prepared with its columns
	cursor := fmt.Sprintf("verified_%d", v.cursors)
	if _, err := v.tx.Exec(ctx, "DECLARE "+cursor+" NO SCROLL CURSOR FOR "+v.store.sql(sql)); err != nil {
		return err
	}
	for more := true; more; {
		found := 0
		err := each(ctx, v.tx, fmt.Sprintf("FETCH %d FROM %s", verifiedRows, cursor), func(rows pgx.Rows) error {
			found++
			v.seen.Rows++
			err := row(rows)
			var corrupt *CorruptError
			if errors.As(err, &corrupt) {
				v.problem(corrupt.Table, corrupt.Row, "%s", corrupt.Detail)
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if more = found == verifiedRows; v.progress != nil {
			v.progress(v.seen)
		}
	}
	_, err = v.tx.Exec(ctx, "CLOSE "+cursor)
	return err
}

func (v *verification) records(ctx context.Context) error {
	var states [4]int64
	var leased, last int64
	err := v.rows(ctx, "SELECT "+recordColumns+" FROM ~.record ORDER BY ref", func(rows pgx.Rows) error {
		r, owner, err := scanRecord(rows)
		if err != nil {
			return err
		}
		states[r.State]++
		if owner == v.holder && owner > 0 {
			leased++
		}
		last = int64(r.Ref)
		return v.illegal(r, owner)
	})
	if err != nil {
		return err
	}
	if states != v.counted.states {
		v.problem("instance", "", "the books do not balance: %v records by state are counted, and %v are there", v.counted.states, states)
	}
	if leased != v.counted.leased {
		v.problem("instance", "", "the books do not balance: %d leased records are counted, and %d are there", v.counted.leased, leased)
	}
	if last >= v.nextRef {
		v.problem("slot", "0", "record %d is there, and the next one would be %d", last, v.nextRef)
	}
	return nil
}

// illegal returns the error of a record in an illegal state, or nil.
func (v *verification) illegal(r *driver.Record, owner int64) error {
	bad := func(format string, args ...any) error {
		return &CorruptError{Table: "record", Row: fmt.Sprint(int64(r.Ref)), Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.Type == "" || r.Published.IsZero() || r.ID.IsZero():
		return bad("the type, the time of publication or the id is missing")
	case r.State == driver.Parked != (r.Door != ""):
		return bad("it is %s, and its door is %q", r.State, r.Door)
	case r.State != driver.Parked && r.Destination != "":
		return bad("it is %s, and has a destination", r.State)
	case r.State == driver.Scheduled && r.Due.IsZero():
		return bad("it is scheduled, and has no time")
	case owner > v.epoch || -owner > v.epoch:
		return bad("its owner is the lease %d, and the last one is %d", owner, v.epoch)
	case len(r.Progress) > 0 && !json.Valid(r.Progress):
		return bad("the progress is no JSON")
	}
	return nil
}

func (v *verification) letters(ctx context.Context) error {
	found := int64(0)
	err := v.rows(ctx, "SELECT "+letterColumns+" FROM ~.letter ORDER BY id", func(rows pgx.Rows) error {
		found++
		l, err := scanLetter(rows)
		if err == nil && (l.Details != nil && !json.Valid(l.Details) || l.Failures != nil && !json.Valid(l.Failures)) {
			err = &CorruptError{Table: "letter", Row: l.ID.String(), Detail: "the details or the failures are no JSON"}
		}
		return err
	})
	if err == nil && found != v.counted.letters {
		v.problem("instance", "", "the books do not balance: %d letters are counted, and %d are there", v.counted.letters, found)
	}
	return err
}

func (v *verification) others(ctx context.Context) error {
	for _, of := range []struct {
		sql string
		row func(pgx.Rows) error
	}{
		{"SELECT id, event, slot, state, due, body, given, codec FROM ~.incoming", v.incoming},
		{"SELECT scope, key, event, content, expires FROM ~.dedupe", func(rows pgx.Rows) error {
			_, err := scanDedupe(rows)
			return err
		}},
		{"SELECT 'directive', encode(subscription, 'escape'), body, '' FROM ~.directive", v.document},
		{"SELECT 'audit', number::text, body, CASE WHEN number > (SELECT audits FROM ~.meta) OR place < 1 THEN 'its number is not one of the entries so far' ELSE '' END FROM ~.audit", v.document},
		{"SELECT 'outcome', number::text, body, CASE WHEN audit > (SELECT audits FROM ~.meta) THEN 'it is later than all audit entries' ELSE '' END FROM ~.outcome", v.document},
		{"SELECT 'request', id::text, body, CASE WHEN (answer IS NULL) <> (answered IS NULL) THEN 'an answer without a time, or a time without an answer' ELSE '' END FROM ~.request", v.document},
		{"SELECT 'history', ref::text, settled_at FROM ~.history", v.timed},
		{"SELECT 'catalog', encode(instance, 'escape'), seen FROM ~.catalog", v.timed},
		{"SELECT 'mark', event::text, until FROM ~.mark", v.timed},
	} {
		if err := v.rows(ctx, of.sql, of.row); err != nil {
			return err
		}
	}
	return nil
}

func (v *verification) incoming(rows pgx.Rows) error {
	in, err := scanIncoming(rows)
	if err == nil && in.Record.State != driver.Ready && (in.Record.State != driver.Scheduled || in.Record.Due.IsZero()) {
		err = &CorruptError{Table: "incoming", Row: fmt.Sprint(int64(in.ID)), Detail: "it is neither ready, nor scheduled with a time"}
	}
	return err
}

// document verifies a row of the table, its key, a body that is JSON, and what SQL has found wrong.
func (v *verification) document(rows pgx.Rows) error {
	var table, key, wrong string
	var body []byte
	if err := rows.Scan(&table, &key, &body, &wrong); err != nil {
		return err
	}
	if wrong == "" && !json.Valid(body) {
		wrong = "the body is no JSON"
	}
	if wrong != "" {
		return &CorruptError{Table: table, Row: key, Detail: wrong}
	}
	return nil
}

// timed verifies a row of the table, its key, and a time.
func (v *verification) timed(rows pgx.Rows) error {
	var table, key, at string
	if err := rows.Scan(&table, &key, &at); err != nil {
		return err
	}
	if _, err := storekit.ParseTime(at); err != nil {
		return &CorruptError{Table: table, Row: key, Detail: err.Error()}
	}
	return nil
}
