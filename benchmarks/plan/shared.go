package plan

// Shared is the name of the workload of a file that several users share.
const Shared = "Shared"

// SharedPublishers is the number of goroutines that publish beside the transactions of a service, and on a bus with
// standbys.
const SharedPublishers = 64

// IdleStandbys is the number of standbys beside a bus.
const IdleStandbys = 5

// sharedWorkloads are the workloads of a file that several users share.
var sharedWorkloads = []Workload{{
	Name:  Shared,
	Title: "One file, several users",
	Text: "A bus over an SQLite file with `synchronous=FULL` that others use. A transaction is a service's own, through modernc.org/sqlite with a `busy_timeout`: `BEGIN IMMEDIATE`, two INSERTs, one of them by `PublishTx`, and `COMMIT`. It is measured on a bus that has nothing else to do, and beside 64 publishers. " +
		"The time from the commit to the handler is measured on a bus that has nothing else to do. The hand-over is the time from the end of the active bus's `Shutdown` to the end of the standby's `Start`. " +
		"The last table shows the cost of an event with 64 publishers, accepted, handled and settled, beside 5 idle standbys, as a multiple of the same without them: two buses work in turns, and the figure is the median of 12 pairs of 10,000 events.",
	Cases: []Case{
		{Name: "transaction,alone", Title: "a transaction, alone", Rivals: []string{Us}, Unit: P99, More: []string{P50}, Count: 200},
		{Name: "transaction,beside", Title: "a transaction, beside 64 publishers", Rivals: []string{Us}, Unit: P99, More: []string{P50}, Count: 200},
		{Name: "handled", Title: "commit of a transaction until its event is handled", Rivals: []string{Us}, Unit: P50, More: []string{P99}, Count: 200},
		{Name: "handover", Title: "hand-over to a standby", Rivals: []string{Us}, Unit: P99, More: []string{P50}, Count: 20},
		{Name: "standbys", Title: "5 idle standbys", Rivals: []string{Us}, Unit: Alone, Count: 12},
	},
}}
