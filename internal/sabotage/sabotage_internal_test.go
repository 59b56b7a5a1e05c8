package sabotage

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const sound = `what: It breaks.
breaks: D3 C2
file: internal/pool/pool.go
caught by: internal/pool ^TestD3_
hangs: 20s
-- old --
one
two
-- new --
-- old --
	three
-- new --
	3
`

func TestParse(t *testing.T) {
	b, err := parse("D3-some-words", sound)
	require.NoError(t, err)
	require.Equal(t, []string{"D3", "C2"}, b.Clauses)
	require.Equal(t, "It breaks.", b.What)
	require.Equal(t, "internal/pool ^TestD3_", b.Package+" "+b.Run)
	require.Equal(t, "20s", b.Hangs.String())
	require.Equal(t, []edit{{"one\ntwo", ""}, {"\tthree", "\t3"}}, b.edits)

	patched, err := b.Patch("zero\none\ntwo\n\tthree\n")
	require.NoError(t, err)
	require.Equal(t, "zero\n\n\t3\n", patched)
	for _, source := range []string{"", "one\ntwo\n", "one\ntwo\n\tthree\n\tthree\n"} {
		_, err = b.Patch(source)
		require.ErrorContains(t, err, "no longer applies", source)
	}
}

func TestParse_SaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ name, from, to, want string }{
		{"some-words", "", "", "the name"},
		{"D3", "", "", "the name"},
		{"C2-some-words", "", "", "clause of the name, C2"},
		{"D3-x", "D3 C2", "D3 nonsense", "breaks must be clauses"},
		{"D3-x", "breaks: D3 C2\n", "", "breaks must begin"},
		{"D3-x", "what: It breaks.\n", "", "missing"},
		{"D3-x", "what:", "who:", "unknown line"},
		{"D3-x", " ^TestD3_", "", "missing"},
		{"D3-x", "^TestD3_", "(", "parsing regexp"},
		{"D3-x", "20s", "long", "duration"},
		{"D3-x", "pool.go", "pool_test.go", "source file"},
		{"D3-x", "internal/pool/", "../pool/", "source file"},
		{"D3-x", "by: internal/pool", "by: ./internal/pool", "directory"},
		{"D3-x", "-- new --\n\t3", "\t3", "without its"},
		{"D3-x", "one\ntwo", "", "without a text"},
		{"D3-x", sound[strings.Index(sound, "-- old"):], "", "without its"},
	} {
		_, err := parse(c.name, strings.Replace(sound, c.from, c.to, 1))
		require.ErrorContains(t, err, c.want, "%s: %q for %q", c.name, c.to, c.from)
	}
}
