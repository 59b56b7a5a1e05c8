package texts_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/texts"
)

type panics struct{}

func (panics) Error() string { panic("no text") }

type named string

func TestOfError(t *testing.T) {
	for _, c := range []struct {
		err  error
		most int
		want string
	}{
		{errors.New("text"), 4, "text"},
		{errors.New("text"), 3, "tex… (1 bytes more)"},
		{errors.New("a\xffb"), 10, "a\uFFFDb"},
		{errors.New("aäb"), 2, "a… (2 bytes more)"},
		{panics{}, 10, "texts_test.panics, whose Error method panicked"},
	} {
		require.Equal(t, c.want, texts.OfError(c.err, "", c.most))
		require.Equal(t, c.want, texts.OfError(c.err, c.want, c.most))
	}
}

func TestOfPanic(t *testing.T) {
	itself := make(map[string]any)
	itself["itself"] = itself
	for _, c := range []struct {
		value any
		want  string
	}{
		{"text", "text"},
		{"", `""`},
		{named("x\xff"), "x\uFFFD"},
		{true, "true"},
		{-1, "-1"},
		{uint8(7), "7"},
		{1.5, "1.5"},
		{float32(0.1), "0.1"},
		{2i, "(0+2i)"},
		{math.NaN(), "NaN"},
		{errors.New("e"), "e"},
		{errors.New(""), "*errors.errorString with an empty text"},
		{itself, "a value of type map[string]interface {}"},
		{nil, "a value of type <nil>"},
		{strings.Repeat("x", 101), strings.Repeat("x", 100) + "… (1 bytes more)"},
	} {
		require.Equal(t, c.want, texts.OfPanic(c.value, 100))
	}
}

func FuzzTextsAreShortAndValid(f *testing.F) {
	f.Add("text", 3)
	f.Add("ä\xff\x00", 1)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = min(max(most, 0), 1<<10)
		short := texts.Shorten(text, most)
		require.LessOrEqual(t, len(short), most+len("…"))
		require.True(t, utf8.ValidString(short) || short == text)
		require.True(t, utf8.ValidString(texts.OfError(errors.New(text), "", most)))
		require.NotEmpty(t, texts.OfPanic(text, most))
		if reason, offset := texts.Problem(text, most); reason != "" {
			require.LessOrEqual(t, offset, len(text))
		} else {
			require.LessOrEqual(t, len(text), most)
			require.True(t, utf8.ValidString(text))
		}
	})
}
