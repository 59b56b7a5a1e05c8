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
	// OutcomeDeadLettered: it became a dead letter.
	OutcomeDeadLettered SettledOutcome = "dead-lettered"
)

// Settled is a dispatch that has settled. An event has several if it was replayed, and one for each subscription on a
// bus with isolation. A delivery that dies at a shut subscription while the event's other subscriptions proceed has a
// dead letter, and no Settled. An incoming event that is cancelled has no dispatch, and no Settled.
type Settled struct {
	Event   driver.ID      // the event's id
	Type    string         // the event type
	Key     string         // the event's key; empty for none
	Outcome SettledOutcome // how the dispatch ended
	At      time.Time      // when it ended
}
