package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// parseDue returns the time of a column that may be NULL.
func parseDue(text *string) (time.Time, error) {
	if text == nil {
		return time.Time{}, nil
	}
	return storekit.ParseTime(*text)
}

// holder is the epoch of the lease that a store has, or -1.
const holder = "coalesce((SELECT i.epoch FROM ~.slot JOIN ~.instance i ON i.id = slot.owner AND i.epoch = slot.epoch WHERE slot.id = 0), -1)"

// scanHeld reads a row of recordColumns and holder.
func scanHeld(row pgx.CollectableRow) (*driver.Record, error) {
	var epoch int64
	r, owner, err := scanRecord(row, &epoch)
	if err == nil {
		r.Leased = owner == epoch
	}
	return r, err
}

// Lookup returns the unsettled records of an event. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Lookup(ctx context.Context, id driver.ID) ([]*driver.Record, error) {
	const sql = "SELECT " + recordColumns + ", " + holder + " FROM ~.record WHERE event = $1 ORDER BY ref"
	return list(ctx, s, "Lookup("+id.String()+")", scanHeld, sql, [16]byte(id))
}

// Records returns a page of records. Each record after q.After is read and compared, apart from those in other States. See
// [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Records(ctx context.Context, q driver.RecordQuery) (driver.RecordPage, error) {
	const sql = "SELECT " + recordColumns + ", " + holder + " FROM ~.record WHERE ref > $1 AND kind & 3 = ANY($2::smallint[]) ORDER BY ref LIMIT $3"
	states := []int16{0, 1, 2, 3}
	if len(q.States) > 0 {
		states = nil
		for _, state := range q.States {
			states = append(states, int16(state))
		}
	}
	return reading(ctx, s, "Records", func(ctx context.Context, db querier) (page driver.RecordPage, err error) {
		after, more := int64(q.After), true
		for more && page.Next == 0 {
			found := 0
			err := each(ctx, db, s.sql(sql), func(rows pgx.Rows) error {
				r, err := scanHeld(rows)
				if err != nil {
					return err
				}
				found++
				switch after = int64(r.Ref); {
				case !q.Matches(r):
				case len(page.Records) < q.Limit:
					page.Records = append(page.Records, r)
				default:
					page.Next = page.Records[q.Limit-1].Ref
				}
				return nil
			}, after, states, pageRows)
			if err != nil {
				return page, err
			}
			more = found == pageRows
		}
		return page, nil
	})
}

// Remembered returns a remembered id. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Remembered(ctx context.Context, scope, key string) (d driver.Dedupe, known bool, err error) {
	const sql = "SELECT scope, key, event, content, expires FROM ~.dedupe WHERE scope = $1 AND key = $2"
	found, err := list(ctx, s, "Remembered", scanDedupe, sql, []byte(scope), []byte(key))
	if err != nil || len(found) == 0 {
		return d, false, err
	}
	return found[0], true, nil
}

// Stats returns the sums of the counters that each commit updates, and counts the incoming events. See [driver.Store].
//
// The records of a bus that was killed count as leased until the next store acquires the lease.
//
// Errors: driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Stats(ctx context.Context) (driver.Stats, error) {
	const sql = `SELECT sum(ready)::bigint, sum(waiting)::bigint, sum(scheduled)::bigint, sum(parked)::bigint, sum(letters)::bigint, sum(leased)::bigint,
		(SELECT count(*) FROM ~.incoming) FROM ~.instance`
	return reading(ctx, s, "Stats", func(ctx context.Context, db querier) (stats driver.Stats, err error) {
		var leased int64
		err = db.QueryRow(ctx, s.sql(sql)).Scan(&stats.Ready, &stats.Waiting, &stats.Scheduled, &stats.Parked, &stats.Letters, &leased, &stats.Incoming)
		stats.Free = stats.Unsettled() - leased
		return stats, err
	})
}

// maxParked bounds the records that Parked counts.
const maxParked = 100_000

// Parked counts parked records by door. See [driver.Store].
//
// Errors: driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Parked(ctx context.Context, except map[string]bool) (map[string]int64, error) {
	const sql = `SELECT door, count(*) FROM (SELECT door FROM ~.record WHERE ` + whereParked + ` AND door <> ALL($1::bytea[]) LIMIT $2) AS parked GROUP BY door`
	names := [][]byte{}
	for name, leaveOut := range except {
		if leaveOut {
			names = append(names, []byte(name))
		}
	}
	return reading(ctx, s, "Parked", func(ctx context.Context, db querier) (map[string]int64, error) {
		doors := make(map[string]int64)
		err := each(ctx, db, s.sql(sql), func(rows pgx.Rows) error {
			var door []byte
			var n int64
			err := rows.Scan(&door, &n)
			doors[string(door)] = n
			return err
		}, names, maxParked)
		return doors, err
	})
}
