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
func (s *Store) Requests(ctx context.Context, q driver.RequestQuery) (requests []driver.Request, err error) {
	const sql = "SELECT id, body FROM ~.request WHERE answer IS NULL AND id > $1 ORDER BY id LIMIT $2"
	err = s.read(ctx, func(ctx context.Context, db querier) error {
		requests = nil
		return each(ctx, db, s.sql(sql), func(rows pgx.Rows) error {
			var r driver.Request
			var id int64
			err := rows.Scan(&id, &r.Body)
			r.ID = driver.RequestID(id)
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
// Errors: driver.ErrNotFound, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Answer(ctx context.Context, id driver.RequestID) (body []byte, answered bool, err error) {
	err = s.read(ctx, func(ctx context.Context, db querier) error {
		return db.QueryRow(ctx, s.sql("SELECT answer FROM ~.request WHERE id = $1"), int64(id)).Scan(&body)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = driver.ErrNotFound
	}
	if err != nil {
		return nil, false, fmt.Errorf("Answer(%d): %w", id, err)
	}
	return body, body != nil, nil
}

// Directives returns the directives. See [driver.Store].
//
// Errors: driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Directives(ctx context.Context) (directives []driver.Directive, err error) {
	err = s.read(ctx, func(ctx context.Context, db querier) error {
		directives = nil
		return each(ctx, db, s.sql("SELECT subscription, body FROM ~.directive ORDER BY subscription"), func(rows pgx.Rows) error {
			var d driver.Directive
			var subscription []byte
			err := rows.Scan(&subscription, &d.Body)
			d.Subscription = string(subscription)
			directives = append(directives, d)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("Directives: %w", err)
	}
	return directives, nil
}

// Catalogs returns the catalogs of all instances, by number. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Catalogs(ctx context.Context) (catalogs []driver.Catalog, err error) {
	err = s.read(ctx, func(ctx context.Context, db querier) error {
		catalogs = nil
		return each(ctx, db, s.sql("SELECT number, instance, seen, body FROM ~.catalog ORDER BY number"), func(rows pgx.Rows) error {
			var c driver.Catalog
			var instance []byte
			var seen string
			if err := rows.Scan(&c.Number, &instance, &seen, &c.Body); err != nil {
				return err
			}
			var err error
			c.Instance = string(instance)
			if c.Seen, err = storekit.ParseTime(seen); err != nil {
				return &CorruptError{Table: "catalog", Row: c.Instance, Detail: err.Error()}
			}
			catalogs = append(catalogs, c)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("Catalogs: %w", err)
	}
	return catalogs, nil
}
