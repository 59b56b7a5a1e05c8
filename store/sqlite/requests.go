package sqlite

import (
	"context"
	"fmt"
	"slices"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// asking is a new request.
type asking struct {
	request *driver.Request
	id      driver.RequestID
}

func requestCRC(body, answer []byte, answered string) int64 {
	return int64(addCRC(addCRC(addCRC(0, body), answer), []byte(answered)))
}

// scanRequest reads a row of id, body, answer, answered and crc.
func (s *Store) scanRequest(stmt *sqlite3.Stmt) (r driver.Request, answer []byte, err error) {
	r = driver.Request{ID: driver.RequestID(stmt.ColumnInt64(0)), Body: columnBytes(stmt, 1)}
	answer = columnBytes(stmt, 2)
	answered := stmt.ColumnText(3)
	if requestCRC(r.Body, answer, answered) != stmt.ColumnInt64(4) || (answer == nil) != (answered == "") {
		return r, nil, &CorruptError{Path: s.path, Table: "eventbus_request", Row: fmt.Sprint(int64(r.ID)), Detail: "the row does not match its checksum"}
	}
	return r, answer, nil
}

// checkRequests returns the refusal of a batch that removes or answers a request that is unknown or has an answer.
func (tx *transaction) checkRequests(b *driver.Batch) (refusal, err error) {
	var ended []driver.RequestID
	check := func(id driver.RequestID) (refusal, err error) {
		found, err := tx.exists("SELECT 1 FROM eventbus_request WHERE id = ? AND answered IS NULL", int64(id))
		if err != nil {
			return nil, err
		}
		if !found || slices.Contains(ended, id) {
			return &driver.RefusedError{Request: id, Err: driver.ErrNotFound}, nil
		}
		ended = append(ended, id)
		return nil, nil
	}
	for _, id := range b.Unask {
		if refusal, err := check(id); refusal != nil || err != nil {
			return refusal, err
		}
	}
	for _, a := range b.Answer {
		if refusal, err := check(a.Request); refusal != nil || err != nil {
			return refusal, err
		}
	}
	return nil, nil
}

// request applies Ask, Unask and Answer.
func (tx *transaction) request(b *driver.Batch) error {
	for _, r := range b.Ask {
		if _, err := tx.w.exec("INSERT INTO eventbus_request (body, crc) VALUES (?, ?)", r.Body, requestCRC(r.Body, nil, "")); err != nil {
			return err
		}
		tx.asked = append(tx.asked, asking{r, driver.RequestID(tx.w.conn.LastInsertRowID())})
		tx.bytes += len(r.Body)
		reach("batch: asked")
	}
	for _, id := range b.Unask {
		if _, err := tx.w.exec("DELETE FROM eventbus_request WHERE id = ?", int64(id)); err != nil {
			return err
		}
		reach("batch: unasked")
	}
	for _, a := range b.Answer {
		at := storekit.TimeText(b.Aged())
		var body []byte
		err := tx.one("SELECT body FROM eventbus_request WHERE id = ?", func(stmt *sqlite3.Stmt) error {
			body = columnBytes(stmt, 0)
			return nil
		}, int64(a.Request))
		if err != nil {
			return err
		}
		const sql = "UPDATE eventbus_request SET answer = ?, answered = ?, crc = ? WHERE id = ?"
		if _, err := tx.w.exec(sql, a.Body, at, requestCRC(body, a.Body, at), int64(a.Request)); err != nil {
			return err
		}
		tx.bytes += len(a.Body)
		reach("batch: answered")
	}
	return nil
}

// pruneAnswers removes some of the requests whose answers are older than driver.AnswerAge. It reports whether none is left.
func (tx *transaction) pruneAnswers() (done bool, err error) {
	const some = 64
	const sql = "DELETE FROM eventbus_request WHERE id IN (SELECT id FROM eventbus_request INDEXED BY eventbus_request_answered WHERE answered IS NOT NULL AND answered <= ? ORDER BY answered LIMIT ?)"
	n, err := tx.w.exec(sql, storekit.TimeBound(tx.now.Add(-driver.AnswerAge)), some)
	return n < some, err
}

// Requests returns the requests without an answer. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Requests(ctx context.Context, q driver.RequestQuery) (requests []driver.Request, err error) {
	const sql = "SELECT id, body, answer, answered, crc FROM eventbus_request INDEXED BY eventbus_request_open WHERE answered IS NULL AND id > ? ORDER BY id LIMIT ?"
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		requests = nil
		return query(c, sql, func(stmt *sqlite3.Stmt) error {
			r, _, err := s.scanRequest(stmt)
			requests = append(requests, r)
			return err
		}, int64(q.After), q.Limit)
	})
	if err != nil {
		return nil, fmt.Errorf("Requests: %w", err)
	}
	return requests, nil
}

// Answer returns the answer of a request. See [driver.Store].
//
// Errors: driver.ErrNotFound, *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Answer(ctx context.Context, id driver.RequestID) (body []byte, answered bool, err error) {
	found := false
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		return query(c, "SELECT id, body, answer, answered, crc FROM eventbus_request WHERE id = ?", func(stmt *sqlite3.Stmt) (err error) {
			found = true
			_, body, err = s.scanRequest(stmt)
			return err
		}, int64(id))
	})
	if err == nil && !found {
		err = driver.ErrNotFound
	}
	if err != nil {
		return nil, false, fmt.Errorf("Answer(%d): %w", id, err)
	}
	return body, body != nil, nil
}

// Catalogs returns the catalogs of all instances, by number. The catalog of an earlier schema belongs to the instance
// "", with the zero time in Seen. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Catalogs(ctx context.Context) (catalogs []driver.Catalog, err error) {
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		catalogs = nil
		return query(c, "SELECT "+catalogColumns+" FROM eventbus_catalog NOT INDEXED ORDER BY number", func(stmt *sqlite3.Stmt) error {
			c, err := s.scanCatalog(stmt)
			catalogs = append(catalogs, c)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("Catalogs: %w", err)
	}
	return catalogs, nil
}

const catalogColumns = "number, instance, seen, body, crc"

// scanCatalog reads a row of catalogColumns.
func (s *Store) scanCatalog(stmt *sqlite3.Stmt) (c driver.Catalog, err error) {
	c = driver.Catalog{Number: stmt.ColumnInt64(0), Instance: stmt.ColumnText(1), Body: columnBytes(stmt, 3)}
	corrupt := func(detail string) error {
		return &CorruptError{Path: s.path, Table: "eventbus_catalog", Row: fmt.Sprintf("%q", c.Instance), Detail: detail}
	}
	if checksum(c.Body) != stmt.ColumnInt64(4) {
		return c, corrupt("the row does not match its checksum")
	}
	if c.Seen, err = storekit.ParseTime(stmt.ColumnText(2)); err != nil {
		return c, corrupt(err.Error())
	}
	return c, nil
}

// changeBits are the bits of driver.Change that have a column of counter, in the order of the columns.
var changeBits = [...]driver.Change{
	driver.ChangedIncoming, driver.ChangedRequests, driver.ChangedAnswers, driver.ChangedDirectives, driver.ChangedCatalogs,
}

// countChanges counts what this transaction has changed, for Watch and Stats.
func (tx *transaction) countChanges() error {
	if tx.changes == 0 && tx.removed == 0 {
		return nil
	}
	const sql = `UPDATE eventbus_counter SET incoming = incoming + ?, requests = requests + ?, answers = answers + ?,
		directives = directives + ?, catalogs = catalogs + ?, removed = removed + ?`
	stmt, err := tx.w.stmt(sql)
	if err != nil {
		return err
	}
	for i, bit := range changeBits {
		stmt.BindBool(i+1, tx.changes&bit != 0)
	}
	stmt.BindInt64(len(changeBits)+1, tx.removed)
	return run(stmt, nil)
}
