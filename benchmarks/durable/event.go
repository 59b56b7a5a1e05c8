package durable

import (
	"encoding/json"
	"fmt"
	"time"
)

// Event is what the publishers publish. Its JSON has about 150 bytes.
type Event struct {
	Order    string    `json:"order"`
	Customer string    `json:"customer"`
	Item     string    `json:"item"`
	Quantity int       `json:"quantity"`
	Cents    int64     `json:"cents"`
	Placed   time.Time `json:"placed"`

	// Number counts the events of a process from 1.
	Number int64 `json:"-"`
}

// EventType is the type of the events.
const EventType = "order.placed"

var placed = time.Date(2026, 11, 24, 9, 30, 0, 0, time.UTC)

func newEvent(n int64) Event {
	return Event{
		Order: fmt.Sprintf("order-%012d", n), Customer: "customer-000004711", Item: "a book about buses",
		Quantity: 3, Cents: 12_345, Placed: placed, Number: n,
	}
}

// JSON returns the encoded event.
func (e Event) JSON() ([]byte, error) { return json.Marshal(e) }
