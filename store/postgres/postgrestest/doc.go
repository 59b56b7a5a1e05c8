// Package postgrestest starts private Postgres servers for tests, on Unix.
//
// A server has its data and its socket in a temporary folder, listens on no port, and ends with the process. It needs the
// programs initdb and postgres: those in PATH, or the newest ones where Debian keeps them (apt-get install postgresql).
// fsync is on, as in production.
package postgrestest
