package route_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/route"
)

func TestO1_OneLetterApart(t *testing.T) {
	for _, c := range []struct {
		pattern, typ string
		edits        int // 2: not near
	}{
		{"order.*", "oder.created", 1},
		{"order.*", "orders.created", 1},
		{"order.*", "ordre.created", 1},
		{"order.*", "0rder.created", 1},
		{"order.*", "Order.created", 0},
		{"order.created", "ORDER.CREATED", 0},
		{"order.created", "order-created", 1},
		{"order.created", "ordercreated", 1},
		{"order.created", "order.updated", 2},
		{"order.*", "ordr.creatd", 1},
		{"order.*", "odr.created", 2},
		{"order.*.paid", "order.eu.payd", 1},
		{"order.*.paid", "order.eu.x.paid", 1},
		{"order.**", "oder.eu.created", 1},
		{"order.**", "oder", 1},
		{"**.created", "order.eu.creatd", 1},
		{"order.**.paid", "oder.paid", 1},
		{"{order,invoice}.created", "invoce.created", 1},
		{"order.v[12]", "oder.v1", 1},
		{"order.?", "oder.x", 1},
		{"order.cre*", "oder.created", 1},
		{"a.*", "b.created", 2},
		{"v1.*", "v2.created", 2},
		{"*", "order", 2},
		{"straße.*", "strase.x", 1},
	} {
		p, off := route.Parse(c.pattern)
		require.Nil(t, off)
		edits, near := p.Edits(c.typ)
		require.Equal(t, c.edits, edits, "%s and %s", c.pattern, c.typ)
		require.Equal(t, c.edits < 2, near)
	}
	p, _ := route.Parse(strings.Repeat("a*b?", 60))
	_, near := p.Edits(strings.Repeat("ab", 127))
	require.False(t, near)
}
