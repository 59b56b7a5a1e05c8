package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Settled is a dispatch in the history.
type Settled = storekit.Settled

// SettledOutcome is how a dispatch in the history ended.
type SettledOutcome = storekit.SettledOutcome

// The outcomes.
const (
	OutcomeSettled      = storekit.OutcomeSettled
	OutcomeDeadLettered = storekit.OutcomeDeadLettered
)

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
