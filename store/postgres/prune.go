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
// another process may be behind; answers; and the history. SKIP LOCKED leaves those that another store uses.
func (p *plan) queuePrune(b *pgx.Batch) {
	s := p.c.store
	prune := func(table, key, where, order string, args ...any) {
		b.Queue(s.sql("DELETE FROM ~."+table+" WHERE "+key+" IN (SELECT "+key+" FROM ~."+table+" WHERE "+where+" ORDER BY "+order+" LIMIT $2 FOR UPDATE SKIP LOCKED)"), append(args, prunedRows)...)
	}
	prune("dedupe", "ctid", "expires <= $1", "expires", storekit.TimeBound(p.now.Add(-time.Hour)))
	prune("request", "id", "answer IS NOT NULL AND answered <= $1", "answered", storekit.TimeBound(p.now.Add(-driver.AnswerAge)))
	if s.cfg.history > 0 {
		prune("history", "ref", "settled_at <= $1", "settled_at", storekit.TimeBound(p.now.Add(-s.cfg.history)))
	}
}
