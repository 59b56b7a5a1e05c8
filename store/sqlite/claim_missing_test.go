package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// A record that a claim has selected cannot disappear.
func TestClaim_OfARecordThatIsMissing(t *testing.T) {
	s := openAt(t, testPath(t))
	free := ready("")
	free.Leased = false
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{free}}))
	found, err := s.Lookup(t.Context(), free.ID)
	require.NoError(t, err)
	inside(t, s, func(c *committer) error {
		_, err := c.w.exec("DELETE FROM eventbus_record")
		return err
	})
	var corrupt *CorruptError
	require.ErrorAs(t, s.leaseRecords(&leaseRequest{state: &s.claim, records: found, owners: []int64{-s.claim.epoch}}), &corrupt)
}
