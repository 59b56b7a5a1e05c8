package sqlite

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// A page has the oldest records of all its destinations, and no record twice, also if most of what is read has no room in it.
func TestStore_APageOfManyDestinations(t *testing.T) {
	s := openAt(t, testPath(t))
	const destinations, limit = 40, 7
	q := driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"mail"}, Limit: limit}
	batch := &driver.Batch{}
	for i := range destinations {
		q.Destinations = append(q.Destinations, fmt.Sprint("destination ", i))
		for _, position := range []int{1000 - i, 2000 + i, 3000 - i} {
			batch.New = append(batch.New, with(free(ready("")), func(r *driver.Record) {
				r.State, r.Door, r.Destination, r.Position = driver.Parked, "mail", q.Destinations[i], int64(position)
			}))
		}
	}
	require.NoError(t, submit(s, batch))
	last, all := int64(0), 0
	for more := true; more; {
		claimed, err := s.Claim(t.Context(), q)
		require.NoError(t, err)
		for _, r := range claimed.Records {
			require.Greater(t, r.Position, last, "the order of Position")
			last = r.Position
			all++
		}
		more = claimed.More
	}
	require.Equal(t, 3*destinations, all)
}
