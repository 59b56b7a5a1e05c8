package contracttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// A store has parts that only the bus reads: JSON.

// progress is what these tests read of a record's progress.
type progress struct {
	Next     int `json:"next"`
	Attempts int `json:"attempts"`
}

func progressOf(t *testing.T, r storetest.DumpRecord) (p progress) {
	t.Helper()
	if r.Progress != nil {
		require.NoError(t, json.Unmarshal(r.Progress, &p))
	}
	return p
}

// directive returns an order as another process records it.
func directive(o eventbus.Directive) driver.Directive {
	body, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprint(err))
	}
	return driver.Directive{Subscription: o.Subscription, Body: body}
}

// orders returns the orders of the store.
func (d *disk) orders(t *testing.T) (all []eventbus.Directive) {
	t.Helper()
	for _, directive := range d.Dump().Directives {
		var o eventbus.Directive
		require.NoError(t, json.Unmarshal(directive.Body, &o))
		all = append(all, o)
	}
	return all
}

// edited returns a JSON object with other values of some members.
func edited(t *testing.T, object []byte, values map[string]any) []byte {
	t.Helper()
	var all map[string]any
	require.NoError(t, json.Unmarshal(object, &all))
	maps.Copy(all, values)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	return text
}
