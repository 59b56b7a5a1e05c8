package fingerprint_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/fingerprint"
)

func TestNumbersAreReplaced(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"order 17 of 4":        "order # of #",
		"10.0.0.1: 1.5 s":      "#: # s",
		"defaced":              "defaced",
		"0xdead at deadbeef01": "# at #",
		"0188d1f0-7c1e-7000-8000-000000000001 is gone": "# is gone",
		"x86 and abc123": "x# and abc#",
	} {
		require.Equal(t, want, fingerprint.WithoutNumbers(text), text)
	}
}

func TestWithoutNumbers(t *testing.T) {
	for text, want := range map[string]string{
		"":            "",
		"no numbers":  "no numbers",
		"17":          "#",
		"order o-17":  "order o-#",
		"order17":     "order#",
		"took 1.5s":   "took #s",
		"version 1.":  "version #.",
		"10.0.0.1:80": "#:#",
		"-3":          "-#",
		"id 0190f5fe-7c00-7a00-8aaa-aaaaaaaaaaaa gone": "id # gone",
		"abcdefab-abcd-abcd-abcd-abcdefabcdef":         "#",
		"x0190f5fe-7c00-7a00-8aaa-aaaaaaaaaaaa":        "x#f#fe-#c#-#a#-#aaa-aaaaaaaaaaaa",
		"0190f5fe-7c00-7a00-8aaa-aaaaaaaaaaaaa":        "#-#c#-#a#-#aaa-aaaaaaaaaaaaa",
		"deadbee7 deadbeef defaced":                    "# deadbeef defaced",
		"0xdeadbeef 0xg 0x":                            "# #xg #x",
		"e3b0c44298fc1c149afbf4c8996fb924":             "#",
		"id_deadbee7!":                                 "id_#!",
		"größe 5 über":                                 "größe # über",
	} {
		require.Equal(t, want, fingerprint.WithoutNumbers(text), text)
	}
}
