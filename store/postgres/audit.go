package postgres

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
)

// A schema keeps this many audit entries. The denied ones have their own bound: otherwise somebody who may do nothing could
// push out what others did.
const (
	maxAudit  = 100_000
	maxDenied = 10_000
)

// queueAudit adds the audit entries of a plan. The row of meta numbers them without gaps, so commits with entries of several
// stores wait for each other. Entries are rare.
func (p *plan) queueAudit(b *pgx.Batch) {
	n := len(p.audit)
	if n == 0 {
		return
	}
	denied, places, bodies := make([]bool, n), make([]int64, n), make([][]byte, n)
	var count [2]int64 // of entries, and of denied ones
	for i, e := range p.audit {
		kind := 0
		if e.Denied {
			kind = 1
		}
		count[kind]++
		denied[i], places[i], bodies[i] = e.Denied, count[kind], e.Body
	}
	const insert = `WITH m AS (UPDATE ~.meta SET audits = audits + $1, denied = denied + $2 RETURNING audits - $1 AS audits, denied - $2 AS denied)
		INSERT INTO ~.audit (number, denied, place, body)
		SELECT m.audits + n.i, n.denied, n.place + CASE WHEN n.denied THEN m.denied ELSE m.audits - m.denied END, n.body
		FROM m, unnest($3::boolean[], $4::bigint[], $5::bytea[]) WITH ORDINALITY AS n(denied, place, body, i)`
	b.Queue(p.c.store.sql(insert), int64(n), count[1], denied, places, bodies)
	const trim = `DELETE FROM ~.audit WHERE denied = $1 AND place <= (SELECT CASE WHEN $1 THEN denied ELSE audits - denied END FROM ~.meta) - $2`
	b.Queue(p.c.store.sql(trim), false, int64(maxAudit))
	b.Queue(p.c.store.sql(trim), true, int64(maxDenied))
}

// Audit returns a page of what operators did. It compares the entries one by one. The schema keeps the newest 100,000, and
// the newest 10,000 denied ones. See [driver.Store].
//
// Errors: that of AuditQuery.Match, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Audit(ctx context.Context, q driver.AuditQuery) (driver.AuditPage, error) {
	const sql = "SELECT number, denied, body FROM ~.audit WHERE number < $1 ORDER BY number DESC LIMIT $2"
	return reading(ctx, s, "Audit", func(ctx context.Context, db querier) (page driver.AuditPage, err error) {
		before := q.Before
		if before == 0 {
			before = math.MaxInt64
		}
		for more := true; more; {
			limit := min(pageRows, q.Limit+1)
			if q.Match != nil {
				limit = pageRows
			}
			found := 0
			err := each(ctx, db, s.sql(sql), func(rows pgx.Rows) error {
				var e driver.AuditEntry
				if err := rows.Scan(&e.Number, &e.Denied, &e.Body); err != nil {
					return err
				}
				before = e.Number
				found++
				if q.Match != nil {
					if matches, err := q.Match(&e); err != nil {
						return &queryError{err}
					} else if !matches {
						return nil
					}
				}
				if len(page.Entries) < q.Limit {
					page.Entries = append(page.Entries, e)
				} else {
					page.Next = page.Entries[q.Limit-1].Number
				}
				return nil
			}, before, limit)
			if err != nil {
				return page, err
			}
			more = found == limit && page.Next == 0
		}
		return page, nil
	})
}

// queryError is the error of a function of a query.
type queryError struct{ err error }

func (e *queryError) Error() string { return e.err.Error() }
func (e *queryError) Unwrap() error { return e.err }
