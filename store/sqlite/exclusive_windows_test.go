package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExclusive_IsRefusedOnWindows(t *testing.T) {
	_, err := Open(t.Context(), testPath(t), WithExclusive())
	var wrong *OptionError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "WithExclusive", wrong.Option)
}
