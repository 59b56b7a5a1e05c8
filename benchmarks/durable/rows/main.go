// The program rows measures the two yardsticks for acceptance in SQLite: one INSERT per commit, and a
// group commit of multi-row INSERTs. Both use zombiezen.com/go/sqlite, as store/sqlite does.
package main

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"sync"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
)

func main() {
	durable.Main(plan.Durable, map[string]durable.Open{"insert": openSingle, "grouped": openGrouped})
}

// schema has the columns of the table of records in store/sqlite, without its indexes.
const schema = `CREATE TABLE record (
	ref      INTEGER PRIMARY KEY,
	position INTEGER NOT NULL,
	kind     INTEGER NOT NULL,
	due      TEXT,
	door     TEXT,
	owner    INTEGER NOT NULL,
	crashes  INTEGER NOT NULL,
	suspect  INTEGER NOT NULL,
	event    BLOB NOT NULL,
	body     BLOB NOT NULL,
	progress BLOB,
	crc      INTEGER NOT NULL,
	live_crc INTEGER NOT NULL
) STRICT`

// columns is the number of columns of a row.
const columns = 13

// connect opens the database with a single connection.
func connect(o durable.Options) (conn *sqlite.Conn, synchronous string, err error) {
	conn, err = sqlite.OpenConn(filepath.Join(o.Dir, "rows.db"), sqlite.OpenReadWrite, sqlite.OpenCreate, sqlite.OpenWAL)
	if err != nil {
		return nil, "", err
	}
	for _, statement := range []string{"PRAGMA synchronous=" + o.Synchronous, schema} {
		if err := sqlitex.ExecuteTransient(conn, statement, nil); err != nil {
			return nil, "", err
		}
	}
	err = sqlitex.ExecuteTransient(conn, "PRAGMA synchronous", &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
		synchronous = durable.Synchronous(s.ColumnInt(0))
		return nil
	}})
	return conn, synchronous, err
}

// row is an event with its encoded fields.
type row struct {
	number int64
	id     [16]byte
	body   []byte
}

// fixed stands for the fields of an event besides its payload.
const fixed = `{"type":"order.placed","published":"2026-11-24T09:30:00.123456789Z","targets":["billing"]}`

func newRow(e durable.Event) (row, error) {
	payload, err := e.JSON()
	r := row{number: e.Number, body: append([]byte(fixed), payload...)}
	binary.BigEndian.PutUint64(r.id[:], 0x01936F2A_0000_7000)
	binary.BigEndian.PutUint64(r.id[8:], uint64(e.Number))
	return r, err
}

func (r row) bind(s *sqlite.Stmt, at int) {
	base := at * columns
	s.BindInt64(base+1, r.number)
	s.BindInt64(base+2, r.number)
	s.BindInt64(base+3, 0)
	s.BindNull(base + 4)
	s.BindNull(base + 5)
	s.BindInt64(base+6, 1)
	s.BindInt64(base+7, 0)
	s.BindInt64(base+8, 0)
	s.BindBytes(base+9, r.id[:])
	s.BindBytes(base+10, r.body)
	s.BindNull(base + 11)
	s.BindInt64(base+12, 0x5EED)
	s.BindInt64(base+13, 0x5EED)
}

// openSingle commits each event by itself. The publishers wait for a lock.
func openSingle(o durable.Options) (*durable.System, error) {
	conn, synchronous, err := connect(o)
	if err != nil {
		return nil, err
	}
	insert, err := conn.Prepare(statement(1))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	return &durable.System{
		Accept: func(e durable.Event) error {
			r, err := newRow(e)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			return execute(insert, []row{r})
		},
		Synchronous: synchronous,
		Close:       conn.Close,
	}, nil
}

// chunks are the numbers of rows of the prepared INSERTs, the largest first.
var chunks = []int{128, 16, 1}

// openGrouped commits the inserts that gathered during the last commit.
func openGrouped(o durable.Options) (*durable.System, error) {
	conn, synchronous, err := connect(o)
	if err != nil {
		return nil, err
	}
	inserts := make([]*sqlite.Stmt, len(chunks))
	for i, n := range chunks {
		if inserts[i], err = conn.Prepare(statement(n)); err != nil {
			return nil, err
		}
	}
	group := durable.NewGroup(durable.MaxGroup, func(rows []row) (err error) {
		end, err := sqlitex.ImmediateTransaction(conn)
		if err != nil {
			return err
		}
		defer end(&err)
		for i, n := range chunks {
			for ; len(rows) >= n; rows = rows[n:] {
				if err := execute(inserts[i], rows[:n]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return &durable.System{
		Accept: func(e durable.Event) error {
			r, err := newRow(e)
			if err != nil {
				return err
			}
			return group.Do(r)
		},
		Synchronous: synchronous,
		Close: func() error {
			group.Close()
			return conn.Close()
		},
	}, nil
}

// statement returns an INSERT of n rows. OR ROLLBACK saves the statement journal that a multi-row
// INSERT otherwise needs.
func statement(n int) string {
	one := "(" + strings.TrimSuffix(strings.Repeat("?,", columns), ",") + ")"
	return "INSERT OR ROLLBACK INTO record VALUES " + strings.TrimSuffix(strings.Repeat(one+",", n), ",")
}

func execute(insert *sqlite.Stmt, rows []row) error {
	for i, r := range rows {
		r.bind(insert, i)
	}
	if _, err := insert.Step(); err != nil {
		return err
	}
	return insert.Reset()
}
