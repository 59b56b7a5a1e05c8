package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Store is a store in a schema of a Postgres server. Its methods are safe for concurrent use. [driver.Store] specifies
// them.
type Store struct {
	// Immutable after Open.
	cfg          *config
	source       *source
	quotedSchema string
	reads        *pgxpool.Pool
	host         string
	identity     string // of the data
	began        time.Time
	committer    committer
	watching     storekit.Watchers
	own          ownEvents // of SubmitTx
	// Handlers run on handlers: the pool that OpenPool was given, or one of the store's own.
	handlers    *pgxpool.Pool
	ownHandlers bool

	lease     atomic.Pointer[driver.Lease] // written by the committer; never nil
	instance  atomic.Int64                 // id of the row of this store; 0 before its first commit. Written by the committer
	confirmed atomic.Int64                 // when the last commit that renewed the lease was sent, as store.clock
	lost      atomic.Int64                 // leases that the store has lost
	acquiring chan struct{}                // held by the Acquire that tries to begin a lease

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	end    *storekit.Closing
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.TxStore   = (*Store)(nil)
	_ driver.OnceStore = (*Store)(nil)
)

// Open opens the store in the schema of a database, and creates the schema if it is missing. dsn is a connection string
// or URL in the format of libpq. Missing values come from the environment (PGHOST, PGPASSWORD, PGSERVICE) and the file
// .pgpass. Prefer these for passwords: all users of a machine see a URL on a command line.
//
// Open takes no lease: Acquire does. The store has one connection for commits and up to 4 for reads. Handlers with
// eventbus.InTx run on connections of another pool, which has pool_max_conns of the dsn.
//
// Errors: those of connecting; ErrServerTooOld, ErrReadOnly, ErrNoRights, ErrSchemaTooNew, ErrNotMigrated, ErrOtherSchema,
// *OptionError; the context's error.
func Open(ctx context.Context, dsn string, opts ...Option) (*Store, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres.Open: %w", err)
	}
	return open(ctx, config, nil, opts)
}

// OpenPool is Open with the configuration of a pool: its server, role, TLS, and BeforeConnect. The store does not use the
// connections of the pool for its own work, because handlers and callers hold them while they publish. Handlers with
// eventbus.InTx run on them.
func OpenPool(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Store, error) {
	if pool == nil {
		return nil, &OptionError{Option: "OpenPool", Value: "nil", Reason: "the pool must not be nil"}
	}
	return open(ctx, pool.Config(), pool, opts)
}

func open(ctx context.Context, config *pgxpool.Config, pool *pgxpool.Pool, opts []Option) (_ *Store, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("postgres.Open: %w", err)
		}
	}()
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, quotedSchema: pgx.Identifier{cfg.schema}.Sanitize(), began: time.Now(), acquiring: make(chan struct{}, 1)}
	s.end = storekit.NewClosing()
	s.own.wake, s.own.waiting = make(chan struct{}, 1), make(map[int64]time.Time)
	s.host, _ = os.Hostname() // for messages only
	s.lease.Store(new(driver.Lease))
	handlers := config.Copy() // without the settings of the store's sessions
	s.source = newSource(config, cfg)
	conn, err := s.source.look(ctx)
	if err != nil {
		return nil, err
	}
	if s.identity, err = s.enter(ctx, conn); err != nil {
		closeNow(conn)
		return nil, err
	}
	if s.reads, err = s.source.openPool(ctx); err != nil {
		closeNow(conn)
		return nil, err
	}
	if s.handlers = pool; pool == nil {
		if s.source.pooled.Load() {
			useNoStatements(handlers.ConnConfig)
		}
		s.ownHandlers = true
		if s.handlers, err = pgxpool.NewWithConfig(context.Background(), handlers); err != nil {
			s.reads.Close()
			closeNow(conn)
			return nil, err
		}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.watching.Run = s.watch
	s.committer.init(s, conn)
	go s.committer.loop()
	return s, nil
}

// clock returns a monotonic time for comparisons.
func (s *Store) clock() int64 { return int64(time.Since(s.began)) }

// Patience returns the time of the lease. See [driver.Store].
func (s *Store) Patience() time.Duration { return s.cfg.leaseTime }

// Lease returns the lease that the store has. See [driver.Store].
func (s *Store) Lease() driver.Lease { return *s.lease.Load() }

// Now returns the time of the server. See [driver.Store].
//
// Errors: driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	return reading(ctx, s, "Now", func(ctx context.Context, q querier) (now time.Time, err error) {
		err = q.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
		return now.UTC(), err
	})
}

// Submit enqueues a batch. See [driver.Store].
func (s *Store) Submit(b *driver.Batch, done func(error)) {
	s.committer.queue.Add(&job{Batch: b, Done: done})
}

// Reopen connects again and checks the schema. If the store has the lease, Reopen begins a new one, unless another store
// has begun one meanwhile: then the store has none. See [driver.Store].
//
// Errors: those of Open. The store has still failed then, and Reopen can be called again.
func (s *Store) Reopen(ctx context.Context) error {
	err := s.committer.queue.Control(ctx, func() error {
		_ = s.committer.queue.Fail(errors.New("postgres: reopen did not succeed")) // until it does; an earlier failure stays
		if err := s.committer.reopen(ctx); err != nil {
			return err
		}
		s.committer.queue.Recover()
		return nil
	})
	if err != nil {
		return fmt.Errorf("Reopen: %w", err)
	}
	return nil
}

// Close applies the submitted batches, ends the lease and closes the connections. If ctx ends first, Close returns its
// error and continues in the background. A second Close waits for the first one until its own ctx ends.
//
// Another error means that the server did not confirm the end of the lease. Another store takes it over as from a dead
// process, and may count a crash. No event is lost.
func (s *Store) Close(ctx context.Context) error {
	return s.end.Close(ctx, func(end func(error)) {
		s.watching.Close()
		s.committer.queue.Close(func() {
			err := s.shut()
			s.committer.stopped = true
			end(err)
		})
	})
}

// shut ends the lease and closes the connections. It runs on the committer's goroutine.
func (s *Store) shut() error {
	s.cancel()
	err := s.committer.end()
	s.reads.Close()
	if s.ownHandlers {
		go s.handlers.Close() // a handler that was abandoned may never return its connection
	}
	return err
}

// state returns the error of a store that has failed or is closed, or nil.
func (s *Store) state() error { return s.committer.queue.State() }

// readTime bounds an attempt at a read, which has many statements at most. The server may be gone without a word.
const readTime = time.Minute

// read runs a function that only reads. It runs it again after a transient failure, until the time of a lease is over.
func (s *Store) read(ctx context.Context, f func(context.Context, querier) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ending, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)() // Close does not wait for it
	began := time.Now()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, standbyPoll) { // a look of a standby must not come late
		if err := s.state(); err != nil {
			return err
		}
		attempt, end := context.WithTimeout(ending, readTime)
		err := f(attempt, s.reads)
		end()
		var own *queryError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &own):
			return own.err
		case ctx.Err() != nil:
			return ctx.Err()
		case s.ctx.Err() != nil:
			return driver.ErrClosed
		case !isTransient(err) || time.Since(began) > s.cfg.leaseTime:
			return explain(err)
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return fmt.Errorf("%w: %w", ctx.Err(), explain(err)) // why it has waited
		case <-s.end.Began():
		}
		wait.Stop()
	}
}

// reading returns the result of a function that only reads, see read. An error has the name of the method.
func reading[T any](ctx context.Context, s *Store, method string, f func(context.Context, querier) (T, error)) (result T, err error) {
	err = s.read(ctx, func(ctx context.Context, db querier) (err error) {
		result, err = f(ctx, db)
		return err
	})
	if err != nil {
		var none T
		return none, fmt.Errorf("%s: %w", method, err)
	}
	return result, nil
}

// list returns what scan makes of the rows of a query, see reading.
func list[T any](ctx context.Context, s *Store, method string, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return reading(ctx, s, method, func(ctx context.Context, db querier) ([]T, error) {
		rows, err := db.Query(ctx, s.sql(sql), args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, scan)
	})
}

// each runs a query and calls row with each of its rows.
func each(ctx context.Context, q querier, sql string, row func(pgx.Rows) error, args ...any) error {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return eachRow(row)(rows)
}

func (s *Store) fields(more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("schema", s.cfg.schema)}, more...)
}
