package eventbus

import (
	"fmt"

	"github.com/surebus/eventbus/internal/names"
)

// WhenOpen selects how a subscription treats deliveries while its circuit is open. It is a
// SubscribeOption.
type WhenOpen int

const (
	// HoldWhenOpen holds them until the circuit admits them, oldest first. At most 64 of them are on
	// their way or in the handler at a time. It is the default. Later events with the key of a held
	// delivery are held behind it. LineCapacity bounds the line. Shutdown dead-letters held deliveries
	// with the reason shutdown.
	HoldWhenOpen WhenOpen = iota
	// DeadLetterWhenOpen dead-letters them with the reason circuit_open.
	DeadLetterWhenOpen
	// DropWhenOpen drops them. Ledger.Dropped counts them.
	DropWhenOpen
)

// String returns "hold", "dead-letter" or "drop".
func (w WhenOpen) String() string {
	return names.Of("WhenOpen", whenOpenNames, int(w))
}

var whenOpenNames = []string{"hold", "dead-letter", "drop"}

// MarshalText returns the text that String returns.
func (w WhenOpen) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads the text that String returns.
func (w *WhenOpen) UnmarshalText(text []byte) error {
	return names.Read("WhenOpen", whenOpenNames, text, w)
}

func (w WhenOpen) applySubscription(c *subscriptionConfig) {
	if w < HoldWhenOpen || w > DropWhenOpen {
		c.err = &OptionError{Option: "WhenOpen", Value: fmt.Sprint(int(w)), Reason: "is none of the WhenOpen constants: HoldWhenOpen, DeadLetterWhenOpen, DropWhenOpen"}
	}
	c.whenOpen = w
}

// WhenFull selects how a full line treats deliveries (see LineCapacity). It is a SubscribeOption.
type WhenFull int

const (
	// WaitWhenFull makes Publish wait while the line is full of throttled deliveries, and dead-letters
	// further held ones with the reason overflow. It is the default.
	WaitWhenFull WhenFull = iota
	// DropOldestWhenFull drops the oldest delivery of the line. Ledger.Dropped counts it.
	DropOldestWhenFull
	// DropNewestWhenFull drops the delivery that finds the line full. Ledger.Dropped counts it.
	DropNewestWhenFull
	// DeadLetterWhenFull dead-letters the delivery that finds the line full, with the reason overflow.
	DeadLetterWhenFull
)

// String returns "wait", "drop-oldest", "drop-newest" or "dead-letter".
func (w WhenFull) String() string {
	return names.Of("WhenFull", whenFullNames, int(w))
}

var whenFullNames = []string{"wait", "drop-oldest", "drop-newest", "dead-letter"}

// MarshalText returns the text that String returns.
func (w WhenFull) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads the text that String returns.
func (w *WhenFull) UnmarshalText(text []byte) error {
	return names.Read("WhenFull", whenFullNames, text, w)
}

func (w WhenFull) applySubscription(c *subscriptionConfig) {
	if w < WaitWhenFull || w > DeadLetterWhenFull {
		c.err = &OptionError{Option: "WhenFull", Value: fmt.Sprint(int(w)), Reason: "is none of the WhenFull constants: WaitWhenFull, DropOldestWhenFull, DropNewestWhenFull, DeadLetterWhenFull"}
	}
	c.whenFull = w
}
