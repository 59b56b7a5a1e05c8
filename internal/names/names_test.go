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

func TestNearest(t *testing.T) {
	all := []string{"billing", "mail", "audit", "", "mails"}
	for name, want := range map[string]string{
		"mail": "mail", "mial": "mail", "Mail": "mail", "mailss": "mails", "bilings": "billing", "a": "", "auditor": "audit",
	} {
		require.Equal(t, want, Nearest(name, all), name)
	}
	long := strings.Repeat("x", 100_000)
	require.Equal(t, long, Nearest(long+"y", []string{"mail", long}))
}

func TestSame(t *testing.T) {
	require.Nil(t, NewSame([]string{"mail"}))
	var one *Same
	require.Equal(t, []string{"mail"}, one.Of("mail"))
	require.Empty(t, one.Of(""))
	require.False(t, one.Has("mail"))
	two := NewSame([]string{"post", "mail"})
	require.Equal(t, []string{"post", "mail"}, two.Of("mail"))
	require.True(t, two.Has("post"))
}
