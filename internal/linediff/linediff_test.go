package linediff_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/linediff"
)

// show writes a difference as diff does.
func show(lines []linediff.Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(map[linediff.Op]string{linediff.Kept: " ", linediff.Removed: "-", linediff.Added: "+"}[l.Op] + l.Text + "\n")
	}
	return b.String()
}

func TestLines(t *testing.T) {
	for _, c := range []struct{ name, old, updated, want string }{
		{"both empty", "", "", ""},
		{"equal", "a\nb\n", "a\nb", " a\n b\n"},
		{"one line changed", "a\nb\nc", "a\nx\nc", " a\n-b\n+x\n c\n"},
		{"from nothing", "", "a", "+a\n"},
		{"to nothing", "a\nb", "", "-a\n-b\n"},
		{"inserted and removed", "a\nb\nc\nd", "b\nc\nx\nd\ne", "-a\n b\n c\n+x\n d\n+e\n"},
		{"empty lines", "\n\n", "\n", " \n-\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, show(linediff.Lines(c.old, c.updated)))
		})
	}
}

// The old and the new text can be put together from the lines, whatever the texts are.
func TestLines_KeepBothTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", ""}), 0, 12)
		x, y := texts.Draw(t, "old"), texts.Draw(t, "updated")
		checkBoth(t, x, y, linediff.Lines(strings.Join(x, "\n"), strings.Join(y, "\n")))
	})
}

// Texts beyond the bound of the table are replaced as a whole, apart from their common ends.
func TestLines_Huge(t *testing.T) {
	x, y := []string{"head"}, []string{"head"}
	for range 2000 {
		x, y = append(x, "old"), append(y, "new")
	}
	x, y = append(x, "tail"), append(y, "tail")
	lines := linediff.Lines(strings.Join(x, "\n"), strings.Join(y, "\n"))
	checkBoth(t, x, y, lines)
	require.Equal(t, linediff.Line{Op: linediff.Kept, Text: "head"}, lines[0])
	require.Equal(t, linediff.Line{Op: linediff.Kept, Text: "tail"}, lines[len(lines)-1])
}

func checkBoth(t require.TestingT, x, y []string, lines []linediff.Line) {
	var old, updated []string
	for _, l := range lines {
		if l.Op != linediff.Added {
			old = append(old, l.Text)
		}
		if l.Op != linediff.Removed {
			updated = append(updated, l.Text)
		}
	}
	// Lines ignores a line feed at the end of a text.
	require.Equal(t, strings.TrimSuffix(strings.Join(x, "\n"), "\n"), strings.Join(old, "\n"))
	require.Equal(t, strings.TrimSuffix(strings.Join(y, "\n"), "\n"), strings.Join(updated, "\n"))
}
