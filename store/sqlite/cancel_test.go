package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// Records that are cancelled after a claim has selected them are not claimed. Others cannot
// disappear.
func TestCancel_BetweenSelectionAndLease(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	var records []*driver.Record
	for range 5 {
		r := ready("")
		r.State, r.Due = driver.Scheduled, t0.Add(time.Minute)
		records = append(records, r)
	}
	records = append(records, ready(""))
	for _, r := range records {
		r.Leased = false
	}
	request := func() *leaseRequest {
		request := &leaseRequest{state: &s.claim}
		for _, r := range records {
			found, err := s.Lookup(t.Context(), r.ID)
			require.NoError(t, err)
			request.records, request.owners = append(request.records, found...), append(request.owners, -s.claim.epoch)
		}
		return request
	}
	require.NoError(t, submit(s, &driver.Batch{New: records}))
	selected := request()
	for _, i := range []int{1, 4} {
		require.NoError(t, submit(s, &driver.Batch{Cancel: []driver.ID{records[i].ID}}))
	}
	require.NoError(t, s.leaseRecords(selected))
	var leased []driver.Ref
	for _, r := range selected.records {
		require.True(t, r.Leased)
		leased = append(leased, r.Ref)
	}
	require.Equal(t, []driver.Ref{1, 3, 4, 6}, leased)
	require.NoError(t, submit(s, &driver.Batch{Delete: leased}))
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, driver.Stats{}, stats)

	records = []*driver.Record{ready("")}
	records[0].Leased = false
	require.NoError(t, submit(s, &driver.Batch{New: records}))
	selected = request()
	inside(t, s, func(c *committer) error {
		_, err := c.w.exec("DELETE FROM eventbus_record")
		return err
	})
	var corrupt *CorruptError
	require.ErrorAs(t, s.leaseRecords(selected), &corrupt)
}
