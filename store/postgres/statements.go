package postgres

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// queue adds the statements of the plan. Each sends all rows of its kind as arrays. Rows that stores may compete for are
// sorted, so that two commits lock them in the same order.
func (p *plan) queue(b *pgx.Batch) {
	if p.isLarge() {
		b.Queue("SELECT set_config('statement_timeout', $1, true)", strconv.FormatInt(p.c.store.cfg.leaseTime.Milliseconds(), 10))
	}
	if p.release { // as a lease that begins locks it: first
		b.Queue(p.c.store.sql("SELECT 1 FROM ~.slot WHERE id = 0 FOR UPDATE"))
	}
	p.queueFence(b)
	if p.release {
		b.Queue(p.c.store.sql("UPDATE ~.slot SET owner = 0, next_ref = $2 WHERE id = 0 AND owner = $1"), p.c.store.instance.Load(), p.c.row.nextRef)
		b.Queue(p.c.store.sql("UPDATE ~.instance SET epoch = 0, leased = 0 WHERE id = $1"), p.c.store.instance.Load())
	}
	p.queueIDs(b)
	p.queueLetters(b)
	p.queueIncoming(b)
	p.queueInserts(b)
	p.queueUpdates(b)
	p.queueDeletes(b)
	p.queueForgetSettled(b)
	if p.claimed != nil {
		p.queueClaim(b)
	}
	p.queueRequests(b)
	p.queueRest(b)
	if p.prunes() {
		p.queuePrune(b)
	}
}

// isLarge reports whether the commit may take as long as the lease, and not only as long as a statement: a large PublishBatch.
func (p *plan) isLarge() bool { return p.weight > 8<<20 }

// queueChecked adds a statement that must change n rows, or the commit is undone with a state.
func (p *plan) queueChecked(b *pgx.Batch, sql, state, what string, n int, args ...any) {
	args = append(args, int64(n))
	want := "$" + strconv.Itoa(len(args)) // the text is the same for each number of rows: it is prepared once
	b.Queue(p.c.store.sql("WITH changed AS ("+sql+" RETURNING 1) SELECT ~.eventbus_check('"+state+"', count(*), "+want+", '"+what+"') FROM changed"), args...)
}

// queueFence adds the first statement. It is the fence: the commit is undone if the lease is lost, or if the commit was made
// already.
func (p *plan) queueFence(b *pgx.Batch) {
	c := p.c
	changed := func(bit driver.Change) int64 {
		if p.changes&bit != 0 {
			return 1
		}
		return 0
	}
	const sql = `WITH changed AS (UPDATE ~.instance SET batch = batch + 1, expires = clock_timestamp() + $5, next_ref = $6, leased = $7,
			ready = ready + $8, waiting = waiting + $9, scheduled = scheduled + $10, parked = parked + $11, letters = letters - $12,
			incoming = incoming + $13, requests = requests + $14, answers = answers + $15, directives = directives + $16, catalogs = catalogs + $17
			WHERE id = $1 AND epoch = $2 AND batch = $3 AND tries = $4 RETURNING 1)
		SELECT ~.eventbus_check('` + stateFenced + `', count(*), 1, 'the fence') FROM changed`
	b.Queue(c.store.sql(sql), c.store.instance.Load(), c.row.epoch, c.row.batch, c.row.tries, c.store.cfg.leaseTime, c.row.nextRef, int64(len(c.leased)),
		p.states[driver.Ready], p.states[driver.Waiting], p.states[driver.Scheduled], p.states[driver.Parked], p.letters,
		changed(driver.ChangedIncoming), changed(driver.ChangedRequests), changed(driver.ChangedAnswers),
		changed(driver.ChangedDirectives), changed(driver.ChangedCatalogs))
}

// queueIDs adds the changes of remembered ids.
func (p *plan) queueIDs(b *pgx.Batch) {
	var scopes, keys, contents, first, firstScopes, last, lastScopes [][]byte
	var events [][16]byte
	var expires, aged []string
	for _, k := range slices.SortedFunc(maps.Keys(p.ids), func(x, y dedupeKey) int {
		return cmp.Or(cmp.Compare(x.scope, y.scope), cmp.Compare(x.key, y.key))
	}) {
		r := p.ids[k]
		scope, key := []byte(k.scope), []byte(k.key)
		if r.forgetFirst {
			firstScopes, first = append(firstScopes, scope), append(first, key)
		}
		if d := r.remember; d != nil {
			scopes, keys, contents, events = append(scopes, scope), append(keys, key), append(contents, []byte(d.Content)), append(events, d.Event)
			expires, aged = append(expires, storekit.TimeText(d.Expires)), append(aged, storekit.TimeBound(r.aged))
		}
		if r.forgetLast {
			lastScopes, last = append(lastScopes, scope), append(last, key)
		}
	}
	const forget = "DELETE FROM ~.dedupe WHERE (scope, key) IN (SELECT * FROM unnest($1::bytea[], $2::bytea[]))"
	if len(first) > 0 {
		b.Queue(p.c.store.sql(forget), firstScopes, first)
	}
	if len(keys) > 0 {
		const remember = `INSERT INTO ~.dedupe AS d (scope, key, event, content, expires)
			SELECT scope, key, event, content, expires FROM unnest($1::bytea[], $2::bytea[], $3::uuid[], $4::bytea[], $5::text[], $6::text[]) AS n(scope, key, event, content, expires, aged)
			ON CONFLICT (scope, key) DO UPDATE SET event = excluded.event, content = excluded.content, expires = excluded.expires
			WHERE d.expires <= (SELECT a.aged COLLATE "C" FROM unnest($1::bytea[], $2::bytea[], $6::text[]) AS a(scope, key, aged) WHERE a.scope = d.scope AND a.key = d.key)`
		p.queueChecked(b, remember, stateRace, "remembered ids", len(keys), scopes, keys, events, contents, expires, aged)
	}
	if len(last) > 0 {
		b.Queue(p.c.store.sql(forget), lastScopes, last)
	}
}

func (p *plan) queueLetters(b *pgx.Batch) {
	if n := len(p.take); n > 0 {
		p.queueChecked(b, "DELETE FROM ~.letter WHERE id = ANY($1::uuid[])", stateRace, "taken letters", n, sortedIDs(p.take))
	}
	n := len(p.bury)
	if n == 0 {
		return
	}
	ids, events := make([][16]byte, n), make([][16]byte, n)
	var columns [9][][]byte // type, key, subscription, reason, fingerprint, details, failures, payload, original
	published, died := make([]string, n), make([]string, n)
	letters := slices.Clone(p.bury)
	slices.SortStableFunc(letters, func(x, y *driver.Letter) int { return bytes.Compare(x.ID[:], y.ID[:]) })
	for i, l := range letters {
		ids[i], events[i] = l.ID, l.Event
		published[i], died[i] = storekit.TimeText(l.Published), storekit.TimeText(l.DiedAt)
		for k, column := range [][]byte{
			[]byte(l.Type), []byte(l.Key), []byte(l.Subscription), []byte(l.Reason), []byte(l.Fingerprint), l.Details, l.Failures, l.Payload, l.Original,
		} {
			columns[k] = append(columns[k], column)
		}
	}
	const sql = `WITH buried AS (INSERT INTO ~.letter (id, event, type, key, subscription, reason, fingerprint, details, failures, payload, original, published, died_at)
			SELECT * FROM unnest($2::uuid[], $3::uuid[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bytea[], $9::bytea[], $10::bytea[], $11::bytea[], $12::bytea[], $13::text[], $14::text[])
			ON CONFLICT (id) DO NOTHING RETURNING 1)
		UPDATE ~.instance SET letters = letters + (SELECT count(*) FROM buried) WHERE id = $1`
	b.Queue(p.c.store.sql(sql), p.c.store.instance.Load(), ids, events, columns[0], columns[1], columns[2], columns[3], columns[4],
		columns[5], columns[6], columns[7], columns[8], published, died)
}

// sortedIDs returns ids for a parameter.
func sortedIDs(ids []driver.ID) [][16]byte {
	all := make([][16]byte, len(ids))
	for i, id := range ids {
		all[i] = id
	}
	slices.SortFunc(all, func(x, y [16]byte) int { return bytes.Compare(x[:], y[:]) })
	return all
}

// queueIncoming removes and inserts incoming events.
func (p *plan) queueIncoming(b *pgx.Batch) {
	if n := len(p.withdraw); n > 0 {
		const sql = `WITH changed AS (DELETE FROM ~.incoming WHERE event = ANY($1::uuid[]) RETURNING event)
			SELECT ~.eventbus_check('` + stateRace + `', count(DISTINCT event), $2, 'withdrawn events') FROM changed`
		b.Queue(p.c.store.sql(sql), sortedIDs(p.withdraw), int64(n))
	}
	if n := len(p.accept); n > 0 {
		p.queueChecked(b, "DELETE FROM ~.incoming WHERE id = ANY($1::bigint[])", stateRace, "accepted events", n, slices.Sorted(slices.Values(p.accept)))
	}
	n := len(p.left)
	if n == 0 {
		return
	}
	columns := newIncomingColumns(n)
	for _, in := range p.left {
		columns.add(in)
	}
	b.Queue(p.c.store.sql("INSERT INTO ~.incoming (id, event, slot, state, due, body, given, codec) SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::smallint[], $4::smallint[], $5::text[], $6::bytea[], $7::boolean[], $8::bytea[])"),
		p.facts.incomingIDs[:n], columns.events, columns.slots, columns.states, columns.dues, columns.bodies, columns.givens, columns.codecs)
}

// live has the columns of records that change with each update.
type live struct {
	refs, owners        []int64
	kinds, crashes      []int16
	suspects            []bool
	dues                []*string
	doors, destinations [][]byte
	progress            [][]byte
}

func (l *live) add(ref driver.Ref, r *driver.Record, owner int64) {
	kind := int16(r.State)
	if r.Key != "" {
		kind |= kindKeyed
	}
	l.refs, l.owners, l.kinds = append(l.refs, int64(ref)), append(l.owners, owner), append(l.kinds, kind)
	l.crashes, l.suspects = append(l.crashes, int16(r.Crashes)), append(l.suspects, r.Suspect)
	l.dues, l.progress = append(l.dues, dueText(r.Due)), append(l.progress, r.Progress)
	l.doors, l.destinations = append(l.doors, nameOrNull(r.Door)), append(l.destinations, nameOrNull(r.Destination))
}

// nameOrNull returns the column of a name that may be empty.
func nameOrNull(name string) []byte {
	if name == "" {
		return nil
	}
	return []byte(name)
}

// dueText returns the column of a time that may be zero.
func dueText(due time.Time) *string {
	if due.IsZero() {
		return nil
	}
	text := storekit.TimeText(due)
	return &text
}

// ownerOf returns the owner of a record after a commit under the lease.
func (p *plan) ownerOf(leased bool) int64 {
	if leased {
		return p.c.row.epoch
	}
	return -p.c.row.epoch
}

func (p *plan) queueInserts(b *pgx.Batch) {
	n := len(p.inserts)
	if n == 0 {
		return
	}
	var l live
	positions, events, bodies, expires := make([]int64, n), make([][16]byte, n), make([][]byte, n), make([]*string, n)
	for i, x := range p.inserts {
		l.add(x.ref, x.record, p.ownerOf(x.leased))
		positions[i], events[i], bodies[i] = x.position, x.record.ID, storekit.AppendBody(nil, x.record)
		expires[i] = dueText(x.record.Expires)
	}
	const sql = `INSERT INTO ~.record (ref, position, owner, event, kind, suspect, due, door, destination, progress, body, expires)
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::uuid[], $5::smallint[], $6::boolean[], $7::text[], $8::bytea[], $9::bytea[], $10::bytea[], $11::bytea[], $12::text[])`
	b.Queue(p.c.store.sql(sql), l.refs, positions, l.owners, events, l.kinds, l.suspects, l.dues, l.doors, l.destinations, l.progress, bodies, expires)
}

func (p *plan) queueUpdates(b *pgx.Batch) {
	var l live
	for _, ref := range p.updated {
		if r := p.updates[ref]; r != nil { // otherwise it is deleted, too
			l.add(ref, r, p.ownerOf(r.Leased))
		}
	}
	if len(l.refs) == 0 {
		return
	}
	const sql = `UPDATE ~.record r SET kind = (r.kind & 4) | (n.kind & 3), owner = n.owner, crashes = n.crashes, suspect = n.suspect, due = n.due, door = n.door,
			destination = n.destination, progress = n.progress
		FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::smallint[], $5::boolean[], $6::text[], $7::bytea[], $8::bytea[], $9::bytea[]) AS n(ref, owner, kind, crashes, suspect, due, door, destination, progress)
		WHERE r.ref = n.ref AND r.owner = $10`
	p.queueChecked(b, sql, stateMissing, "updated records", len(l.refs), l.refs, l.owners, l.kinds, l.crashes, l.suspects, l.dues, l.doors, l.destinations, l.progress, p.c.row.epoch)
}

// queueForgetSettled removes the remembered entries of ForgetSettled of whose events nothing is left. It comes after the records.
func (p *plan) queueForgetSettled(b *pgx.Batch) {
	n := len(p.forgotten)
	if n == 0 {
		return
	}
	scopes, keys, events, expires := make([][]byte, n), make([][]byte, n), make([][16]byte, n), make([]string, n)
	for i, d := range p.forgotten {
		scopes[i], keys[i], events[i], expires[i] = []byte(d.Scope), []byte(d.Key), d.Event, ""
		if !d.Expires.IsZero() {
			expires[i] = storekit.TimeText(d.Expires)
		}
	}
	const sql = `DELETE FROM ~.dedupe d USING unnest($1::bytea[], $2::bytea[], $3::uuid[], $4::text[]) AS s(scope, key, event, expires)
		WHERE d.scope = s.scope AND d.key = s.key AND d.event = s.event AND (s.expires = '' OR d.expires = s.expires)
			AND NOT EXISTS (SELECT 1 FROM ~.record r WHERE r.event = s.event) AND NOT EXISTS (SELECT 1 FROM ~.incoming i WHERE i.event = s.event)`
	b.Queue(p.c.store.sql(sql), scopes, keys, events, expires)
}

func (p *plan) queueDeletes(b *pgx.Batch) {
	if n := len(p.deletes); n > 0 {
		p.queueChecked(b, "DELETE FROM ~.record WHERE ref = ANY($1::bigint[]) AND owner = $2", stateMissing, "deleted records", n, p.deletes, p.c.row.epoch)
	}
	n := len(p.settled)
	if n == 0 {
		return
	}
	refs, events, types, keys, dead, at := make([]int64, n), make([][16]byte, n), make([][]byte, n), make([][]byte, n), make([]bool, n), make([]string, n)
	for i, s := range p.settled {
		refs[i], events[i], types[i], keys[i], dead[i], at[i] = int64(s.ref), s.of.event, []byte(s.of.eventType), []byte(s.of.key), s.dead, storekit.TimeBound(s.at)
	}
	const sql = `INSERT INTO ~.history (ref, event, type, key, dead, settled_at)
		SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::bytea[], $4::bytea[], $5::boolean[], $6::text[]) ON CONFLICT (ref) DO NOTHING`
	b.Queue(p.c.store.sql(sql), refs, events, types, keys, dead, at)
}

func (p *plan) queueRequests(b *pgx.Batch) {
	if n := len(p.asked); n > 0 {
		bodies := make([][]byte, n)
		for i, r := range p.asked {
			bodies[i] = r.Body
		}
		b.Queue(p.c.store.sql("INSERT INTO ~.request (id, body) SELECT * FROM unnest($1::bigint[], $2::bytea[])"), p.facts.requestIDs[:n], bodies)
	}
	if n := len(p.unask); n > 0 {
		p.queueChecked(b, "DELETE FROM ~.request WHERE id = ANY($1::bigint[]) AND answer IS NULL", stateRace, "requests taken back", n, p.unask)
	}
	if n := len(p.answers); n > 0 {
		ids, bodies, at := make([]int64, n), make([][]byte, n), make([]string, n)
		for i, a := range p.answers {
			ids[i], bodies[i], at[i] = int64(a.id), a.body, storekit.TimeBound(a.at)
		}
		const sql = `UPDATE ~.request r SET answer = n.answer, answered = n.answered
			FROM unnest($1::bigint[], $2::bytea[], $3::text[]) AS n(id, answer, answered) WHERE r.id = n.id AND r.answer IS NULL`
		p.queueChecked(b, sql, stateRace, "answered requests", n, ids, bodies, at)
	}
}

// queueIfCatalogs checks that the catalogs are those with which the plan was made.
func (p *plan) queueIfCatalogs(b *pgx.Batch) {
	if p.ifCatalogs == nil {
		return
	}
	instances, bodies := [][]byte{}, [][]byte{}
	for _, c := range p.ifCatalogs {
		instances, bodies = append(instances, []byte(c.Instance)), append(bodies, c.Body)
	}
	const sql = `SELECT ~.eventbus_check('` + stateRace + `', (SELECT count(*) FROM ~.catalog) +
			(SELECT count(*) FROM ~.catalog c JOIN unnest($1::bytea[], $2::bytea[]) AS n(instance, body) ON c.instance = n.instance AND c.body = n.body),
			$3, 'catalogs')`
	b.Queue(p.c.store.sql(sql), instances, bodies, int64(2*len(instances)))
}

// queueRest adds directives, audit entries, outcomes and catalogs.
func (p *plan) queueRest(b *pgx.Batch) {
	var names, bodies [][]byte
	for _, name := range slices.Sorted(maps.Keys(p.directive)) {
		names, bodies = append(names, []byte(name)), append(bodies, p.directive[name])
	}
	if len(names) > 0 {
		const sql = `INSERT INTO ~.directive (subscription, body) SELECT * FROM unnest($1::bytea[], $2::bytea[])
			ON CONFLICT (subscription) DO UPDATE SET body = excluded.body`
		b.Queue(p.c.store.sql(sql), names, bodies)
	}
	p.queueAudit(b)
	p.queueOutcomes(b)
	p.queueIfCatalogs(b)
	for _, instance := range slices.Sorted(maps.Keys(p.catalogs)) {
		c := p.catalogs[instance]
		if c.remove {
			b.Queue(p.c.store.sql("DELETE FROM ~.catalog WHERE instance = $1"), []byte(instance))
		}
		if c.body != nil {
			const sql = `INSERT INTO ~.catalog (instance, seen, body) VALUES ($1, $2, $3)
				ON CONFLICT (instance) DO UPDATE SET seen = excluded.seen, body = excluded.body`
			b.Queue(p.c.store.sql(sql), []byte(instance), storekit.TimeBound(c.seen), c.body)
		}
	}
}
