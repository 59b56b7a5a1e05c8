package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/surebus/eventbus/driver"
)

// Errors of Open.
var (
	// ErrServerTooOld is matched by the error for a server before Postgres 14.
	ErrServerTooOld = errors.New("postgres: the server is too old")
	// ErrReadOnly is matched by the error for a server that does not write: a replica, or a read-only server.
	ErrReadOnly = errors.New("postgres: the server does not write")
	// ErrNoRights is matched by the error for a role that lacks a right.
	ErrNoRights = errors.New("postgres: the role lacks a right")
	// ErrSchemaTooNew is matched by the error for a schema that a newer version of this package has made.
	ErrSchemaTooNew = errors.New("postgres: the schema is of a newer version")
	// ErrNotMigrated is matched by the error, with MustExist, for a schema that is missing or of an older version.
	ErrNotMigrated = errors.New("postgres: the schema is not of this version")
	// ErrOtherSchema is matched by the error for a schema with altered tables, or with tables of another program.
	ErrOtherSchema = errors.New("postgres: the schema is not one of a store")
)

// HeldError reports that another store has the lease. It matches driver.ErrNoLease.
type HeldError struct {
	Schema string // the schema of the store
	// Host and PID identify the process that has the lease. Host is empty if it is unknown.
	Host string
	PID  int
}

// Error returns the text of the error.
func (e *HeldError) Error() string {
	if e.Host == "" {
		return fmt.Sprintf("%v: schema %s: another store has it", driver.ErrNoLease, e.Schema)
	}
	return fmt.Sprintf("%v: schema %s: process %d on %s has it", driver.ErrNoLease, e.Schema, e.PID, e.Host)
}

// Unwrap returns driver.ErrNoLease.
func (e *HeldError) Unwrap() error { return driver.ErrNoLease }

// CorruptError reports a row that is missing, or whose content the store did not write.
type CorruptError struct {
	Table  string // the table
	Row    string // identifies the row of the table
	Detail string // what is wrong
}

// Error returns the text of the error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("postgres: table %s, row %s: %s", e.Table, e.Row, e.Detail)
}

// SQLSTATEs that the function eventbus_check of the schema raises.
const (
	stateFenced  = "EB001" // the row of the instance is not as the commit expects: the lease is lost, or the commit was made
	stateRace    = "EB002" // another store has changed what the commit relies on
	stateMissing = "EB003" // a record that the lease has is not there
)

func sqlState(err error) string {
	var state interface{ SQLState() string } // of *pgconn.PgError, and of other drivers' errors
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// isDefinite reports whether an error says that the transaction was undone. An error that ends the session does not say so:
// it may come after the commit.
func isDefinite(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR"
}

// isRace reports whether another store has changed what a commit relied on. The commit can be planned again.
func isRace(err error) bool {
	state := sqlState(err)
	return state == stateRace || state == "23505" // unique_violation
}

// isTransient reports whether an error says nothing about the data: the connection is lost, the server goes down or
// comes up, or it asks to try again.
func isTransient(err error) bool {
	if state := sqlState(err); state != "" {
		switch state {
		case "40001", "40P01", // serialization_failure, deadlock_detected
			"57014",                            // query_canceled: the statement timeout
			"57P01", "57P02", "57P03", "57P05", // the server shuts down, has crashed, comes up; the session was idle
			"55P03",                   // lock_not_available
			"25P02", "25P03", "25006", // failed or idle transactions; read-only, after a failover
			"0A000", "26000": // a cached plan or statement of before a migration
			return true
		}
		return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "53") // of a connection; a full disk, too many connections
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotConnected) || pgconn.SafeToRetry(err) ||
		strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "closed pool")
}

var errNotConnected = errors.New("postgres: not connected")

// explain adds to the error of a statement what the user can do.
func explain(err error) error {
	switch sqlState(err) {
	case "42501":
		return fmt.Errorf("%w: %w: grant it, or let a role that has it create the schema once", ErrNoRights, err)
	case "25006":
		return fmt.Errorf("%w: %w: with several hosts in the DSN, add target_session_attrs=read-write", ErrReadOnly, err)
	case "53100":
		return fmt.Errorf("%w: free space on the disk of the server", err)
	case "3F000", "42P01", "42P10", "42703", "42704", "42883": // what the statement names is not there
		return fmt.Errorf("%w: %w: %s", ErrOtherSchema, err, restoreIt)
	}
	return err
}

// restoreIt is the remedy for a schema that was altered.
const restoreIt = "undo the change, or restore the schema from a backup"
