package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

const (
	defaultTable     = "eventbus_inbox"
	defaultRetention = 24 * time.Hour // the default of eventbus.WithIdempotencyWindow
	identifier       = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

	pruneEvery   = time.Minute
	prunedEvents = 100
)

// Inbox records in a database which handlers have handled which events. Its methods are safe for concurrent use.
// Several inboxes, also of several processes, may share a table if their buses share a store. Buses with different
// stores need separate tables, because each removes the marks of events that it does not know.
type Inbox struct {
	bus       *eventbus.Bus
	db        *sql.DB
	table     string
	retention time.Duration
	log       *zap.Logger
	numbered  bool // placeholders are $1, and not ?
	emits     bool // the table of emitted events is there

	pruned atomic.Int64 // Unix time in seconds of the last removal
}

// Option is an option of New.
type Option func(*Inbox) error

// WithTable sets the name of the table, eventbus_inbox by default: letters, digits and _, behind a schema and a dot if there is
// one. The table of emitted events has the name with _emitted behind it. Buses with different stores need different tables.
func WithTable(name string) Option {
	return func(i *Inbox) error {
		parts := strings.Split(name, ".")
		bad := len(parts) > 2
		for _, part := range parts {
			bad = bad || part == "" || strings.Trim(part, identifier) != "" || part[0] >= '0' && part[0] <= '9'
		}
		if bad {
			return &eventbus.OptionError{Option: "WithTable", Value: fmt.Sprintf("%q", name), Reason: "must be a name of letters, digits and _, or two with a dot between them"}
		}
		i.table = name
		return nil
	}
}

// WithRetention sets how long marks are kept at least: 24 hours by default. While a mark exists, an event with the same
// id counts as handled, even after the bus's WithIdempotencyWindow. So do not use an id for two events. Marks stay
// longer while the bus has a delivery or a letter of their event. d must be at least a second.
func WithRetention(d time.Duration) Option {
	return func(i *Inbox) error {
		if d < time.Second {
			return &eventbus.OptionError{Option: "WithRetention", Value: d.String(), Reason: "must be at least a second"}
		}
		i.retention = d
		return nil
	}
}

// WithLogger sets the logger for failures to remove old marks, and for a missing table of emitted events. The default logs nothing.
func WithLogger(l *zap.Logger) Option {
	return func(i *Inbox) error {
		if l == nil {
			return &eventbus.OptionError{Option: "WithLogger", Value: "nil", Reason: "must not be nil; leave the option out for no log"}
		}
		i.log = l
		return nil
	}
}

// New returns an Inbox in a database, and creates its tables if they are missing. bus is the bus whose handlers use the
// Inbox. New blocks for a few statements, which ctx bounds. Without the table of emitted events the Inbox works, and
// eventbus.Emit returns eventbus.ErrNoTransaction in its handlers.
//
// Errors: *eventbus.OptionError, also for a bus or a database that is nil; *TableError; those of the database, the context's.
func New(ctx context.Context, bus *eventbus.Bus, db *sql.DB, opts ...Option) (*Inbox, error) {
	i, err := open(ctx, bus, db, opts)
	if err != nil {
		return nil, fmt.Errorf("inbox.New: %w", err)
	}
	return i, nil
}

func open(ctx context.Context, bus *eventbus.Bus, db *sql.DB, opts []Option) (*Inbox, error) {
	if bus == nil {
		return nil, &eventbus.OptionError{Option: "bus", Value: "nil", Reason: "must be the bus whose handlers use the inbox"}
	}
	if db == nil {
		return nil, &eventbus.OptionError{Option: "db", Value: "nil", Reason: "must be an open database"}
	}
	i := &Inbox{bus: bus, db: db, table: defaultTable, retention: defaultRetention, log: zap.NewNop()}
	for _, opt := range opts {
		if opt == nil {
			return nil, &eventbus.OptionError{Option: "nil", Value: "nil", Reason: "an option must not be nil; leave it out"}
		}
		if err := opt(i); err != nil {
			return nil, err
		}
	}
	i.pruned.Store(time.Now().Unix())
	if err := i.setUp(ctx); err != nil {
		return nil, err
	}
	return i, i.setUpEmitted(ctx)
}

// TableError reports a table that belongs to another program, or that could not be created.
type TableError struct {
	Table string // the name of the table
	Err   error  // the database's error
}

// Error returns the text of the error.
func (e *TableError) Error() string {
	return fmt.Sprintf("table %s has not the columns of an inbox, or cannot be created: create it as the package comment says, or choose another one (WithTable): %v", e.Table, e.Err)
}

// Unwrap returns the error of the database.
func (e *TableError) Unwrap() error { return e.Err }

// setUp creates the table, and finds out how the database writes placeholders.
func (i *Inbox) setUp(ctx context.Context) error {
	if err := i.db.PingContext(ctx); err != nil {
		return err
	}
	if i.look(ctx) == nil {
		return nil
	}
	_, createErr := i.db.ExecContext(ctx, "CREATE TABLE "+i.table+` (
		event        VARCHAR(36)  NOT NULL,
		subscription VARCHAR(512) NOT NULL,
		edits        INTEGER      NOT NULL,
		marked       BIGINT       NOT NULL,
		PRIMARY KEY (event, subscription, edits)
	)`)
	if createErr == nil {
		name := strings.ReplaceAll(i.table, ".", "_") + "_marked"
		if _, err := i.db.ExecContext(ctx, "CREATE INDEX "+name+" ON "+i.table+" (marked)"); err != nil {
			i.log.Warn("inbox has no index of its times", zap.String("table", i.table), zap.Error(err)) // it works without
		}
	}
	err := i.look(ctx) // another process may have created it meanwhile
	if err == nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return &TableError{Table: i.table, Err: errors.Join(createErr, err)}
}

// look reads the table, with each kind of placeholders.
func (i *Inbox) look(ctx context.Context) (err error) {
	for _, i.numbered = range []bool{false, true} {
		var rows *sql.Rows
		rows, err = i.db.QueryContext(ctx, i.sql("SELECT event, subscription, edits, marked FROM ~ WHERE marked < ? AND edits < ?"), int64(0), 0)
		if err == nil {
			err = errors.Join(rows.Err(), rows.Close())
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// sql returns a statement for the table, which ~ stands for, with the placeholders of the database for ?.
func (i *Inbox) sql(text string) string {
	text = strings.ReplaceAll(text, "~", i.table)
	if !i.numbered {
		return text
	}
	parts := strings.Split(text, "?")
	var b strings.Builder
	b.WriteString(parts[0])
	for n, part := range parts[1:] {
		fmt.Fprintf(&b, "$%d%s", n+1, part)
	}
	return b.String()
}

type txOfHandler struct{}

// Tx returns the transaction of a handler that runs under Once, from its context. Without one it returns nil. The handler must
// neither commit it nor roll it back, and not use it after it has returned.
func Tx(ctx context.Context) *sql.Tx {
	run, _ := ctx.Value(txOfHandler{}).(handlerTx)
	return run.tx
}

// handlerTx is the transaction of a handler.
type handlerTx struct {
	inbox        *Inbox
	tx           *sql.Tx
	event        eventbus.EventID
	subscription string
}

// Once is a middleware for eventbus.Use. It runs the handler in a transaction that also inserts a mark: the event's id,
// the subscription and the number of edits. If the mark exists, it succeeds without a call of the handler. The
// subscription needs a name (eventbus.Named). Middleware before Once runs outside of the transaction. Outside of a bus,
// the returned handler returns an error.
//
// Errors of an attempt: the handler's, unchanged; the database's; the context's.
func (i *Inbox) Once(next eventbus.Handler) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		d, ok := eventbus.FromContext(ctx)
		if !ok {
			return errNoDelivery
		}
		run, _ := ctx.Value(txOfHandler{}).(handlerTx) // that of a publisher's handler may be there: values are passed on
		if run.inbox == i && run.event == d.Event.ID && run.subscription == d.Subscription {
			return next(ctx, e) // Once is there twice
		}
		ran, emitted, err := i.once(ctx, d, func(ctx context.Context) error { return next(ctx, e) })
		if err == nil {
			err = eventbus.EmitCollected(ctx, emitted)
		}
		if ran && err == nil {
			i.pruneSometimes(ctx)
		}
		return err
	}
}

var errNoDelivery = errors.New("inbox: the context is not that of a handler: a bus must call it")

// once runs f in a transaction with the mark of a delivery. It returns what f has emitted, in this attempt or in the one that has
// committed the mark.
func (i *Inbox) once(ctx context.Context, d eventbus.Delivery, f func(context.Context) error) (ran bool, emitted []byte, err error) {
	tx, err := i.db.BeginTx(ctx, nil)
	if err != nil {
		return false, nil, fmt.Errorf("inbox: begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // also when f panics; after a commit it does nothing
	m := markOf(d)
	found, err := i.find(ctx, tx, m)
	if err != nil {
		return false, nil, err
	}
	if found {
		emitted, err = i.emitted(ctx, tx, m)
		return false, emitted, err
	}
	if err := i.insert(ctx, tx, m); err != nil {
		_ = tx.Rollback()
		if found, _ := i.find(ctx, i.db, m); found { // another transaction has inserted it meanwhile
			emitted, err = i.emitted(ctx, i.db, m)
		}
		return false, emitted, err
	}
	if emitted, err = i.collect(ctx, tx, d, f); err != nil {
		return true, nil, err
	}
	if err := i.keep(ctx, tx, m, emitted); err != nil {
		return true, nil, err
	}
	if err := ctx.Err(); err != nil {
		return true, nil, err
	}
	if err := tx.Commit(); err != nil {
		return true, nil, fmt.Errorf("inbox: commit: %w", err)
	}
	return true, emitted, nil
}

// mark says that a subscription has handled an event. An earlier process may have inserted it under a former name of the
// subscription, so it has a row for each.
type mark struct {
	event string
	names []string
	edits int
}

func markOf(d eventbus.Delivery) mark {
	names := append([]string{d.Subscription}, d.Formerly...)
	slices.Sort(names) // in the same order in each transaction, so that no two wait for each other
	return mark{d.Event.ID.String(), slices.Compact(names), d.Edits}
}

// where returns the condition of the rows of a mark.
func (m mark) where() string {
	return "event = ? AND edits = ? AND subscription IN (" + placeholders(len(m.names)) + ")"
}

// args returns the arguments of where.
func (m mark) args() []any {
	args := []any{m.event, m.edits}
	for _, name := range m.names {
		args = append(args, name)
	}
	return args
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (i *Inbox) find(ctx context.Context, q querier, m mark) (bool, error) {
	var n int
	if err := q.QueryRowContext(ctx, i.sql("SELECT count(*) FROM ~ WHERE "+m.where()), m.args()...).Scan(&n); err != nil {
		return false, fmt.Errorf("inbox: look for a mark: %w", err)
	}
	return n > 0, nil
}

func (i *Inbox) insert(ctx context.Context, tx *sql.Tx, m mark) error {
	now := time.Now().Unix()
	for _, name := range m.names {
		if _, err := tx.ExecContext(ctx, i.sql("INSERT INTO ~ (event, subscription, edits, marked) VALUES (?, ?, ?, ?)"), m.event, name, m.edits, now); err != nil {
			return fmt.Errorf("inbox: insert a mark: %w", err)
		}
	}
	return nil
}

// pruneSometimes removes old marks about once a minute, and at every call while there are many.
func (i *Inbox) pruneSometimes(ctx context.Context) {
	last, now := i.pruned.Load(), time.Now().Unix()
	if now-last < int64(pruneEvery/time.Second) || !i.pruned.CompareAndSwap(last, now) {
		return
	}
	events, err := i.Prune(ctx)
	if err != nil {
		i.log.Warn("inbox did not remove old marks", zap.String("table", i.table), zap.Error(err))
	} else if events >= prunedEvents/2 {
		i.pruned.Store(last)
	}
}

// Prune removes the marks of up to 100 events, and their emitted events, oldest first. It removes marks that are older
// than WithRetention if the bus has no dispatch and no dead letter of the event. It returns the number of events. It
// calls eventbus.Bus.Event for each event and blocks for that; ctx bounds it.
//
// Errors: those of the database and of eventbus.Bus.Event, the context's.
func (i *Inbox) Prune(ctx context.Context) (events int, err error) {
	if events, err = i.prune(ctx); err != nil {
		return 0, fmt.Errorf("inbox: Prune: %w", err)
	}
	return events, nil
}

func (i *Inbox) prune(ctx context.Context) (int, error) {
	old, err := i.old(ctx)
	if err != nil {
		return 0, err
	}
	var gone, known []any
	for _, event := range old {
		id, err := eventbus.ParseEventID(event)
		if err != nil {
			return 0, fmt.Errorf("table %s: %w", i.table, err)
		}
		status, err := i.bus.Event(ctx, id)
		switch onlyHistory := len(status.Settled) > 0 && status.IsSettled() && len(status.Letters.Letters) == 0; {
		case errors.Is(err, eventbus.ErrUnknownEvent), err == nil && onlyHistory: // no handler is called for it any more
			gone = append(gone, event)
		case err == nil:
			known = append(known, event)
		default:
			return 0, err
		}
	}
	if len(known) > 0 { // otherwise they would hide the marks behind them
		args := append([]any{time.Now().Unix()}, known...)
		if _, err := i.db.ExecContext(ctx, i.sql("UPDATE ~ SET marked = ? WHERE event IN ("+placeholders(len(known))+")"), args...); err != nil {
			return 0, err
		}
	}
	if len(gone) > 0 {
		if err := i.forgetEmitted(ctx, gone); err != nil {
			return 0, err
		}
		if _, err := i.db.ExecContext(ctx, i.sql("DELETE FROM ~ WHERE event IN ("+placeholders(len(gone))+")"), gone...); err != nil {
			return 0, err
		}
	}
	return len(gone), nil
}

// old returns the events of the oldest marks.
func (i *Inbox) old(ctx context.Context) (events []string, err error) {
	query := i.sql(fmt.Sprintf("SELECT event FROM ~ WHERE marked < ? ORDER BY marked LIMIT %d", prunedEvents))
	rows, err := i.db.QueryContext(ctx, query, time.Now().Add(-i.retention).Unix())
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var event string
		if err := rows.Scan(&event); err != nil {
			return nil, err
		}
		if !slices.Contains(events, event) { // it has a row for each subscription
			events = append(events, event)
		}
	}
	return events, rows.Err()
}

// placeholders returns n placeholders.
func placeholders(n int) string { return strings.Repeat(", ?", n)[2:] }
