package durable

import (
	"context"
	"database/sql"
	"fmt"
)

// OpenSQL opens a SQLite database through database/sql with a single connection, in the mode WAL. It
// returns the value of PRAGMA synchronous that it has read back.
//
// One connection is what goqite and River document. It is also the fastest configuration of backlite:
// with several connections, writers wait in SQLite's busy handler, which sleeps.
func OpenSQL(driver, source string) (db *sql.DB, synchronous string, err error) {
	db, err = sql.Open(driver, source)
	if err != nil {
		return nil, "", err
	}
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	synchronous, err = readBack(db)
	if err != nil {
		_ = db.Close() // the first error is the cause
		return nil, "", err
	}
	return db, synchronous, nil
}

func readBack(db *sql.DB) (synchronous string, err error) {
	ctx := context.Background()
	var journal string
	if err := db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return "", err
	}
	if journal != "wal" {
		return "", fmt.Errorf("PRAGMA journal_mode is %q, want wal", journal)
	}
	var level int
	if err := db.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&level); err != nil {
		return "", err
	}
	return Synchronous(level), nil
}

// Synchronous returns the name of a value of PRAGMA synchronous.
func Synchronous(level int) string {
	names := []string{"OFF", "NORMAL", "FULL", "EXTRA"}
	if level < 0 || level >= len(names) {
		return fmt.Sprint(level)
	}
	return names[level]
}

// Empty reports whether a table has no rows that match the condition.
func Empty(db *sql.DB, table, where string) (bool, error) {
	var empty bool
	err := db.QueryRowContext(context.Background(), "SELECT NOT EXISTS (SELECT 1 FROM "+table+" WHERE "+where+")").Scan(&empty)
	return empty, err
}
