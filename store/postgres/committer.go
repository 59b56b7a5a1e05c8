package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

type job = storekit.Job[*claim]

// beatInterval is the time between two renewals of the lease, while nothing is committed. The store notices within it that
// the connection is lost. If it connects again at once, no standby takes it for dead.
const beatInterval = 500 * time.Millisecond

// committer applies the batches. Its goroutine takes everything that gathered during the last commit, makes a plan of it,
// and sends the plan in one round trip. Some plans need facts, which take one more.
//
// A commit may end with an unknown outcome: the connection is lost before the answer. Then the committer connects again
// and asks the row of the instance whether it has the number of the commit. The question is itself a write, so it waits for
// a commit in progress, and voids one that has not begun: the fence of that one compares tries.
type committer struct {
	store *Store
	queue *storekit.Queue[*claim]

	// Only the committer's goroutine uses the following, and Open before it starts.
	conn    *pgx.Conn // nil or closed while the server is not reached
	row     instanceRow
	leased  map[driver.Ref]held // the records that the lease has
	pruned  time.Time           // when expired rows were last removed, by Batch.Aged
	stopped bool                // Close has ended

	faults faults
}

// instanceRow is what the committer knows of the row of its store.
type instanceRow struct {
	epoch   int64 // of the lease; 0 for none
	batch   int64 // number of the last commit
	tries   int64
	nextRef int64
}

// held is a record that the lease has.
type held struct {
	state driver.State
	about about // with WithHistory
}

// about is what the history says of a record.
type about struct {
	event      driver.ID
	eventType  string
	key        string
	hasHistory bool
}

// faults are those that tests inject.
type faults struct {
	fail   error               // of the next commit
	deny   bool                // the wish Leased of the next commit
	killed bool                // Close does not end the lease
	lose   func() (reply bool) // whether the answer to a commit is lost
}

func (c *committer) init(s *Store, conn *pgx.Conn) {
	c.store, c.conn = s, conn
	c.queue = storekit.NewQueue[*claim](s.end.Ended())
	c.leased = make(map[driver.Ref]held)
}

// loop is the committer's goroutine.
func (c *committer) loop() {
	beat := time.NewTicker(beatInterval / 2) // not from the last job on: jobs that commit nothing do not renew the lease
	defer beat.Stop()
	for !c.stopped {
		for jobs := c.queue.Take(); len(jobs) > 0; {
			n := storekit.Group(jobs, isAlone)
			if jobs[0].Control != nil {
				jobs[0].Control()
			} else {
				c.commit(jobs[:n])
			}
			jobs = jobs[n:]
		}
		if c.stopped {
			return
		}
		select {
		case <-c.queue.Wake():
		case <-beat.C:
			c.beat()
		}
	}
}

// isAlone reports whether a job has a commit of its own: its plan depends on rows that an earlier batch of the same commit
// could change.
func isAlone(j *job) bool {
	b := j.Batch
	return b == nil || len(b.Take)+len(b.Withdraw)+len(b.Unask)+len(b.Answer) > 0
}

// commit applies jobs in one transaction and calls their Done in order.
func (c *committer) commit(group []*job) {
	outcomes := make([]error, len(group))
	err := c.queue.Failure()
	if err == nil {
		if err = c.apply(group, outcomes); err != nil {
			err = c.reportFailure(err)
		}
	}
	c.faults.deny = false
	for i, j := range group {
		if err != nil {
			outcomes[i] = err
		}
		group[i] = nil
		j.Done(outcomes[i])
	}
}

// beat renews the lease if no commit has done it for a while. It is a commit of nothing.
func (c *committer) beat() {
	if c.row.epoch == 0 || c.queue.Failure() != nil || c.store.clock()-c.store.confirmed.Load() < int64(beatInterval)*9/10 {
		return
	}
	c.renew()
}

// renew commits nothing. So it renews the lease, or finds out that it is lost.
func (c *committer) renew() {
	if err := c.apply(nil, nil); err != nil {
		_ = c.reportFailure(err)
	}
}

// reportFailure makes the store fail and logs the cause.
func (c *committer) reportFailure(cause error) error {
	c.store.cfg.logger.Error("store failed", c.store.fields(zap.Error(cause))...)
	return c.queue.Fail(cause)
}

// apply applies jobs in one transaction, and renews the lease. It puts the refusals into outcomes. Any other error means
// that the store has failed.
func (c *committer) apply(group []*job, outcomes []error) error { return c.run(group, outcomes, false) }

// run does what apply says. With release, it ends the lease.
func (c *committer) run(group []*job, outcomes []error, release bool) error {
	deadline := c.deadline()
	var known *facts // what the database has, as far as the group needs it
	races, pause := 0, 5*time.Millisecond
	for {
		if release && c.row.epoch == 0 {
			return nil // it is lost
		}
		p, err := c.prepare(deadline, group, outcomes, known)
		if err == nil {
			if p.guessed {
				p.undo()
				known = new(facts)
				continue
			}
			if p.isEmpty() && group != nil {
				return nil
			}
			p.release = release
			err = c.send(deadline, p)
		}
		state := sqlState(err)
		switch {
		case err == nil:
			p.finish()
			return nil
		case p == nil: // nothing was sent
		case isRace(err):
			if p.undo(); races < maxRaces {
				races++
				known = new(facts) // it is read again
				continue
			}
			return fmt.Errorf("postgres: other stores were first %d times: %w", races, err)
		case state == stateMissing:
			p.undo()
			return &CorruptError{Table: "record", Row: fmt.Sprint(p.refs()), Detail: err.Error()}
		}
		if state != stateFenced && !isTransient(err) {
			p.undo()
			return explain(err)
		}
		done, cause := c.resolve(deadline, p != nil && p.sent && !isDefinite(err))
		switch {
		case done:
			p.finish()
			return nil // the next commit finds out if the lease is lost
		case errors.Is(cause, driver.ErrLeaseLost):
			p.undo()
			c.lose()
		case cause != nil:
			p.undo()
			return fmt.Errorf("%w, after: %w", cause, err)
		case c.store.clock() > deadline:
			p.undo()
			return fmt.Errorf("postgres: the server did not commit for %v: %w", c.store.cfg.leaseTime, explain(err))
		default: // the server may refuse for longer, such as with a full disk
			p.undo()
			time.Sleep(pause)
			pause = min(2*pause, longestPause)
		}
	}
}

// maxRaces bounds the attempts at a commit that other stores get ahead of. Each time, another store has made progress.
const maxRaces = 100

// deadline returns until when an unknown outcome is resolved: the end of the lease, as this store knows it, or without a
// lease the same time from now. A process that was stopped for longer than that asks the server once more.
func (c *committer) deadline() int64 {
	now := c.store.clock()
	if c.row.epoch == 0 {
		return now + int64(c.store.cfg.leaseTime)
	}
	return max(c.store.confirmed.Load()+int64(c.store.cfg.leaseTime), now+int64(connectTime))
}

// context returns a context for one exchange with the server, which ends at the deadline at the latest.
func (c *committer) context(deadline int64) (context.Context, context.CancelFunc) {
	left := max(time.Duration(deadline-c.store.clock()), leastExchange)
	return context.WithTimeout(context.Background(), min(left, longestExchange))
}

const (
	leastExchange   = 100 * time.Millisecond
	longestExchange = statementTime + 2*time.Second
	longestPause    = 500 * time.Millisecond // between two attempts
)

// prepare registers the store, reads what the group needs, and makes the plan.
func (c *committer) prepare(deadline int64, group []*job, outcomes []error, known *facts) (*plan, error) {
	if c.conn == nil || c.conn.IsClosed() {
		return nil, errNotConnected
	}
	ctx, cancel := c.context(deadline)
	defer cancel()
	if c.store.instance.Load() == 0 {
		if err := c.register(ctx); err != nil {
			return nil, err
		}
	}
	known, err := c.read(ctx, group, known)
	if err != nil {
		return nil, err
	}
	clear(outcomes)
	p := &plan{c: c, facts: known}
	p.decide(group, outcomes)
	return p, nil
}

// register inserts the row of the store.
func (c *committer) register(ctx context.Context) error {
	const sql = `INSERT INTO ~.instance (id, expires, backend, backend_start, host, pid) VALUES (nextval('~.instance_id'), clock_timestamp(), $1, ` + backendStart + `, $2, $3) RETURNING id`
	var id int64
	if err := c.conn.QueryRow(ctx, c.store.sql(sql), c.backend(), []byte(c.store.host), os.Getpid()).Scan(&id); err != nil {
		return err
	}
	c.row = instanceRow{}
	c.store.instance.Store(id)
	return nil
}

// ping waits for a sign of life of the server.
func (c *committer) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), longestExchange/2)
	defer cancel()
	return c.conn.Ping(ctx)
}

// backendStart is when the server's side of the connection was started.
const backendStart = "(SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"

// isBackend is the condition that a is the server's side of the connection of i. A role may not see when another's began.
const isBackend = "a.pid = i.backend AND (a.backend_start = i.backend_start) IS NOT FALSE"

// backend returns the process id of the server's side of the connection, or 0 if a pooler hides it.
func (c *committer) backend() int64 {
	if c.store.source.pooled.Load() {
		return 0
	}
	return int64(c.conn.PgConn().PID())
}

// send sends a plan.
func (c *committer) send(deadline int64, p *plan) error {
	if err := c.faults.fail; err != nil {
		c.faults.fail = nil
		return err
	}
	b := &pgx.Batch{}
	p.queue(b)
	ctx, cancel := c.context(deadline)
	if p.isLarge() {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), max(time.Duration(deadline-c.store.clock()), leastExchange))
	}
	defer cancel()
	p.sentAt, p.sent = c.store.clock(), true
	if err := c.store.source.send(ctx, c.conn, b); err != nil {
		return err
	}
	return c.loseAnswer()
}

// loseAnswer loses the connection after a commit, if a test says so.
func (c *committer) loseAnswer() error {
	if c.faults.lose == nil || !c.faults.lose() {
		return nil
	}
	closeNow(c.conn)
	return errNotConnected
}

// resolve reconnects if the connection is lost, and reports whether the commit after the last one was made. The error
// matches driver.ErrLeaseLost if the store has no lease any more, although it had one.
func (c *committer) resolve(deadline int64, sent bool) (committed bool, err error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, longestPause) {
		var now instanceRow
		if now, err = c.reconnect(deadline); err == nil {
			return c.compare(now, sent)
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return c.vanished(sent)
		}
		if !isTransient(err) {
			return false, explain(err)
		}
		if c.conn != nil {
			closeNow(c.conn)
		}
		if c.store.clock() > deadline {
			return false, fmt.Errorf("postgres: the server did not answer for %v: %w", c.store.cfg.leaseTime, explain(err))
		}
		time.Sleep(pause)
	}
}

// reconnect connects if necessary and takes a new number of tries.
func (c *committer) reconnect(deadline int64) (now instanceRow, err error) {
	if c.conn == nil || c.conn.IsClosed() {
		dialing, cancel := context.WithTimeout(context.Background(), max(time.Duration(deadline-c.store.clock()), connectTime)) // for many hosts
		c.conn, err = c.store.source.dial(dialing)
		if cancel(); err != nil {
			c.conn = nil
			return now, err
		}
	}
	ctx, cancel := c.context(deadline)
	defer cancel()
	id := c.store.instance.Load()
	if id == 0 {
		return now, nil
	}
	const sql = "UPDATE ~.instance SET tries = tries + 1, backend = $2, backend_start = " + backendStart + " WHERE id = $1 RETURNING epoch, batch, tries"
	err = c.conn.QueryRow(ctx, c.store.sql(sql), id, c.backend()).Scan(&now.epoch, &now.batch, &now.tries)
	return now, err
}

// compare compares the row of the store with what the committer knows of it.
func (c *committer) compare(now instanceRow, sent bool) (committed bool, err error) {
	if c.store.instance.Load() == 0 {
		return false, nil
	}
	switch c.row.tries = now.tries; {
	case now.batch == c.row.batch:
	case sent && now.batch == c.row.batch+1:
		committed = true
	default:
		return false, fmt.Errorf("postgres: the store has made %d commits, and the server has %d: a failover has lost commits, or another program has changed table instance", c.row.batch, now.batch)
	}
	if now.epoch != c.row.epoch {
		err = driver.ErrLeaseLost
	}
	return committed, err
}

// vanished is called if the row of the store is gone, because it did not commit for very long. The next commit inserts
// another one.
func (c *committer) vanished(sent bool) (committed bool, err error) {
	had := c.row.epoch != 0
	c.store.instance.Store(0)
	switch {
	case sent:
		return false, errors.New("postgres: the row of the store was removed: whether its last commit was made is unknown")
	case had:
		return false, driver.ErrLeaseLost
	}
	return false, nil
}

// lose notes that the store has lost its lease.
func (c *committer) lose() {
	if c.row.epoch == 0 {
		return
	}
	c.store.cfg.logger.Warn("lease was lost", c.store.fields(zap.Int64("epoch", c.row.epoch))...)
	c.setLease(driver.Lease{})
	c.store.lost.Add(1)
}

// setLease notes the lease that the store has from now on, or none.
func (c *committer) setLease(l driver.Lease) {
	c.row.epoch = l.Epoch
	c.leased = make(map[driver.Ref]held)
	c.store.lease.Store(&l)
}
