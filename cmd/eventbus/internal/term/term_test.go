package term_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "",
		"plain ü 日本 \\x1b":    "plain ü 日本 \\x1b",
		"a\nb\tc\rd":          `a\nb\tc\rd`,
		"\x1b[31mred\x1b[0m":  `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\x07":    `\x1b]0;title\x07`,
		"\u009b2J":            `\u009b2J`,
		"\x7f\x00":            `\x7f\x00`,
		"\u202eabc\u2066":     `\u202eabc\u2066`,
		"\xff\xc3":            `\xff\xc3`,
		"\ufeff\u200b\u2028":  `\ufeff\u200b\u2028`,
		"\U000e0041":          `\U000e0041`,
		"\ufffd stays":        "\ufffd stays",
		"non-breaking\u00a0!": `non-breaking\u00a0!`,
	} {
		require.Equal(t, want, term.Escape(text), "%q", text)
	}
	require.Equal(t, "a\nb\tc\\r\\x1b", term.EscapeLines("a\nb\tc\r\x1b"))
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "\x1b[2J", "\u009b", "\xff", "日本", "\r\n", "\U000e0041"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		escaped := term.Escape(s)
		for _, r := range escaped {
			if !unicode.IsPrint(r) {
				t.Fatalf("Escape(%q) = %q", s, escaped)
			}
		}
		text, err := json.Marshal(s)
		require.NoError(t, err)
		safe := term.EscapeJSON(text)
		require.True(t, utf8.Valid(safe))
		for _, r := range string(safe) {
			if !unicode.IsPrint(r) {
				t.Fatalf("EscapeJSON(%q) = %q", text, safe)
			}
		}
		var before, after string
		require.NoError(t, json.Unmarshal(text, &before))
		require.NoError(t, json.Unmarshal(safe, &after))
		require.Equal(t, before, after)
		n := term.Width(escaped)
		for _, columns := range []int{0, 1, 5, n - 1, n, n + 1} {
			if columns >= 0 && term.Width(term.Cut(escaped, columns)) > columns {
				t.Fatalf("Cut(%q, %d) = %q", escaped, columns, term.Cut(escaped, columns))
			}
		}
	})
}

func TestWidth(t *testing.T) {
	require.Equal(t, 3, term.Width("abc"))
	require.Equal(t, 4, term.Width("日本"))
	require.Equal(t, 1, term.Width("e\u0301"))
	require.Equal(t, "日…", term.Cut("日本", 3))
	require.Equal(t, "ab…", term.Cut("abcd", 3))
	require.Equal(t, "abc", term.Cut("abc", 3))
	require.Empty(t, term.Cut("abc", 0))
}

func table() *term.Table {
	t := term.NewTable(term.Column{Name: "ID"}, term.Column{Name: "N", Right: true, Drop: true}, term.Column{Name: "TEXT", Min: 5}, term.Column{Name: "MORE", Min: 4})
	t.Add("1", "10", "a long text", "日本")
	t.Add("22", "5", "x\x1b", "")
	return t
}

func TestTable(t *testing.T) {
	for columns, want := range map[int]string{
		0: `
ID   N  TEXT         MORE
1   10  a long text  日本
22   5  x\x1b
`, 20: `
ID   N  TEXT    MORE
1   10  a lon…  日本
22   5  x\x1b
`, 16: `
ID  TEXT    MORE
1   a lon…  日本
22  x\x1b
`, 5: `
ID  TEXT   MORE
1   a lo…  日本
22  x\x1b
`,
	} {
		var out bytes.Buffer
		require.NoError(t, table().Write(&out, columns))
		require.Equal(t, strings.TrimPrefix(want, "\n"), out.String(), "%d columns", columns)
	}
	require.Equal(t, 2, table().Len())
}

func TestDiff(t *testing.T) {
	require.Empty(t, term.Diff("a\nb\n", "a\nb\n"))
	require.Equal(t, "  a\n- b\n+ c\n  d\n", term.Diff("a\nb\nd\n", "a\nc\nd\n"))
	require.Equal(t, "+ a\n", term.Diff("", "a"))
	require.Equal(t, "- a\n", term.Diff("a", ""))
	long := strings.Repeat("x\n", 3000)
	require.Equal(t, 6001, strings.Count(term.Diff(long, long+"y\n"), "\n"), "long texts are not compared line by line")
}

func TestBarAndSparkline(t *testing.T) {
	require.Equal(t, "[#####-----]  50%", term.Bar(1, 2, 10))
	require.Equal(t, "[##########] 100%", term.Bar(0, 0, 10))
	require.Equal(t, "[##########] 100%", term.Bar(5, 2, 10))
	require.Equal(t, "[----------]   0%", term.Bar(-5, 2, 10))
	require.Equal(t, "▁▄█▁", term.Sparkline([]float64{0, 1, 2, -1}))
	require.Equal(t, "▁▁", term.Sparkline([]float64{0, 0}))
	require.Empty(t, term.Sparkline(nil))
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := term.NewProgress(&out)
	p.End()
	require.Empty(t, out.String())
	p.Draw("12345")
	p.Draw("123")
	p.End()
	p.End()
	require.Equal(t, "\r12345\r123  \r   \r", out.String())
}

// A column with Wrap is the last to shrink, and loses nothing before eight lines are full.
func TestTable_Wrap(t *testing.T) {
	for columns, want := range map[int]string{
		0: `
N  NAME            WHEN   MESSAGE
7  a billing name  today  connect: the server of the bank has closed the connection 日本日本日本
`, 90: `
N  NAME      WHEN   MESSAGE
7  a billi…  today  connect: the server of the bank has closed the connection 日本日本日本
`, 60: `
N  NAME     WHEN   MESSAGE
7  a bill…  today  connect: the server of the bank has
                   closed the connection 日本日本日本
`, 40: `
N  NAME     MESSAGE
7  a bill…  connect: the server of the
            bank has closed the
            connection 日本日本日本
`, 24: `
N  NAME     MESSAGE
7  a bill…  connect: the
            server of
            the bank has
            closed the
            connection
            日本日本日本
`, 3: `
N  NAME     MESSAGE
7  a bill…  connect:
            the
            server
            of the
            bank has
            closed
            the
            connect…
`,
	} {
		table := term.NewTable(
			term.Column{Name: "N", Right: true}, term.Column{Name: "NAME", Min: 7}, term.Column{Name: "WHEN", Drop: true}, term.Column{Name: "MESSAGE", Min: 35, Wrap: true},
		)
		table.Add("7", "a billing name", "today", "connect: the server of the bank has closed the connection 日本日本日本")
		var out bytes.Buffer
		require.NoError(t, table.Write(&out, columns))
		require.Equal(t, strings.TrimPrefix(want, "\n"), out.String(), "%d columns", columns)
	}
	require.Equal(t, []string{"日", "本", "…"}, term.Wrap("日本日本", 2, 3))
	require.Equal(t, []string{"日", "本"}, term.Wrap("日本", 1, 3)[:2], "it ends, also if no character fits")
	require.Equal(t, []string{""}, term.Wrap("", 5, 3))
}
