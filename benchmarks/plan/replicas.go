package plan

// Replicas is the name of the workload of buses on a Postgres server, with transactions and standbys.
const Replicas = "Replicas"

const (
	// ReplicaPublishers is the number of goroutines that publish on a bus.
	ReplicaPublishers = 64
	// ReplicaStandbys is the number of standbys beside a bus.
	ReplicaStandbys = 10
	// ReplicaConns is the number of connections with a transaction.
	ReplicaConns = 16
)

// Names of the cases of the workload Replicas.
const (
	RoundTrip    = "roundtrip"
	Transaction  = "transaction"
	HandledOwn   = "handled,own"
	HandledOther = "handled,other"
	Standbys     = "standbys"
	Waits        = "waiting"
)

// replicasWorkloads are the workloads of buses on a Postgres server.
var replicasWorkloads = []Workload{{
	Name:  Replicas,
	Title: "Replicas on Postgres",
	Text: "Buses on the Postgres server of the last section, in one process. Ratios are medians of pairs: both sides work in turns, in one database. " +
		"A longer way: two buses reach the server through a proxy on TCP, which delays each direction by 0.5 ms, or by nothing. The figure is the cost of an event with 64 publishers, accepted, handled and settled. The median round trip that the proxy adds is measured with `SELECT 1`. " +
		"A transaction is a service's own, on 16 connections without a pause: `BEGIN`, an INSERT, an UPDATE, an INSERT, `COMMIT`, with and without `PublishTx` before the commit. The active bus takes in, handles and settles the events meanwhile, on the same processors. " +
		"The time from the commit to the handler is measured on a bus that has nothing else to do: it is that of the transaction, or the transaction is one of a standby. " +
		"The next table shows the cost of an event with 64 publishers beside 10 idle standbys, as a multiple of the same without them. " +
		"The last one shows the time from `postgres.Open` to the end of `Start`, with 1,000,000 events that an earlier bus has accepted and not handled. SQL has copied them from one event.",
	Cases: []Case{
		{Name: RoundTrip, Title: "a round trip of 1 ms more", Rivals: []string{Us}, Unit: Near, More: []string{Added}, Count: 8},
		{Name: Transaction, Title: "a transaction with an event", Rivals: []string{Us}, Unit: Plain, More: []string{P50}, Count: 8},
		{Name: HandledOwn, Title: "commit until handled, same process", Rivals: []string{Us}, Unit: P50, More: []string{P99}, Count: 50},
		{Name: HandledOther, Title: "commit until handled, another process", Rivals: []string{Us}, Unit: P50, More: []string{P99}, Count: 40},
		{Name: Standbys, Title: "10 idle standbys", Rivals: []string{Us}, Unit: Alone, Count: 10},
		{Name: Waits, Title: "1,000,000 waiting events", Rivals: []string{Us}, Unit: Ready, Count: 1_000_000},
	},
}}
