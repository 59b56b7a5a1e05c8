package names

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOfAndRead(t *testing.T) {
	all := []string{"red", "green"}
	require.Equal(t, "green", Of("Colour", all, 1))
	require.Equal(t, "Colour(2)", Of("Colour", all, 2))
	require.Equal(t, "Colour(-1)", Of("Colour", all, -1))

	c := uint8(7)
	require.NoError(t, Read("Colour", all, []byte("red"), &c))
	require.Zero(t, c)
	err := Read("Colour", all, []byte(strings.Repeat("blue", 100)), &c)
	require.ErrorContains(t, err, "is no Colour: it must be one of")
	require.Less(t, len(err.Error()), 200)
}
