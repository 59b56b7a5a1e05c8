package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSagaPollingAndFanOut(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	for _, line := range []string{
		`first dead letter: Order.NotShipped: order o-\d+ needs an address; it was refunded`,
		`"code":"Provider.Call.Ship.NoAddress"`,
		`(?m)^succeeded +207$`,
		`(?m)^compensated +24$`,
		`(?m)^dead-lettered +11$`,
		`(?m)^fixed and replayed +1$`,
		`polling: 2 arrived, 1 late`,
		`fanout:  2 prices from 6 of 8 suppliers asked`,
		`OK: the books balance: \d+ cents charged, \d+ refunded, \d+ for 208 shipped orders`,
	} {
		require.Regexp(t, line, out.String())
	}
}
