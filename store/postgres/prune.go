package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// prunedRows bounds the rows of a kind that a commit removes.
const prunedRows = 1024

// queuePrune removes some of the rows whose time is over: remembered ids that expired an hour ago, because the clock of
// another process may be behind; marks of events that are gone; answers; outcomes that are older than the audit; and the history. SKIP LOCKED leaves those that another store uses.
func (p *plan) queuePrune(b *pgx.Batch) {
	s := p.c.store
	prune := func(table, key, where, order string, args ...any) {
		b.Queue(s.sql("DELETE FROM ~."+table+" WHERE "+key+" IN (SELECT "+key+" FROM ~."+table+" WHERE "+where+" ORDER BY "+order+" LIMIT $2 FOR UPDATE SKIP LOCKED)"), append(args, prunedRows)...)
	}
	prune("dedupe", "ctid", "expires <= $1", "expires", storekit.TimeBound(p.now.Add(-time.Hour)))
	prune("request", "id", "answer IS NOT NULL AND answered <= $1", "answered", storekit.TimeBound(p.now.Add(-driver.AnswerAge)))
	const marks = `WITH old AS (
			SELECT ctid, EXISTS (SELECT FROM ~.record r WHERE r.event = m.event) OR EXISTS (SELECT FROM ~.letter l WHERE l.event = m.event)
				OR EXISTS (SELECT FROM ~.incoming i WHERE i.event = m.event) AS used
			FROM ~.mark m WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED
		), gone AS (DELETE FROM ~.mark m USING old WHERE m.ctid = old.ctid AND NOT old.used)
		UPDATE ~.mark m SET until = $3 FROM old WHERE m.ctid = old.ctid AND old.used`
	b.Queue(s.sql(marks), storekit.TimeBound(p.now.Add(-time.Hour)), prunedRows, storekit.TimeBound(p.now))
	// The oldest entry that was not denied has place 1 as long as none was removed.
	const outcomes = `DELETE FROM ~.outcome WHERE number IN (SELECT number FROM ~.outcome
			WHERE audit < (SELECT CASE WHEN place > 1 THEN number ELSE 0 END FROM ~.audit WHERE NOT denied ORDER BY place LIMIT 1)
			ORDER BY audit LIMIT $1 FOR UPDATE SKIP LOCKED)`
	b.Queue(s.sql(outcomes), prunedRows)
	if s.cfg.history > 0 {
		prune("history", "ref", "settled_at <= $1", "settled_at", storekit.TimeBound(p.now.Add(-s.cfg.history)))
	}
}
