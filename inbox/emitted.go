package inbox

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// partBytes is the size of a part before base64, which makes 16 KiB of it: a TEXT of MySQL has up to 64 KiB.
const partBytes = 12 << 10

// setUpEmitted creates the table of emitted events. Without it, the inbox refuses Emit.
func (i *Inbox) setUpEmitted(ctx context.Context) error {
	err := i.lookEmitted(ctx)
	if err != nil {
		_, createErr := i.db.ExecContext(ctx, i.sql(`CREATE TABLE ~_emitted (
			event        VARCHAR(36)  NOT NULL,
			subscription VARCHAR(512) NOT NULL,
			edits        INTEGER      NOT NULL,
			part         INTEGER      NOT NULL,
			data         TEXT         NOT NULL,
			PRIMARY KEY (event, subscription, edits, part)
		)`))
		if err = i.lookEmitted(ctx); err != nil { // another process may have created it meanwhile
			err = errors.Join(createErr, err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if i.emits = err == nil; err != nil {
		i.log.Warn("inbox cannot keep emitted events", zap.String("table", i.table+"_emitted"), zap.Error(err))
	}
	return nil
}

// lookEmitted reads the table.
func (i *Inbox) lookEmitted(ctx context.Context) error {
	rows, err := i.db.QueryContext(ctx, i.sql("SELECT event, subscription, edits, part, data FROM ~_emitted WHERE event = ? AND edits < ?"), "", 0)
	if err != nil {
		return err
	}
	return errors.Join(rows.Err(), rows.Close())
}

// collect runs f in a transaction, and returns the events that f has emitted.
func (i *Inbox) collect(ctx context.Context, tx *sql.Tx, d eventbus.Delivery, f func(context.Context) error) ([]byte, error) {
	run := handlerTx{i, tx, d.Event.ID, d.Subscription}
	if !i.emits {
		return nil, f(context.WithValue(eventbus.WithoutEmit(ctx), txOfHandler{}, run))
	}
	inner, collected := eventbus.CollectEmitted(ctx)
	defer func() { _, _ = collected() }() // after an error or a panic, too, Emit is an error
	if err := f(context.WithValue(inner, txOfHandler{}, run)); err != nil {
		return nil, err
	}
	return collected()
}

// keep writes what a handler has emitted. Each name of the subscription gets a copy, as it gets a mark: a process of an earlier
// version may know one of them only.
func (i *Inbox) keep(ctx context.Context, tx *sql.Tx, m mark, emitted []byte) (err error) {
	if len(emitted) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("inbox: insert emitted events: %w", err)
		}
	}()
	insert, err := tx.PrepareContext(ctx, i.sql("INSERT INTO ~_emitted (event, subscription, edits, part, data) VALUES (?, ?, ?, ?, ?)"))
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	for n := 0; n*partBytes < len(emitted); n++ {
		data := base64.StdEncoding.EncodeToString(emitted[n*partBytes : min((n+1)*partBytes, len(emitted))])
		for _, name := range m.names {
			if _, err := insert.ExecContext(ctx, m.event, name, m.edits, n, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// emitted returns what the handler that has committed a mark has emitted.
func (i *Inbox) emitted(ctx context.Context, q querier, m mark) ([]byte, error) {
	if !i.emits {
		return nil, nil
	}
	emitted, err := i.readEmitted(ctx, q, m)
	if err != nil {
		return nil, fmt.Errorf("inbox: read emitted events: %w", err)
	}
	return emitted, nil
}

func (i *Inbox) readEmitted(ctx context.Context, q querier, m mark) (emitted []byte, err error) {
	var name sql.NullString // all names have the same
	if err := q.QueryRowContext(ctx, i.sql("SELECT min(subscription) FROM ~_emitted WHERE "+m.where()), m.args()...).Scan(&name); err != nil || !name.Valid {
		return nil, err
	}
	rows, err := q.QueryContext(ctx, i.sql("SELECT part, data FROM ~_emitted WHERE event = ? AND edits = ? AND subscription = ? ORDER BY part"), m.event, m.edits, name.String)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for n := 0; rows.Next(); n++ {
		var part int
		var data string
		if err := rows.Scan(&part, &data); err != nil {
			return nil, err
		}
		if part != n {
			return nil, fmt.Errorf("part %d of event %s is missing", n, m.event)
		}
		decoded, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, fmt.Errorf("part %d of event %s: %w", n, m.event, err)
		}
		emitted = append(emitted, decoded...)
	}
	return emitted, rows.Err()
}

// forgetEmitted removes what the handlers of some events have emitted. It goes before their marks: otherwise nothing finds it.
func (i *Inbox) forgetEmitted(ctx context.Context, events []any) error {
	if !i.emits {
		return nil
	}
	_, err := i.db.ExecContext(ctx, i.sql("DELETE FROM ~_emitted WHERE event IN ("+placeholders(len(events))+")"), events...)
	return err
}
