package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// claim is a Claim in progress. The committer reads the records and leases them: nobody else writes records, so they do not
// change in between.
type claim struct {
	ctx     context.Context
	q       driver.ClaimQuery
	decided sync.Once // whether it has begun, or its context has ended before that
	begun   bool      // written by decided
	claimed driver.Claimed
	owners  []int64 // of claimed.Records
}

// Weight estimates what the claim writes. See storekit.Work.
func (r *claim) Weight() int { return r.q.Limit * storekit.RowWeight }

// Claim leases free records. See [driver.Store].
//
// Errors: driver.ErrNoLease, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error. ctx bounds the wait for
// the commits before it, and ends attempts to reach the server.
func (s *Store) Claim(ctx context.Context, q driver.ClaimQuery) (driver.Claimed, error) {
	r := &claim{ctx: ctx, q: q}
	err := s.state()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && !s.Lease().IsHeld() {
		err = driver.ErrNoLease
	}
	if err == nil {
		result := make(chan error, 1)
		s.committer.queue.Add(&job{Work: r, Done: func(err error) { result <- err }})
		select {
		case err = <-result:
		case <-ctx.Done():
			if r.decided.Do(func() { err = ctx.Err() }); err == nil {
				err = <-result
			}
		}
	}
	if err != nil {
		return driver.Claimed{}, fmt.Errorf("Claim: %w", err)
	}
	return r.claimed, nil
}

// recordColumns are the columns that scanRecord reads.
const recordColumns = "ref, position, owner, event, kind, crashes, suspect, due, door, progress, body, destination, expires"

// scanRecord reads a row of recordColumns, and more columns.
func scanRecord(row pgx.Row, more ...any) (r *driver.Record, owner int64, err error) {
	var ref int64
	var kind, crashes int16
	var due, expires *string
	var door, body, destination []byte
	r = new(driver.Record)
	columns := []any{&ref, &r.Position, &owner, (*[16]byte)(&r.ID), &kind, &crashes, &r.Suspect, &due, &door, &r.Progress, &body, &destination, &expires}
	if err := row.Scan(append(columns, more...)...); err != nil {
		return nil, 0, err
	}
	r.Ref, r.State, r.Crashes = driver.Ref(ref), driver.State(kind&kindStateMask), int(crashes)
	r.Door, r.Destination = string(door), string(destination)
	corrupt := func(detail string) error {
		return &CorruptError{Table: "record", Row: fmt.Sprint(ref), Detail: detail}
	}
	if err := storekit.DecodeBody(body, r); err != nil {
		return nil, 0, corrupt(err.Error())
	}
	if r.Due, err = parseDue(due); err != nil {
		return nil, 0, corrupt(err.Error())
	}
	if want := dueText(r.Expires); (want == nil) != (expires == nil) || want != nil && *want != *expires {
		return nil, 0, corrupt("the column expires does not match the body")
	}
	if keyed := kind&kindKeyed != 0; keyed != (r.Key != "") || kind>>3 != 0 {
		return nil, 0, corrupt("the column kind does not match the key")
	}
	return r, owner, nil
}

// read reads the records that match.
func (r *claim) read(ctx context.Context, s *Store, db querier, epoch int64) error {
	r.claimed, r.owners = driver.Claimed{}, nil
	sql, args, err := r.statement(epoch)
	if err != nil {
		return err
	}
	err = each(ctx, db, s.sql(sql), func(rows pgx.Rows) error {
		if len(r.claimed.Records) == r.q.Limit {
			r.claimed.More = true
			return nil
		}
		n, owner, err := scanRecord(rows)
		r.claimed.Records, r.owners = append(r.claimed.Records, n), append(r.owners, owner)
		return err
	}, args...)
	var of string
	switch r.q.Kind {
	case driver.ClaimDue:
		of = "SELECT min(due) FROM ~.record WHERE " + whereDue + " AND due > $1"
	case driver.ClaimExpired:
		of = "SELECT min(expires) FROM ~.record WHERE " + whereExpires + " AND expires > $1"
	case driver.ClaimReady, driver.ClaimParked, driver.ClaimRefs:
	}
	if err != nil || of == "" {
		return err
	}
	var next *string
	if err := db.QueryRow(ctx, s.sql(of), storekit.TimeBound(r.q.Now)).Scan(&next); err != nil {
		return err
	}
	r.claimed.NextDue, err = parseDue(next)
	return err
}

// statement returns the query that reads the records, and one more, with its arguments.
func (r *claim) statement(epoch int64) (sql string, args []any, err error) {
	limit := int64(math.MaxInt64)
	if r.q.Limit < math.MaxInt32 {
		limit = int64(r.q.Limit) + 1
	}
	var from, order string
	switch r.q.Kind {
	case driver.ClaimReady:
		from, order = "~.record WHERE "+whereReady+" AND (kind IN (0, 4) OR owner <> $2)", "position, ref"
		args = []any{-epoch}
	case driver.ClaimDue:
		from, order = "~.record WHERE "+whereDue+" AND (due IS NULL OR due <= $2)", "due NULLS FIRST, ref"
		args = []any{storekit.TimeBound(r.q.Now)}
	case driver.ClaimParked:
		from, args = r.parked(epoch)
		order = "position, ref"
	case driver.ClaimRefs:
		from, order = "~.record WHERE owner <= 0 AND ref = ANY($2)", "ref"
		args = []any{refsOf(r.q.Refs)}
	case driver.ClaimExpired:
		from, order = "~.record WHERE "+whereExpires+" AND expires <= $2", "expires, ref"
		args = []any{storekit.TimeBound(r.q.Now)}
	default:
		return "", nil, fmt.Errorf("postgres: ClaimKind %d is unknown", r.q.Kind)
	}
	return "SELECT " + recordColumns + " FROM " + from + " ORDER BY " + order + " LIMIT $1", append([]any{limit}, args...), nil
}

// refsOf returns refs as columns have them.
func refsOf(refs []driver.Ref) []int64 {
	all := make([]int64, len(refs))
	for i, ref := range refs {
		all[i] = int64(ref)
	}
	return all
}

// parked returns what ClaimParked selects from: the first records of each door, and of each destination that the query asks
// for. Each part is read in the order of an index. A condition with ANY would make the server sort all that is parked.
func (r *claim) parked(epoch int64) (from string, args []any) {
	part := func(of, where string) string {
		return "SELECT first.* FROM unnest($2::bytea[]) AS at(of_door)" + of + ", LATERAL (SELECT * FROM ~.record WHERE " + where +
			" AND door = of_door AND owner <= 0 AND (kind = 3 OR owner = $3) ORDER BY position, ref LIMIT $1) AS first"
	}
	args = []any{bytesOf(r.q.Doors), -epoch}
	named := slices.DeleteFunc(slices.Clone(r.q.Destinations), func(name string) bool { return name == "" })
	var parts []string
	if len(named) > 0 {
		args = append(args, bytesOf(named))
		parts = append(parts, part(", unnest($4::bytea[]) AS of(of_destination)", whereDirected+" AND destination = of_destination"))
	}
	switch {
	case len(named) < len(r.q.Destinations):
		parts = append(parts, part("", whereParked+" AND destination IS NULL"))
	case len(named) > 0:
	case len(r.q.OtherThan) > 0:
		args = append(args, bytesOf(r.q.OtherThan))
		parts = append(parts, part("", whereParked+" AND coalesce(destination, '') NOT IN (SELECT unnest($4::bytea[]))"))
	default:
		parts = append(parts, part("", whereParked))
	}
	return "(" + strings.Join(parts, " UNION ALL ") + ") AS parked", args
}

// claim adds the lease of the records to the plan, or returns why it does not.
func (p *plan) claim(r *claim) error {
	if p.c.row.epoch == 0 {
		return driver.ErrNoLease
	}
	r.decided.Do(func() { r.begun = true })
	if err := r.ctx.Err(); err != nil || !r.begun {
		return err
	}
	for _, n := range r.claimed.Records {
		p.set(n.Ref, held{n.State, p.about(n)})
	}
	if len(r.claimed.Records) > 0 {
		p.claimed, p.written = r, true
	}
	return nil
}

func (p *plan) queueClaim(b *pgx.Batch) {
	refs := make([]int64, len(p.claimed.claimed.Records))
	for i, n := range p.claimed.claimed.Records {
		refs[i] = int64(n.Ref)
	}
	const sql = "UPDATE ~.record SET owner = $2, suspect = false WHERE ref = ANY($1::bigint[]) AND owner <= 0"
	p.queueChecked(b, sql, stateMissing, "claimed records", len(refs), refs, p.c.row.epoch)
}

// finish sets what Claim sets in the records.
func (r *claim) finish(epoch int64) {
	for i, n := range r.claimed.Records {
		n.Leased, n.Suspect, n.Own = true, false, r.owners[i] == -epoch
	}
}
