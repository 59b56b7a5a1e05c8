package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
)

// queueOutcomes adds the outcomes of a plan, after its audit entries.
func (p *plan) queueOutcomes(b *pgx.Batch) {
	n := len(p.outcomes)
	if n == 0 {
		return
	}
	events, bodies := make([][16]byte, n), make([][]byte, n)
	for i, o := range p.outcomes {
		events[i], bodies[i] = o.Event, o.Body
	}
	const insert = `INSERT INTO ~.outcome (event, audit, body)
		SELECT n.event, m.audits, n.body FROM ~.meta m, unnest($1::uuid[], $2::bytea[]) WITH ORDINALITY AS n(event, body, i) ORDER BY n.i`
	b.Queue(p.c.store.sql(insert), events, bodies)
}

// Outcomes returns the outcomes of an event. The schema keeps them as long as the audit entries of their time, see Audit, and
// [driver.Store].
//
// Errors: driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Outcomes(ctx context.Context, event driver.ID) ([]driver.Outcome, error) {
	return list(ctx, s, "Outcomes", func(row pgx.CollectableRow) (o driver.Outcome, err error) {
		o.Event = event
		err = row.Scan(&o.Body)
		return o, err
	}, "SELECT body FROM ~.outcome WHERE event = $1 ORDER BY number", [16]byte(event))
}
