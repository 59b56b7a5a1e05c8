package plan

import "time"

// Postgres is the name of the workload of the rivals that keep events in a Postgres server.
const Postgres = "Postgres"

// postgresProgram is the program of the workload Postgres.
const postgresProgram = "postgres"

const pgx = "github.com/jackc/pgx/v5"

// postgresRivals are the rivals of the workload Postgres.
var postgresRivals = []Rival{
	{
		Name: "river-postgres", Title: "River, Postgres driver", Module: "github.com/riverqueue/river/riverdriver/riverpgxv5", Program: postgresProgram, Driver: pgx,
		Settles: time.Second,
	},
	{Name: "grouped-postgres", Title: "bare INSERT and DELETE, grouped commits", Program: postgresProgram, Driver: pgx, Yardstick: true},
}

// postgresWorkloads are the workloads on a Postgres server.
var postgresWorkloads = []Workload{{
	Name:  Postgres,
	Title: "Durable events in Postgres",
	Text: "Events of 150 bytes of JSON in a Postgres server with `synchronous_commit=on`, which each program reads back. The server runs on the same machine, for all runs of the report, and the programs reach it through a Unix socket. Each measurement has a new database. " +
		"A publisher waits until its event is durable. The time ends when all events are handled, by a handler that does nothing, and their completion is durable. " +
		"River has a pool of 16 connections, 1,000 workers and the shortest `FetchCooldown`. Each publisher inserts its jobs one by one, as it publishes them one by one with this bus. River keeps completed jobs, as it does by default. " +
		"The yardstick gathers the rows that wait, and those that are to be deleted, and inserts and deletes them in one commit on one connection, as the store of this bus does. Its table has a primary key and no other index.",
	Shortest: 300 * time.Millisecond,
	Cases: []Case{
		durableCase(settled, 64, often(Us), "river-postgres", "grouped-postgres"),
		durableCase(settled, 512, often(Us, "grouped-postgres"), "river-postgres"),
	},
}}

// ProgramOf returns the program in benchmarks/durable that measures a run, and how each of its commits is flushed: the value
// of PRAGMA synchronous of SQLite, or of synchronous_commit of Postgres. The program is empty for a benchmark.
func ProgramOf(run Run) (program, synchronous string) {
	rival, _ := RivalNamed(run.Rival)
	switch run.Workload {
	case Durable:
		return rival.Program, rival.Synchronous
	case Postgres:
		return postgresProgram, "on"
	}
	return "", ""
}

// SettledInPostgres is the run of a rival that accepts, handles and settles events in a Postgres server.
func SettledInPostgres(publishers int, rival string) Run {
	return Run{Workload: Postgres, Case: durableName(settled, publishers), Rival: rival}
}
