package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// VerifyReport is the result of Verify.
type VerifyReport struct {
	// Records, Letters and Others are the numbers of rows that Verify read.
	Records int64 `json:"records"`
	Letters int64 `json:"letters"`
	Others  int64 `json:"others"` // incoming events, requests, remembered ids, history, directives, catalogs, audit, outcomes, crashes
	// Problems lists the damage, at most 100 of them, and More is the number of the others.
	Problems []*CorruptError `json:"-"`
	More     int64           `json:"more"`
}

// IsSound reports whether Verify has found no damage.
func (r *VerifyReport) IsSound() bool { return len(r.Problems) == 0 }

// VerifyProgress is the progress of Verify.
type VerifyProgress struct {
	Rows  int64 // rows read so far
	Total int64 // rows in the file when Verify began; 0 until they are counted
	// Pages is set once the pages and indexes are verified, which Verify does concurrently with the rows.
	Pages bool
}

// maxProblems bounds the problems of a report.
const maxProblems = 100

// Verify reads the whole file and verifies each page and index (integrity_check of SQLite), the checksum and the state
// of each row, and the counts of rows. In other programs' tables it verifies pages only. Data that only a bus decodes,
// such as details of letters and the catalog, is covered by checksums. The command eventbus verify decodes it too,
// apart from outcomes. Verify changes nothing. A bus may work on the file meanwhile: Verify sees the data of one
// commit.
//
// It calls progress, which may be nil, about ten times a second, on its own goroutines and never concurrently. It takes
// about 5 µs a row. The report is valid only without an error.
//
// Damage is in the report and no error. Errors: *CorruptError if the file cannot be read further,
// driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Verify(ctx context.Context, progress func(VerifyProgress)) (VerifyReport, error) {
	v := &verification{store: s, progress: progress}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pages error
	var wg sync.WaitGroup
	wg.Go(func() {
		if pages = v.read(ctx, v.verifyPages); pages != nil {
			cancel()
		}
	})
	rows := v.read(ctx, v.verifyRows)
	if rows != nil && !isCorrupt(rows) {
		cancel() // a damaged page ends the reading of rows, and the pages tell more
	}
	wg.Wait()
	if err := errors.Join(v.takeCorrupt(rows), v.takeCorrupt(pages)); err != nil {
		return VerifyReport{}, fmt.Errorf("Verify: %w", err)
	}
	return v.report, nil
}

// verification is a Verify in progress.
type verification struct {
	store    *Store
	progress func(VerifyProgress)
	rows     atomic.Int64

	mu     sync.Mutex // guards the following
	report VerifyReport
	total  int64 // 0 while the rows are counted
	pages  bool
}

// read calls f with a connection of its own: the pages and the rows are read at the same time.
func (v *verification) read(ctx context.Context, f func(c *sqlite3.Conn) error) (err error) {
	r := newReader(v.store)
	if err := r.open(); err != nil {
		return v.store.explain(err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	return r.read(ctx, f)
}

func isCorrupt(err error) bool {
	var c *CorruptError
	return errors.As(err, &c)
}

// takeCorrupt moves an error of damage to the report.
func (v *verification) takeCorrupt(err error) error {
	if c := (*CorruptError)(nil); errors.As(err, &c) {
		v.found(c)
		return nil
	}
	return err
}

func (v *verification) found(c *CorruptError) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.report.Problems) < maxProblems {
		v.report.Problems = append(v.report.Problems, c)
	} else {
		v.report.More++
	}
}

func (v *verification) problem(table, row, format string, args ...any) {
	v.found(&CorruptError{Path: v.store.path, Table: table, Row: row, Detail: fmt.Sprintf(format, args...)})
}

// check reports the damage of a row, and returns other errors.
func (v *verification) check(err error) error {
	const every = 1 << 14
	if n := v.rows.Add(1); n%every == 0 {
		v.call()
	}
	return v.takeCorrupt(err)
}

// call calls progress.
func (v *verification) call() {
	if v.progress == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress(VerifyProgress{Rows: v.rows.Load(), Total: v.total, Pages: v.pages})
}

// verifyPages verifies the pages and the indexes.
func (v *verification) verifyPages(c *sqlite3.Conn) error {
	err := query(c, fmt.Sprintf("PRAGMA integrity_check(%d)", maxProblems), func(stmt *sqlite3.Stmt) error {
		if text := stmt.ColumnText(0); text != "ok" {
			v.problem("", "", "%s", text)
		}
		return nil
	})
	if err != nil {
		return err
	}
	v.mu.Lock()
	v.pages = true
	v.mu.Unlock()
	v.call()
	return nil
}

// verifyRows verifies the rows of all tables, and the counts.
func (v *verification) verifyRows(c *sqlite3.Conn) error {
	m, err := v.store.readMeta(c)
	if err != nil {
		return err
	}
	total := m.states[0] + m.states[1] + m.states[2] + m.states[3] + m.letters
	others := []struct {
		columns, from string
		row           func(*sqlite3.Stmt) error
	}{
		{"SELECT subscription, body, crc ", "FROM eventbus_directive NOT INDEXED", v.directive},
		{"SELECT " + catalogColumns + " ", "FROM eventbus_catalog NOT INDEXED", v.catalog},
		{"SELECT " + incomingColumns + " ", "FROM eventbus_incoming NOT INDEXED", v.incoming},
		{"SELECT id, body, answer, answered, crc ", "FROM eventbus_request NOT INDEXED", v.request},
		{"SELECT number, body, crc, denied, place ", "FROM eventbus_audit NOT INDEXED", v.audit},
		{"SELECT " + outcomeColumns + " ", "FROM eventbus_outcome NOT INDEXED", v.outcome},
		{"SELECT key, length(event), expires ", "FROM eventbus_dedupe NOT INDEXED", v.dedupe},
		{"SELECT ref, length(event), settled_at, outcome ", "FROM eventbus_history NOT INDEXED", v.settled},
		{"SELECT epoch, suspects ", "FROM eventbus_crash", func(stmt *sqlite3.Stmt) error {
			if epoch := stmt.ColumnInt64(0); epoch < 1 || epoch >= m.epoch || stmt.ColumnInt64(1)>>1 != 0 {
				v.problem("eventbus_crash", fmt.Sprint(epoch), "the row is not of an earlier lease")
			}
			return nil
		}},
	}
	for _, t := range others {
		count, from := "SELECT count(*) ", t.from
		n, err := queryInt(c, count+from)
		if err != nil {
			return err
		}
		total += n
	}
	v.mu.Lock()
	v.total = total
	v.mu.Unlock()
	if err := v.records(c, &m); err != nil {
		return err
	}
	if err := v.letters(c, &m); err != nil {
		return err
	}
	before := v.rows.Load()
	for _, t := range others {
		if err := query(c, t.columns+t.from, func(stmt *sqlite3.Stmt) error { return v.check(t.row(stmt)) }); err != nil {
			return err
		}
	}
	v.mu.Lock()
	v.report.Others = v.rows.Load() - before
	v.mu.Unlock()
	v.call()
	return v.countIncoming(c)
}

// countIncoming verifies the number of incoming events.
func (v *verification) countIncoming(c *sqlite3.Conn) error {
	counted, err := countIncoming(c)
	if err != nil {
		return err
	}
	found, err := queryInt(c, "SELECT count(*) FROM eventbus_incoming")
	if err == nil && counted != found {
		v.problem("eventbus_counter", "1", "the books do not balance: %d incoming events are counted, and %d are there", counted, found)
	}
	return err
}

// records verifies the records, and their counts.
func (v *verification) records(c *sqlite3.Conn, m *meta) error {
	var states [4]int64
	var leased, last int64
	err := query(c, "SELECT "+recordColumns+" FROM eventbus_record NOT INDEXED ORDER BY ref", func(stmt *sqlite3.Stmt) error {
		last = stmt.ColumnInt64(0)
		states[stmt.ColumnInt64(2)&kindStateMask]++
		r, owner, err := v.store.scanRecord(stmt)
		if owner == m.epoch {
			leased++
		}
		if err == nil {
			err = v.illegal(r, owner, m)
		}
		return v.check(err)
	})
	if err != nil {
		return err
	}
	v.mu.Lock()
	v.report.Records = v.rows.Load()
	v.mu.Unlock()
	if states != m.states {
		v.problem("eventbus_meta", "1", "the books do not balance: %v records by state are counted, and %v are there", m.states, states)
	}
	if m.held && leased != m.leased {
		v.problem("eventbus_meta", "1", "the books do not balance: %d leased records are counted, and %d are there", m.leased, leased)
	}
	if last >= m.nextRef {
		v.problem("eventbus_meta", "1", "record %d is there, and the next one would be %d", last, m.nextRef)
	}
	return nil
}

// illegal returns the error of a record in an illegal state, or nil.
func (v *verification) illegal(r *driver.Record, owner int64, m *meta) error {
	bad := func(format string, args ...any) error {
		return &CorruptError{Path: v.store.path, Table: "eventbus_record", Row: fmt.Sprint(int64(r.Ref)), Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.Type == "" || r.Published.IsZero() || r.ID.IsZero():
		return bad("the event has no id, type or time")
	case len(r.Targets) == 0:
		return bad("the record has no targets")
	case owner > m.epoch || owner < -m.epoch:
		return bad("its lease %d has not begun", owner)
	case r.Crashes < 0:
		return bad("it has %d crashes", r.Crashes)
	case r.Destination != "" && r.State != driver.Parked:
		return bad("it is %s, and has a destination", r.State)
	}
	switch r.State {
	case driver.Waiting, driver.Scheduled:
		if r.Due.IsZero() {
			return bad("it is %s, and has no due time", r.State)
		}
	case driver.Parked:
		if r.Door == "" {
			return bad("it is parked, and has no door")
		}
	case driver.Ready:
		if r.Door != "" || !r.Due.IsZero() {
			return bad("it is ready, and has a door or a due time")
		}
	}
	return nil
}

// letters verifies the letters, and their number.
func (v *verification) letters(c *sqlite3.Conn, m *meta) error {
	before := v.rows.Load()
	var buffer []byte
	err := query(c, "SELECT "+letterColumns+", crc FROM eventbus_letter NOT INDEXED", func(stmt *sqlite3.Stmt) error {
		return v.check(v.letter(stmt, &buffer))
	})
	if err != nil {
		return err
	}
	n := v.rows.Load() - before
	v.mu.Lock()
	v.report.Letters = n
	v.mu.Unlock()
	if n != m.letters {
		v.problem("eventbus_meta", "1", "the books do not balance: %d letters are counted, and %d are there", m.letters, n)
	}
	return nil
}

// letter verifies a row of letterColumns and crc without decoding it: the checksum protects what was
// encoded.
func (v *verification) letter(stmt *sqlite3.Stmt, buffer *[]byte) error {
	const columns, reason = 13, 5
	sum := uint32(0)
	for i := range columns {
		n := stmt.ColumnLen(i)
		*buffer = slices.Grow((*buffer)[:0], n)[:n]
		if !stmt.ColumnIsNull(i) {
			stmt.ColumnBytes(i, *buffer)
		}
		sum = addCRC(sum, *buffer)
	}
	var id driver.ID
	stmt.ColumnBytes(0, id[:])
	bad := func(detail string) error {
		return &CorruptError{Path: v.store.path, Table: "eventbus_letter", Row: id.String(), Detail: detail}
	}
	switch {
	case int64(sum) != stmt.ColumnInt64(columns):
		return bad("the row does not match its checksum")
	case stmt.ColumnLen(reason) == 0:
		return bad("it has no reason")
	}
	return nil
}

func (v *verification) directive(stmt *sqlite3.Stmt) error {
	_, err := v.store.scanDirective(stmt)
	return err
}

func (v *verification) catalog(stmt *sqlite3.Stmt) error {
	_, err := v.store.scanCatalog(stmt)
	return err
}

func (v *verification) incoming(stmt *sqlite3.Stmt) error {
	in, err := v.store.scanIncoming(stmt)
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return &CorruptError{Path: v.store.path, Table: "eventbus_incoming", Row: fmt.Sprint(int64(in.ID)), Detail: fmt.Sprintf(format, args...)}
	}
	switch r := in.Record; {
	case r.Type == "" || r.Published.IsZero() || r.ID.IsZero():
		return bad("the event has no id, type or time")
	case r.State != driver.Ready && r.State != driver.Scheduled:
		return bad("it is %s", r.State)
	case (r.State == driver.Scheduled) == r.Due.IsZero():
		return bad("it is %s, and its due time is %s", r.State, r.Due)
	}
	return nil
}

func (v *verification) request(stmt *sqlite3.Stmt) error {
	_, _, err := v.store.scanRequest(stmt)
	return err
}

func (v *verification) audit(stmt *sqlite3.Stmt) error {
	e, err := v.store.scanAudit(stmt)
	if place := stmt.ColumnInt64(4); err == nil && (place < 1 || place > e.Number) {
		err = &CorruptError{Path: v.store.path, Table: "eventbus_audit", Row: fmt.Sprint(e.Number), Detail: "the entry is not at its place"}
	}
	return err
}

func (v *verification) outcome(stmt *sqlite3.Stmt) error {
	_, err := v.store.scanOutcome(stmt)
	return err
}

func (v *verification) dedupe(stmt *sqlite3.Stmt) error {
	_, err := storekit.ParseTime(stmt.ColumnText(2))
	if err != nil || stmt.ColumnInt(1) != len(driver.ID{}) {
		return &CorruptError{Path: v.store.path, Table: "eventbus_dedupe", Row: stmt.ColumnText(0), Detail: "the row has no valid id or time"}
	}
	return nil
}

func (v *verification) settled(stmt *sqlite3.Stmt) error {
	_, err := storekit.ParseTime(stmt.ColumnText(2))
	outcome := SettledOutcome(stmt.ColumnText(3))
	if err != nil || stmt.ColumnInt(1) != len(driver.ID{}) || outcome != OutcomeSettled && outcome != OutcomeDeadLettered {
		return &CorruptError{Path: v.store.path, Table: "eventbus_history", Row: stmt.ColumnText(0), Detail: "the row has no valid id, time or outcome"}
	}
	return nil
}
