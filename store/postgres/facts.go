package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// facts is what the database has, as far as the batches of a group depend on it, and numbers for what they insert. Another
// store may change it before the commit: the statements of the plan check it.
//
// A plan is usually made without the remembered ids and incoming events. It assumes that ids are new and events are there,
// which saves a round trip. If the commit is undone because that is wrong, they are read.
type facts struct {
	known        map[dedupeKey]*driver.Dedupe
	letters      map[driver.ID]bool
	withdrawable map[driver.ID]bool // have an incoming event
	incoming     map[driver.IncomingID]driver.ID
	open         map[int64]bool // requests without an answer
	catalogs     []driver.Catalog
	complete     bool // known and incoming were read
	incomingIDs  []int64
	requestIDs   []int64
}

// read reads the facts for a group, in one round trip, or in none. again is not nil if the plan without the ids and events was
// wrong. A claim reads its records.
func (c *committer) read(ctx context.Context, group []*job, again *facts) (*facts, error) {
	f := new(facts)
	if len(group) == 1 && group[0].Batch == nil {
		if r := group[0].Work; c.row.epoch != 0 && r.ctx.Err() == nil {
			return f, r.read(ctx, c.store, c.conn, c.row.epoch)
		}
		return f, nil // it is refused
	}
	b := &pgx.Batch{}
	for _, j := range group {
		f.queueFor(c, b, j.Batch)
	}
	if again != nil {
		f.queueAgain(c, b, group)
		f.complete = true
	}
	f.queueNumbers(c, b, group)
	if b.Len() == 0 {
		return f, nil
	}
	return f, c.conn.SendBatch(ctx, b).Close()
}

// queueFor adds queries for parts of a batch whose outcome always depends on what is there.
func (f *facts) queueFor(c *committer, b *pgx.Batch, batch *driver.Batch) {
	if len(batch.Take) > 0 {
		f.letters = make(map[driver.ID]bool)
		queueSet(b, f.letters, c.store.sql("SELECT id FROM ~.letter WHERE id = ANY($1::uuid[])"), sortedIDs(batch.Take))
	}
	if len(batch.Withdraw) > 0 {
		f.withdrawable = make(map[driver.ID]bool)
		queueSet(b, f.withdrawable, c.store.sql("SELECT event FROM ~.incoming WHERE event = ANY($1::uuid[])"), sortedIDs(batch.Withdraw))
		f.queueIncoming(c, b, batch.Accept)
	}
	if batch.IfCatalogs != nil {
		f.catalogs = nil
		b.Queue(c.store.sql("SELECT instance, body FROM ~.catalog")).Query(eachRow(func(rows pgx.Rows) error {
			var instance, body []byte
			if err := rows.Scan(&instance, &body); err != nil {
				return err
			}
			f.catalogs = append(f.catalogs, driver.Catalog{Instance: string(instance), Body: body})
			return nil
		}))
	}
	if ids := endedRequests(batch); len(ids) > 0 {
		f.open = make(map[int64]bool)
		queueSet(b, f.open, c.store.sql("SELECT id FROM ~.request WHERE id = ANY($1::bigint[]) AND answer IS NULL"), ids)
	}
}

// endedRequests returns the requests that a batch removes or answers.
func endedRequests(b *driver.Batch) (ids []int64) {
	for _, id := range b.Unask {
		ids = append(ids, int64(id))
	}
	for _, a := range b.Answer {
		ids = append(ids, int64(a.Request))
	}
	return ids
}

// queueSet adds a query for the elements of a set.
func queueSet[T comparable](b *pgx.Batch, set map[T]bool, sql string, args ...any) {
	b.Queue(sql, args...).Query(eachRow(func(rows pgx.Rows) error {
		var element T
		err := rows.Scan(&element)
		set[element] = true
		return err
	}))
}

// queueAgain adds queries for what a plan usually assumes.
func (f *facts) queueAgain(c *committer, b *pgx.Batch, group []*job) {
	var scopes, keys [][]byte
	var accept []driver.IncomingID
	for _, j := range group {
		for _, d := range j.Batch.Remember {
			scopes, keys = append(scopes, []byte(d.Scope)), append(keys, []byte(d.Key))
		}
		accept = append(accept, j.Batch.Accept...)
	}
	if len(keys) > 0 {
		f.known = make(map[dedupeKey]*driver.Dedupe)
		const sql = "SELECT scope, key, event, content, expires FROM ~.dedupe WHERE (scope, key) IN (SELECT * FROM unnest($1::bytea[], $2::bytea[]))"
		b.Queue(c.store.sql(sql), scopes, keys).Query(eachRow(func(rows pgx.Rows) error {
			d, err := scanDedupe(rows)
			if err == nil {
				f.known[dedupeKey{d.Scope, d.Key}] = &d
			}
			return err
		}))
	}
	f.queueIncoming(c, b, accept)
}

func (f *facts) queueIncoming(c *committer, b *pgx.Batch, accept []driver.IncomingID) {
	if len(accept) == 0 {
		return
	}
	ids := make([]int64, len(accept))
	for i, id := range accept {
		ids[i] = int64(id)
	}
	f.incoming = make(map[driver.IncomingID]driver.ID)
	b.Queue(c.store.sql("SELECT id, event FROM ~.incoming WHERE id = ANY($1::bigint[])"), ids).Query(eachRow(func(rows pgx.Rows) error {
		var id int64
		var event driver.ID
		err := rows.Scan(&id, (*[16]byte)(&event))
		f.incoming[driver.IncomingID(id)] = event
		return err
	}))
}

// queueNumbers takes ids for what the group inserts in incoming and request. They are not taken in the commit: its answer may
// be lost. They are not taken in advance either: a later transaction of a caller would get a smaller one.
func (f *facts) queueNumbers(c *committer, b *pgx.Batch, group []*job) {
	left, asked := 0, 0
	for _, j := range group {
		left += len(j.Batch.Leave)
		asked += len(j.Batch.Ask)
	}
	for _, of := range []struct {
		table string
		n     int
		to    *[]int64
	}{{"incoming", left, &f.incomingIDs}, {"request", asked, &f.requestIDs}} {
		if of.n == 0 {
			continue
		}
		sql := "SELECT nextval(pg_get_serial_sequence('~." + of.table + "', 'id')) FROM generate_series(1, $1)"
		b.Queue(c.store.sql(sql), of.n).Query(func(rows pgx.Rows) (err error) {
			*of.to, err = pgx.CollectRows(rows, pgx.RowTo[int64])
			return err
		})
	}
}

func eachRow(row func(pgx.Rows) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		for rows.Next() {
			if err := row(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// scanDedupe reads a row of scope, key, event, content and expires.
func scanDedupe(row pgx.CollectableRow) (d driver.Dedupe, err error) {
	var scope, key, content []byte
	var expires string
	if err := row.Scan(&scope, &key, (*[16]byte)(&d.Event), &content, &expires); err != nil {
		return d, err
	}
	d.Scope, d.Key, d.Content = string(scope), string(key), string(content)
	if d.Expires, err = storekit.ParseTime(expires); err != nil {
		err = &CorruptError{Table: "dedupe", Row: d.Key, Detail: err.Error()}
	}
	return d, err
}
