package texts_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/texts"
)

func TestVisible(t *testing.T) {
	for _, c := range []struct{ in, line, lines string }{
		{"", "", ""},
		{"order.placed", "order.placed", "order.placed"},
		{"größer 日本 🙂", "größer 日本 🙂", "größer 日本 🙂"},
		{"a\x1b[31mb", `a\x1b[31mb`, `a\x1b[31mb`},
		{"a\r\nb\tc", `a\r\nb\tc`, `a\r` + "\nb\tc"},
		{"\u202egnp.exe\u2066", `\u202egnp.exe\u2066`, `\u202egnp.exe\u2066`},
		{"zero\u200bwidth\ufeff", `zero\u200bwidth\ufeff`, `zero\u200bwidth\ufeff`},
		{"bad\xff\xc3", `bad\xff\xc3`, `bad\xff\xc3`},
		{"\ufffd", "\ufffd", "\ufffd"},
		{"nul\x00del\x7f", `nul\x00del\x7f`, `nul\x00del\x7f`},
		{`C:\x`, `C:\x`, `C:\x`},
	} {
		require.Equal(t, c.line, texts.Visible(c.in))
		require.Equal(t, c.lines, texts.VisibleLines(c.in))
	}
}
