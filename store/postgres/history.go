package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// SettledOutcome is how a dispatch in the history ended.
type SettledOutcome string

const (
	// OutcomeSettled: handled, or cancelled.
	OutcomeSettled SettledOutcome = "settled"
	// OutcomeDeadLettered: a dead letter was made of it.
	OutcomeDeadLettered SettledOutcome = "dead-lettered"
)

// Settled is a dispatch that has settled. An event has several if it was replayed, and one for each subscription on a bus
// with isolation. A delivery that dies at a shut door while the event's others proceed has a dead letter, and no Settled. An
// event that is cancelled before the bus with the lease has taken it in has no dispatch, and no Settled.
type Settled struct {
	Event   driver.ID
	Type    string
	Key     string
	Outcome SettledOutcome
	At      time.Time
}

// History returns the settled dispatches of an event, oldest first. It is empty if the store that settled them was opened
// without WithHistory, or if their retention has ended.
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) History(ctx context.Context, id driver.ID) ([]Settled, error) {
	const sql = "SELECT type, key, dead, settled_at FROM ~.history WHERE event = $1 ORDER BY settled_at, ref"
	return list(ctx, s, "History", func(row pgx.CollectableRow) (settled Settled, err error) {
		var eventType, key []byte
		var dead bool
		var at string
		if err := row.Scan(&eventType, &key, &dead, &at); err != nil {
			return settled, err
		}
		settled = Settled{Event: id, Type: string(eventType), Key: string(key), Outcome: OutcomeSettled}
		if dead {
			settled.Outcome = OutcomeDeadLettered
		}
		if settled.At, err = storekit.ParseTime(at); err != nil {
			err = &CorruptError{Table: "history", Row: id.String(), Detail: err.Error()}
		}
		return settled, err
	}, sql, [16]byte(id))
}
