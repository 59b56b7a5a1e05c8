package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Requests returns the requests without an answer. See [driver.Store].
//
// Errors: driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Requests(ctx context.Context, q driver.RequestQuery) ([]driver.Request, error) {
	const sql = "SELECT id, body FROM ~.request WHERE answer IS NULL AND id > $1 ORDER BY id LIMIT $2"
	return list(ctx, s, "Requests", func(row pgx.CollectableRow) (r driver.Request, err error) {
		err = row.Scan((*int64)(&r.ID), &r.Body)
		return r, err
	}, sql, int64(q.After), q.Limit)
}

// Answer returns the answer of a request. See [driver.Store].
//
// Errors: driver.ErrNotFound, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Answer(ctx context.Context, id driver.RequestID) (body []byte, answered bool, err error) {
	body, err = reading(ctx, s, fmt.Sprintf("Answer(%d)", id), func(ctx context.Context, db querier) (body []byte, err error) {
		err = db.QueryRow(ctx, s.sql("SELECT answer FROM ~.request WHERE id = $1"), int64(id)).Scan(&body)
		if errors.Is(err, pgx.ErrNoRows) {
			err = driver.ErrNotFound
		}
		return body, err
	})
	return body, body != nil, err
}

// Directives returns the directives. See [driver.Store].
//
// Errors: driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Directives(ctx context.Context) ([]driver.Directive, error) {
	return list(ctx, s, "Directives", func(row pgx.CollectableRow) (d driver.Directive, err error) {
		var subscription []byte
		err = row.Scan(&subscription, &d.Body)
		d.Subscription = string(subscription)
		return d, err
	}, "SELECT subscription, body FROM ~.directive ORDER BY subscription")
}

// Catalogs returns the catalogs of all instances, by number. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Catalogs(ctx context.Context) ([]driver.Catalog, error) {
	return list(ctx, s, "Catalogs", func(row pgx.CollectableRow) (c driver.Catalog, err error) {
		var instance []byte
		var seen string
		if err := row.Scan(&c.Number, &instance, &seen, &c.Body); err != nil {
			return c, err
		}
		c.Instance = string(instance)
		if c.Seen, err = storekit.ParseTime(seen); err != nil {
			err = &CorruptError{Table: "catalog", Row: c.Instance, Detail: err.Error()}
		}
		return c, err
	}, "SELECT number, instance, seen, body FROM ~.catalog ORDER BY number")
}
