package storekit

import (
	"time"

	"github.com/surebus/eventbus/driver"
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
