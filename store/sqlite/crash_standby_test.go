//go:build unix

package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// crashStandbyGroup has the standbys beside a process. Each one is killed a while after it has taken over.
type crashStandbyGroup struct {
	t      *testing.T
	spec   crashSpec
	random *rand.Rand
	all    []*crashProcess

	mu   sync.Mutex // guards pipe
	pipe *os.File   // nil: closed
}

// closePipe closes the writing end of the pipe: it ends when all processes have ended.
func (g *crashStandbyGroup) closePipe() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		_ = g.pipe.Close() // the children have it
		g.pipe = nil
	}
}

// start starts the standbys, unless the process has ended.
func (g *crashStandbyGroup) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == nil {
		return
	}
	for i := range g.spec.Standbys {
		spec := g.spec
		spec.Standby, spec.Failpoint, spec.Fault, spec.Again = i+1, "", false, nil
		p := startCrashChild(g.t, &spec, g.pipe)
		p.guard = time.AfterFunc(20*time.Second, p.kill) // before it has taken over: wait finds that
		if g.random.IntN(8) == 0 {
			p.armed = true
			time.AfterFunc(time.Duration(g.random.IntN(100))*time.Millisecond, p.kill)
		}
		g.all = append(g.all, p)
	}
}

// saw looks at a line for what concerns the standbys.
func (g *crashStandbyGroup) saw(line string) {
	verb, rest, _ := strings.Cut(line, "\t")
	switch {
	case verb == "G" && g.spec.Standbys > 0:
		g.start()
	case verb == "N":
		n, _ := strconv.Atoi(rest)
		p := g.all[n-1]
		p.armed = true
		time.AfterFunc(time.Duration(g.random.IntN(80_000))*time.Microsecond, p.kill)
	}
}

// wait waits for the end of the standbys, and returns how many were killed.
func (g *crashStandbyGroup) wait(o *crashOracle) (killed int) {
	for i, p := range g.all {
		if err := p.wait(); err == nil || !p.wasKilled() {
			o.violate("child", nil, "standby %d ended with %v:\n%s", i+1, err, tail(p.stderr.String()))
		}
		if !p.armed {
			o.violate("S6", nil, "standby %d did not take over within 20 s", i+1)
		}
		killed++
	}
	return killed
}

// witnessedLease reports that a standby has the lease, before its bus uses it.
type witnessedLease struct {
	*Store
	standby int
}

func (s *witnessedLease) Acquire(ctx context.Context, q driver.AcquireQuery) (driver.Lease, error) {
	before := s.Lease()
	lease, err := s.Store.Acquire(ctx, q)
	if err == nil && lease.Epoch != before.Epoch {
		report("N", s.standby)
	}
	return lease, err
}

// standBy publishes and works on the dead letters as a standby, and publishes more when it has the lease.
func (c *crashChild) standBy() {
	if c.spec.Tx {
		c.working.Go(c.transact)
	}
	c.working.Go(func() {
		if err := c.bus.Start(context.Background()); err != nil {
			panic(err)
		}
		for p := range min(4, c.spec.Publishers) {
			c.working.Go(func() { newPublisher(c, p).run() })
		}
	})
	random := c.random("standby", c.spec.Standby)
	p := newPublisher(c, besidePublisher)
	ctx := context.Background()
	for {
		eventType := crashTypeNames[random.IntN(len(crashTypeNames))]
		switch random.IntN(10) {
		case 0:
			c.oneLetter(random, "D", c.bus.DLQ().Replay)
		case 1:
			c.oneLetter(random, "X", c.bus.DLQ().Purge)
		case 2:
			c.cancelSoon(p, random.IntN(3) == 0)
		case 3:
			p.publish(ctx, p.name(), eventType, "", 30*time.Millisecond, eventbus.EventID{})
		case 4:
			p.publish(ctx, p.name(), eventType, "", 0, eventbus.NewEventID())
		case 5:
			p.publishBatch(ctx)
		default:
			p.publish(ctx, p.name(), eventType, p.key(), 0, eventbus.EventID{})
		}
		report("B")
		time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
	}
}

// txPublisher is the number of the publisher that publishes in transactions. It has keys of its own.
const txPublisher = 2000

// transact publishes in transactions that insert a row of a service's own, and commits most of them. Between them it
// publishes events of the same keys.
func (c *crashChild) transact() {
	db, err := sql.Open("sqlite", "file:"+c.spec.Path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		panic(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(context.Background(), "CREATE TABLE IF NOT EXISTS service (name TEXT PRIMARY KEY)"); err != nil {
		panic(err)
	}
	p := newPublisher(c, txPublisher)
	for !p.ended.Load() {
		select {
		case <-p.stop:
			return
		default:
		}
		eventType := crashTypeNames[p.random.IntN(len(crashTypeNames))]
		if p.random.IntN(4) == 0 {
			p.publish(context.Background(), p.name(), eventType, p.key(), 0, eventbus.EventID{})
			continue
		}
		p.publishTx(db, eventType)
		time.Sleep(time.Duration(p.random.IntN(4000)) * time.Microsecond)
	}
}

// publishTx publishes an event in a transaction, and commits it or rolls it back.
func (p *publisher) publishTx(db *sql.DB, eventType string) {
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		report("V", fmt.Sprintf("T1: begin: %v", err))
		return
	}
	name := p.name()
	opts := p.intend(name, eventType, p.key(), 0, eventbus.EventID{}, false)
	report("J", name)
	_, err = tx.ExecContext(ctx, "INSERT INTO service (name) VALUES (?)", name)
	var id eventbus.EventID
	if err == nil {
		id, err = p.bus.PublishTx(ctx, tx, eventType, payloadOf(name), opts...)
	}
	if p.random.IntN(2) == 0 {
		time.Sleep(time.Duration(p.random.IntN(2000)) * time.Microsecond)
	}
	if err != nil || p.random.IntN(4) == 0 {
		if err := tx.Rollback(); err != nil {
			report("V", fmt.Sprintf("T1: rollback: %v", err))
		}
		p.published(name, id, fmt.Errorf("rolled back: %w", err))
		return
	}
	if err := tx.Commit(); err != nil {
		report("V", fmt.Sprintf("T1: commit: %v", err))
		return
	}
	p.published(name, id, nil)
}

// serviceRows returns the rows that transactions of the processes have inserted.
func serviceRows(c *sqlite3.Conn) (rows map[string]bool, err error) {
	rows = make(map[string]bool)
	n, err := queryInt(c, "SELECT count(*) FROM sqlite_schema WHERE name = 'service'")
	if err != nil || n == 0 {
		return rows, err
	}
	err = query(c, "SELECT name FROM service", func(stmt *sqlite3.Stmt) error {
		rows[stmt.ColumnText(0)] = true
		return nil
	})
	return rows, err
}

// checkTransactions checks that a transaction that was acknowledged has committed. An event whose transaction has
// committed counts as acknowledged from now on, and one whose transaction has not counts as refused.
func (o *crashOracle) checkTransactions(d *crashDump) {
	for _, e := range o.open {
		if !e.inTx {
			continue
		}
		e.inTx = false
		switch committed := d.service[e.name]; {
		case committed && e.refused:
			o.violate("T1", e, "its transaction was rolled back, and has committed")
		case committed:
			if !e.acked {
				e.acked = true
				o.acknowledged++
			}
			o.transactions++
		case e.acked:
			o.violate("T1", e, "LOST: its transaction was committed, and its row is gone")
		default:
			if started := e.started(); started {
				o.violate("T1", e, "it was handled, and its transaction has not committed")
			}
			e.refused = true
			o.rolledBack++
		}
	}
}

// started reports whether a handler of an event has run.
func (e *crashEvent) started() bool {
	for _, t := range e.targets {
		if t.seen {
			return true
		}
	}
	return false
}
