package sqlite

// applicationID marks a file as a store of this package: "Sure" in ASCII.
const applicationID = 0x53757265

// migrations are the scripts that make the schema of a version from that of the version before. The
// user_version of a file is the number of scripts that were applied.
var migrations = []string{schema1, schema2, schema3, schema4, schema5, schema6, schema7, schema8, schema9}

// Values of record.kind: the state, and kindKeyed if the record has a key. Indexes contain kind
// rather than two columns.
const (
	kindKeyed     = 4
	kindStateMask = 3
)

// Conditions of the partial indexes. A query that uses such an index repeats its condition. They test
// a bit for each kind: the planner would use kind IN (...) to read the index once per kind, and sort.
const (
	// kindReady selects what ClaimReady claims: ready, or keyed and waiting or parked (0, 4, 5, 7).
	kindReady = "(177 >> kind) & 1"
	// whereReady selects the free ones. A record that is leased from its acceptance to its end never
	// enters this index.
	whereReady  = "owner <= 0 AND " + kindReady
	whereDue    = "(70 >> kind) & 1"  // waiting without a key, or scheduled (1, 2, 6)
	whereParked = "(136 >> kind) & 1" // parked (3, 7)
	// whereDirected selects those with a destination. It does not test IS NOT NULL: to see whether x = ? implies that, SQLite
	// would prepare each statement on the table again for each value. Updates of other records evaluate only its first term.
	whereDirected = "destination <> '' AND " + whereParked
	// whereExpires selects those with an expiry, apart from scheduled ones (0, 1, 3, 4, 5, 7). Updates of others evaluate only its first term.
	whereExpires = "expires <> '' AND (187 >> kind) & 1"
)

// schema1 makes the first version.
//
// record.owner is the epoch of the lease that has the record. It is -epoch if the record was freed,
// or inserted free, under that lease, and 0 if a store without a lease inserted it, before schema 6. An epoch that has
// ended owns nothing: its records are free, and no row is changed for that.
const schema1 = `
CREATE TABLE meta (
	id        INTEGER PRIMARY KEY CHECK (id = 1),
	store     BLOB NOT NULL,    -- random identity of the file
	epoch     INTEGER NOT NULL, -- of the last lease
	held      INTEGER NOT NULL, -- 1 from the beginning of that lease until Close
	next_ref  INTEGER NOT NULL,
	commits   INTEGER NOT NULL,
	beside    INTEGER NOT NULL, -- of these, commits without the lease
	ready     INTEGER NOT NULL, -- number of records by state
	waiting   INTEGER NOT NULL,
	scheduled INTEGER NOT NULL,
	parked    INTEGER NOT NULL,
	leased    INTEGER NOT NULL, -- by the last lease
	letters   INTEGER NOT NULL,
	crc       INTEGER NOT NULL
) STRICT;

-- Leases that ended without Close, apart from those that the same process replaced by Reopen.
CREATE TABLE crash (
	epoch    INTEGER PRIMARY KEY,
	suspects INTEGER NOT NULL -- 1 if the lease had suspect records
) STRICT;

CREATE TABLE record (
	ref      INTEGER PRIMARY KEY,
	position INTEGER NOT NULL,
	kind     INTEGER NOT NULL,
	due      TEXT,
	door     TEXT,
	owner    INTEGER NOT NULL,
	crashes  INTEGER NOT NULL DEFAULT 0,
	suspect  INTEGER NOT NULL DEFAULT 0,
	event    BLOB NOT NULL,
	body     BLOB NOT NULL,    -- length of the JSON of the fixed fields, that JSON, payload
	progress BLOB,             -- JSON
	crc      INTEGER NOT NULL, -- of ref, position, event, body
	live_crc INTEGER NOT NULL  -- of kind, due, door, progress
) STRICT;
CREATE INDEX record_ready   ON record (owner, kind, position) WHERE ` + whereReady + `;
CREATE INDEX record_due     ON record (owner, due) WHERE ` + whereDue + `;
CREATE INDEX record_parked  ON record (door, owner, position) WHERE ` + whereParked + `;
CREATE INDEX record_beside  ON record (position) WHERE position <> ref;
CREATE INDEX record_suspect ON record (owner) WHERE suspect = 1;
CREATE INDEX record_event   ON record (event);

CREATE TABLE letter (
	num          INTEGER PRIMARY KEY,
	id           BLOB NOT NULL UNIQUE,
	event        BLOB NOT NULL,
	type         TEXT NOT NULL,
	key          TEXT NOT NULL,
	subscription TEXT NOT NULL,
	reason       TEXT NOT NULL,
	fingerprint  TEXT NOT NULL,
	published    TEXT NOT NULL,
	died_at      TEXT NOT NULL,
	failures     BLOB NOT NULL, -- JSON
	letter       BLOB NOT NULL, -- JSON of the letter, without failures and payloads
	payload      BLOB,          -- one byte for the kind, see payloadKind, and the payload
	original     BLOB,          -- the same
	crc          INTEGER NOT NULL
) STRICT;
CREATE INDEX letter_event               ON letter (event, id);
CREATE INDEX letter_key                 ON letter (key, id) WHERE key <> '';
CREATE INDEX letter_subscription        ON letter (subscription, id);
CREATE INDEX letter_reason              ON letter (reason, id);
CREATE INDEX letter_subscription_reason ON letter (subscription, reason, id);
CREATE INDEX letter_fingerprint         ON letter (fingerprint, id, died_at);
CREATE INDEX letter_died_at             ON letter (died_at, id);

CREATE TABLE dedupe (
	scope   TEXT NOT NULL,
	key     TEXT NOT NULL,
	event   BLOB NOT NULL,
	content TEXT NOT NULL,
	expires TEXT NOT NULL,
	PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedupe_expires ON dedupe (expires);

-- Dispatches that have settled, with WithHistory.
CREATE TABLE history (
	ref        INTEGER PRIMARY KEY, -- of the record
	event      BLOB NOT NULL,
	type       TEXT NOT NULL,
	key        TEXT NOT NULL,
	outcome    TEXT NOT NULL,
	settled_at TEXT NOT NULL
) STRICT;
CREATE INDEX history_event      ON history (event);
CREATE INDEX history_settled_at ON history (settled_at);

CREATE TABLE orders (
	subscription TEXT PRIMARY KEY,
	body         BLOB NOT NULL, -- JSON
	crc          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
`

// schema2 adds the audit: what operators did, newest last.
const schema2 = `
CREATE TABLE audit (
	number INTEGER PRIMARY KEY,
	body   BLOB NOT NULL,    -- JSON, without the number
	crc    INTEGER NOT NULL  -- of number, body
) STRICT;
`

// schema3 adds the catalog of the last bus that started, and counts the records of stores without the
// lease.
const schema3 = `
CREATE TABLE catalog (
	id   INTEGER PRIMARY KEY CHECK (id = 1),
	body BLOB NOT NULL,    -- JSON
	crc  INTEGER NOT NULL  -- of body
) STRICT;

CREATE TABLE beside (
	id      INTEGER PRIMARY KEY CHECK (id = 1),
	records INTEGER NOT NULL -- inserted without the lease, less those cancelled without it
) STRICT;
INSERT INTO beside (id, records) VALUES (1, 0);
`

// schema4 numbers the denied entries of the audit and the others apart, so that each kind has its own
// bound.
const schema4 = `
ALTER TABLE audit ADD COLUMN denied INTEGER NOT NULL DEFAULT 0;
ALTER TABLE audit ADD COLUMN place  INTEGER NOT NULL DEFAULT 0; -- from 1 for each kind
UPDATE audit SET denied = iif(json_valid(CAST(body AS TEXT)), json_extract(CAST(body AS TEXT), '$.denied') IS NOT NULL, 0);
UPDATE audit SET place = ordered.place FROM
	(SELECT number, row_number() OVER (PARTITION BY denied ORDER BY number) AS place FROM audit) AS ordered
	WHERE ordered.number = audit.number;
CREATE INDEX audit_place ON audit (denied, place);
`

// schema5 counts what the commits without the lease have changed. No released version has made it.
const schema5 = `
ALTER TABLE beside ADD COLUMN record_commits    INTEGER NOT NULL DEFAULT 0;
ALTER TABLE beside ADD COLUMN directive_commits INTEGER NOT NULL DEFAULT 0;
`

// schema6 has the incoming events, requests, and a catalog for each instance. Since then, only the lease inserts records,
// and all tables have a prefix: a service has tables of its own in the file.
//
// The indexes of earlier schemas keep their names, because a migration would have to build them again.
//
// Transactions of callers insert into eventbus_incoming. So it has no unique key but the id, no trigger and no foreign key.
// Each insert takes the next id, so that sqlite_sequence has the number of inserted rows, those of callers included.
const schema6 = `
ALTER TABLE meta    RENAME TO eventbus_meta;
ALTER TABLE crash   RENAME TO eventbus_crash;
ALTER TABLE record  RENAME TO eventbus_record;
ALTER TABLE letter  RENAME TO eventbus_letter;
ALTER TABLE dedupe  RENAME TO eventbus_dedupe;
ALTER TABLE history RENAME TO eventbus_history;
ALTER TABLE audit   RENAME TO eventbus_audit;
ALTER TABLE orders  RENAME TO eventbus_directive;

CREATE TABLE eventbus_incoming (
	id    INTEGER PRIMARY KEY AUTOINCREMENT,
	event BLOB NOT NULL,
	slot  INTEGER NOT NULL,
	state INTEGER NOT NULL,
	due   TEXT,
	body  BLOB NOT NULL,    -- as in eventbus_record
	given INTEGER NOT NULL,
	codec TEXT NOT NULL,
	crc   INTEGER NOT NULL  -- of all others but id
) STRICT;
CREATE INDEX eventbus_incoming_event ON eventbus_incoming (event);

CREATE TABLE eventbus_request (
	id       INTEGER PRIMARY KEY AUTOINCREMENT,
	body     BLOB NOT NULL,    -- JSON
	answer   BLOB,             -- JSON
	answered TEXT,
	crc      INTEGER NOT NULL  -- of body, answer, answered
) STRICT;
CREATE INDEX eventbus_request_open     ON eventbus_request (id) WHERE answered IS NULL;
CREATE INDEX eventbus_request_answered ON eventbus_request (answered) WHERE answered IS NOT NULL;

-- Numbers of commits that have changed something, for Watch.
CREATE TABLE eventbus_counter (
	id         INTEGER PRIMARY KEY CHECK (id = 1),
	incoming   INTEGER NOT NULL, -- by stores, and not by transactions of callers
	requests   INTEGER NOT NULL,
	answers    INTEGER NOT NULL,
	directives INTEGER NOT NULL,
	catalogs   INTEGER NOT NULL,
	removed    INTEGER NOT NULL  -- incoming events that were removed
) STRICT;
INSERT INTO eventbus_counter VALUES (1, 0, 0, 0, 0, 0, 0);

CREATE TABLE eventbus_catalog (
	number   INTEGER PRIMARY KEY AUTOINCREMENT,
	instance TEXT NOT NULL UNIQUE,
	seen     TEXT NOT NULL,
	body     BLOB NOT NULL,
	crc      INTEGER NOT NULL -- of body
) STRICT;
INSERT INTO eventbus_catalog (instance, seen, body, crc) SELECT '', '0001-01-01T00:00:00.000000000Z', body, crc FROM catalog;
DROP TABLE catalog;
DROP TABLE beside;
`

// schema7 has the destinations of records. The index record_parked has all parked records, in the order of Position.
const schema7 = `
ALTER TABLE eventbus_record ADD COLUMN destination TEXT; -- part of live_crc if it is not NULL
CREATE INDEX eventbus_record_destination ON eventbus_record (door, destination, owner, position) WHERE ` + whereDirected + `;
`

// schema8 has an index of the records whose events expire.
const schema8 = `
ALTER TABLE eventbus_record ADD COLUMN expires TEXT; -- as in body; NULL for never
CREATE INDEX eventbus_record_expires ON eventbus_record (owner, expires) WHERE ` + whereExpires + `;
`

// schema9 has the outcomes of deliveries upon which operators have acted. A migration has none: no earlier version knows the operators.
const schema9 = `
CREATE TABLE eventbus_outcome (
	number INTEGER PRIMARY KEY,
	event  BLOB NOT NULL,
	audit  INTEGER NOT NULL, -- number of the last entry in eventbus_audit at that time, 0 for none
	body   BLOB NOT NULL,    -- JSON
	crc    INTEGER NOT NULL  -- of all others
) STRICT;
CREATE INDEX eventbus_outcome_event ON eventbus_outcome (event);
CREATE INDEX eventbus_outcome_audit ON eventbus_outcome (audit);
`
