package eventbustest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// No bus can be brought to lose an event, so this is seen from inside.
func TestUnbalancedBooksAreNamed(t *testing.T) {
	text := settled{}.otherwiseText(eventbus.Metrics{Ledger: eventbus.Ledger{Accepted: 3, Handled: 2}}, realPatience)
	require.Contains(t, text, "does not balance")
	require.Contains(t, text, "Accepted:3")
	text = settled{}.otherwiseText(eventbus.Metrics{Ledger: eventbus.Ledger{Accepted: 3, Handled: 2, Running: 1}}, realPatience)
	require.NotContains(t, text, "does not balance")
}
