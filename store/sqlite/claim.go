package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// claimState is what Claim remembers during a lease.
//
// The records that an earlier lease left behind have its epoch as owner and are in no index of free
// records. ClaimReady finds them by scanning the table in the order of Ref, once: behind a cursor
// there are none. Those whose Position is not their Ref are in the index record_beside.
type claimState struct {
	epoch  int64     // 0 without a lease
	end    int64     // next_ref at the beginning of the lease: no such record has a larger ref
	ref    int64     // cursor of the scan
	beside candidate // cursor in record_beside
	done   bool      // the scan has ended
}

func (c *committer) newClaimState() claimState {
	return claimState{epoch: c.epoch, end: c.meta.nextRef, done: c.meta.nextRef == 1}
}

// loadCrashes reads the leases that ended without Release and Close.
func (c *committer) loadCrashes() (map[int64]crashedLease, error) {
	crashed := make(map[int64]crashedLease)
	err := query(c.w.conn, "SELECT epoch, suspects FROM eventbus_crash", func(stmt *sqlite3.Stmt) error {
		crashed[stmt.ColumnInt64(0)] = crashedLease{suspects: stmt.ColumnInt64(1) != 0}
		return nil
	})
	return crashed, err
}

// candidate is a free record that matches a query.
type candidate struct {
	at    int64     // Position
	due   time.Time // instead, for ClaimDue; for ClaimExpired, Expires
	ref   int64
	owner int64

	orphan, orphanBeside bool // found by the scan, or in record_beside
}

func compareCandidates(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.at, b.at), a.due.Compare(b.due), cmp.Compare(a.ref, b.ref))
}

// Claim leases free records. It reads on a connection of its own and leases with the next commit.
// See [driver.Store].
//
// Errors: driver.ErrNoLease, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error. ctx bounds
// the reading, not the commit.
func (s *Store) Claim(ctx context.Context, q driver.ClaimQuery) (driver.Claimed, error) {
	claimed, err := s.claimRecords(ctx, q)
	if err != nil {
		return driver.Claimed{}, fmt.Errorf("Claim: %w", err)
	}
	return claimed, nil
}

func (s *Store) claimRecords(ctx context.Context, q driver.ClaimQuery) (claimed driver.Claimed, err error) {
	if err := s.state(); err != nil {
		return claimed, err
	}
	if !s.Lease().IsHeld() {
		return claimed, driver.ErrNoLease
	}
	select {
	case s.claiming <- struct{}{}:
		defer func() { <-s.claiming }()
	case <-ctx.Done():
		return claimed, ctx.Err()
	}
	var state claimState // of the lease under which the records are read
	var chosen []candidate
	var owners []int64
	err = s.claims.read(ctx, func(c *sqlite3.Conn) error {
		s.claimMu.Lock()
		state = s.claim
		s.claimMu.Unlock()
		if state.epoch == 0 {
			return driver.ErrNoLease
		}
		finder := &finder{c: c, state: &state, q: q}
		found, err := finder.find()
		if err != nil {
			return err
		}
		slices.SortFunc(found, compareCandidates)
		n := min(q.Limit, len(found))
		chosen, claimed.More = found[:n], len(found) > n
		claimed.NextDue = finder.nextDue
		for _, f := range chosen {
			err := query(c, "SELECT "+recordColumns+" FROM eventbus_record WHERE ref = ?", func(stmt *sqlite3.Stmt) error {
				r, owner, err := s.scanRecord(stmt)
				claimed.Records, owners = append(claimed.Records, r), append(owners, owner)
				return err
			}, f.ref)
			if err != nil {
				return err
			}
		}
		if len(claimed.Records) != n {
			return &CorruptError{Path: s.path, Table: "eventbus_record", Detail: "an index has a row that the table does not have"}
		}
		return nil
	})
	if err != nil || len(chosen) == 0 {
		if err == nil {
			s.advance(&state, chosen, q)
		}
		return claimed, err
	}
	request := &leaseRequest{state: &state, records: claimed.Records, owners: owners}
	reach("claim: selected")
	if err := s.leaseRecords(request); err != nil {
		return driver.Claimed{}, err
	}
	reach("claim: leased")
	claimed.Records = request.records
	s.advance(&state, chosen, q)
	return claimed, nil
}

// advance moves the cursors behind the records that were leased. read is the state under which they
// were selected.
func (s *Store) advance(read *claimState, chosen []candidate, q driver.ClaimQuery) {
	s.claimMu.Lock()
	defer s.claimMu.Unlock()
	st := &s.claim
	if q.Kind != driver.ClaimReady || st.epoch != read.epoch || st.done {
		return
	}
	orphans := 0
	for _, f := range chosen {
		if f.orphan {
			st.ref = max(st.ref, f.ref)
			orphans++
		}
		if f.orphanBeside {
			if compareCandidates(st.beside, f) < 0 {
				st.beside = candidate{at: f.at, ref: f.ref}
			}
			orphans++
		}
	}
	st.done = orphans == 0 && len(chosen) < q.Limit
}

// finder selects candidates. Each of its streams yields the first Limit+1 of its records, so the
// first Limit+1 of all streams are among them.
type finder struct {
	c     *sqlite3.Conn
	state *claimState
	q     driver.ClaimQuery

	nextDue      time.Time
	destinations string // see list
}

func (f *finder) find() ([]candidate, error) {
	switch f.q.Kind {
	case driver.ClaimReady:
		return f.ready()
	case driver.ClaimDue:
		return f.due()
	case driver.ClaimParked:
		return f.parked()
	case driver.ClaimRefs:
		return f.refs()
	case driver.ClaimExpired:
		return f.expired()
	default:
		return nil, fmt.Errorf("sqlite: ClaimKind %d is unknown", f.q.Kind)
	}
}

// stream is a part of the index record_ready that is sorted by position.
type stream struct{ owner, kind int64 }

// readyStreams returns the streams of the records that the lease did not free itself, and of its own
// ready ones.
func (f *finder) readyStreams() (streams []stream, err error) {
	// A condition (owner, kind) > (?, ?) would read all rows of the first pair.
	const from = "SELECT owner, kind FROM eventbus_record INDEXED BY record_ready WHERE " + whereReady
	s, found := stream{owner: math.MinInt64}, false
	next := func(sql string, args ...any) error {
		found = false
		return query(f.c, sql, func(stmt *sqlite3.Stmt) error {
			s, found = stream{stmt.ColumnInt64(0), stmt.ColumnInt64(1)}, true
			return nil
		}, args...)
	}
	for {
		err := next(from+" AND owner = ? AND kind > ? ORDER BY kind LIMIT 1", s.owner, s.kind)
		if err == nil && !found {
			err = next(from+" AND owner > ? ORDER BY owner, kind LIMIT 1", s.owner)
		}
		if err != nil || !found {
			return streams, err
		}
		if s.owner != -f.state.epoch || s.kind&kindStateMask == int64(driver.Ready) {
			streams = append(streams, s)
		}
	}
}

func (f *finder) ready() ([]candidate, error) {
	streams, err := f.readyStreams()
	if err != nil {
		return nil, err
	}
	var found []candidate
	for _, s := range streams {
		const sql = "SELECT position, ref, owner FROM eventbus_record INDEXED BY record_ready WHERE " + whereReady +
			" AND owner = ? AND kind = ? ORDER BY position, ref LIMIT ?"
		if err := f.collect(&found, candidate{}, sql, s.owner, s.kind, f.q.Limit+1); err != nil {
			return nil, err
		}
	}
	if f.state.done {
		return found, nil
	}
	const orphan = "owner > 0 AND owner <> ? AND " + kindReady
	err = f.collect(&found, candidate{orphan: true},
		"SELECT position, ref, owner FROM eventbus_record NOT INDEXED WHERE ref > ? AND ref < ? AND position = ref AND "+orphan+" ORDER BY ref LIMIT ?",
		f.state.ref, f.state.end, f.state.epoch, f.q.Limit+1)
	if err != nil {
		return nil, err
	}
	err = f.collect(&found, candidate{orphanBeside: true},
		"SELECT position, ref, owner FROM eventbus_record INDEXED BY record_beside WHERE position <> ref AND (position, ref) > (?, ?) AND ref < ? AND "+
			orphan+" ORDER BY position, ref LIMIT ?",
		f.state.beside.at, f.state.beside.ref, f.state.end, f.state.epoch, f.q.Limit+1)
	return found, err
}

// collect appends the rows (position, ref, owner) of a query.
func (f *finder) collect(found *[]candidate, like candidate, sql string, args ...any) error {
	return query(f.c, sql, func(stmt *sqlite3.Stmt) error {
		like.at, like.ref, like.owner = stmt.ColumnInt64(0), stmt.ColumnInt64(1), stmt.ColumnInt64(2)
		*found = append(*found, like)
		return nil
	}, args...)
}

// eachOwner calls visit with the owners of an index, without this lease. from is the beginning of a
// query that selects by the columns of the index before the owner, and args are its arguments.
func (f *finder) eachOwner(from string, args []any, visit func(owner int64) error) error {
	for owner := int64(math.MinInt64); ; {
		found := false
		err := query(f.c, "SELECT owner "+from+"owner > ? ORDER BY owner LIMIT 1", func(stmt *sqlite3.Stmt) error {
			owner, found = stmt.ColumnInt64(0), true
			return nil
		}, append(slices.Clone(args), owner)...)
		if err != nil || !found {
			return err
		}
		if owner == f.state.epoch {
			continue
		}
		if err := visit(owner); err != nil {
			return err
		}
	}
}

// due returns the records that are due, and sets nextDue. A record without a due time is due.
func (f *finder) due() (found []candidate, err error) {
	return f.until("due", "FROM eventbus_record INDEXED BY record_due WHERE "+whereDue+" AND ")
}

// expired returns the records whose events have expired, and sets nextDue.
func (f *finder) expired() (found []candidate, err error) {
	return f.until("expires", "FROM eventbus_record INDEXED BY eventbus_record_expires WHERE "+whereExpires+" AND ")
}

// until returns the records of an index by owner and a time whose time has come.
func (f *finder) until(column, from string) (found []candidate, err error) {
	now := storekit.TimeBound(f.q.Now)
	err = f.eachOwner(from, nil, func(owner int64) error {
		add := func(stmt *sqlite3.Stmt) error {
			c := candidate{ref: stmt.ColumnInt64(1), owner: owner}
			var err error
			if text := stmt.ColumnText(0); text != "" {
				c.due, err = storekit.ParseTime(text)
			}
			found = append(found, c)
			return err
		}
		columns := "SELECT " + column + ", ref " + from + "owner = ? AND " + column
		if err := query(f.c, columns+" IS NULL ORDER BY 2 LIMIT ?", add, owner, f.q.Limit+1); err != nil {
			return err
		}
		if err := query(f.c, columns+" <= ? ORDER BY 1, 2 LIMIT ?", add, owner, now, f.q.Limit+1); err != nil {
			return err
		}
		return query(f.c, columns+" > ? ORDER BY 1 LIMIT 1", func(stmt *sqlite3.Stmt) error {
			next, err := storekit.ParseTime(stmt.ColumnText(0))
			if f.nextDue.IsZero() || next.Before(f.nextDue) {
				f.nextDue = next
			}
			return err
		}, owner, now)
	})
	return found, err
}

func (f *finder) refs() (found []candidate, err error) {
	const sql = "SELECT 0, ref, owner FROM eventbus_record NOT INDEXED WHERE ref = ? AND owner <> ?"
	for _, ref := range f.q.Refs {
		if err = f.collect(&found, candidate{}, sql, int64(ref), f.state.epoch); err != nil {
			break
		}
	}
	return found, err
}

// Weight estimates what the request writes. See storekit.Work.
func (r *leaseRequest) Weight() int { return len(r.records) * storekit.RowWeight }

// leaseRequest is a job of the committer: to lease free records.
type leaseRequest struct {
	state   *claimState
	records []*driver.Record
	owners  []int64 // of the records, when they were read
}

var errOtherLease = fmt.Errorf("%w: it has ended meanwhile", driver.ErrNoLease)

// leaseRecords leases the records of a request with the next commit. It does not return before: a
// caller without the records could not release them.
func (s *Store) leaseRecords(request *leaseRequest) error {
	result := make(chan error, 1)
	s.committer.queue.Add(&job{Work: request, Done: func(err error) { result <- err }})
	return <-result
}

// lease leases the records of a request, by ranges of refs, and completes them.
func (tx *transaction) lease(request *leaseRequest) (refusal, err error) {
	if tx.epoch == 0 || request.state.epoch != tx.epoch {
		return errOtherLease, nil
	}
	type row struct {
		r     *driver.Record
		owner int64
	}
	rows := make([]row, len(request.records))
	for i, r := range request.records {
		rows[i] = row{r, request.owners[i]}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.r.Ref, b.r.Ref) })
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].r.Ref == rows[n-1].r.Ref+1 && rows[n].owner == rows[0].owner {
			n++
		}
		owner := rows[0].owner
		crashed, all := tx.crashed[owner], 0
		if _, ended := tx.crashed[owner]; ended {
			all = 1
			if crashed.suspects {
				all = 2
			}
		}
		const sql = `UPDATE eventbus_record SET owner = ?, suspect = 0, crashes = crashes +
				CASE ? WHEN 0 THEN 0 WHEN 1 THEN (kind & 3 = 0 AND crashes < 2) ELSE suspect END
			WHERE ref BETWEEN ? AND ? AND owner = ?`
		changed, err := tx.w.exec(sql, tx.epoch, all, int64(rows[0].r.Ref), int64(rows[n-1].r.Ref), owner)
		if err != nil {
			return nil, err
		}
		if changed != n { // nothing removes a free record
			return nil, tx.missing(rows[0].r.Ref)
		}
		reach("claim: updated")
		for _, row := range rows[:n] {
			r := row.r
			unmarked := r.State == driver.Ready && r.Crashes < driver.SuspectCrashes
			if all == 1 && unmarked || all == 2 && r.Suspect {
				r.Crashes++
			}
			r.Suspect, r.Leased, r.Own = false, true, owner == -tx.epoch
			tx.leased[r.Ref] = uint8(r.State)
		}
		tx.pages += int64(n/4 + 1)
		rows = rows[n:]
	}
	tx.changed = true
	return nil, nil
}
