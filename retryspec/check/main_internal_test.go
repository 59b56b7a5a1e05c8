package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/retryspec"
)

func checkFiles(in string, args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(args, strings.NewReader(in), &o, &e)
	return status, o.String(), e.String()
}

func TestCheck_ShowsAPolicyDocument(t *testing.T) {
	status, out, errs := checkFiles(`{"owner":"me","stop":{"max_attempts":3},"wait":{"strategy":"exponential","max_delay":6}}`, "-")
	require.Equal(t, good, status, errs)
	require.Empty(t, errs)
	require.Equal(t, `-: a policy document
Ignored: "owner".
{
  "version": 1,
  "stop": {
    "max_attempts": 3,
    "max_delay": null
  },
  "wait": {
    "strategy": "exponential",
    "delay": 1,
    "initial_delay": 1,
    "multiplier": 2,
    "max_delay": 6
  },
  "retry": {
    "include_errors": [
      "ValueError"
    ],
    "exclude_errors": []
  }
}
  retry  from  to  in all, at most
      1    1s  1s               1s  #######
      2    2s  2s               3s  ##############
      3    4s  4s      not reached  ###########################
      4    6s  6s      not reached  ########################################
      5    6s  6s      not reached  ########################################
      6    6s  6s      not reached  ########################################
      7    6s  6s      not reached  ########################################
      8    6s  6s      not reached  ########################################
      9    6s  6s      not reached  ########################################
     10    6s  6s      not reached  ########################################
`, out)
}

func TestCheck_ShowsRules(t *testing.T) {
	status, out, errs := checkFiles("", filepath.FromSlash("../testdata/bank.rules.json"))
	require.Equal(t, good, status, errs)
	require.Contains(t, out, "ordered rules, 3 of them")
	require.Contains(t, out, `"codes": [`)
	for _, title := range []string{"policies[0]: ", "policies[1]: ", "policies[2]: "} {
		require.Contains(t, out, title)
	}
	require.Len(t, regexp.MustCompile(`(?m)^ +[0-9]+ +\S+ +\S+ +(\S+|not reached)( +#*-*)?$`).FindAllString(out, -1), 3*shown, out)
}

func TestCheck_ShowsWhereTheBoundOfTimeStops(t *testing.T) {
	status, out, _ := checkFiles(`{"stop":{"max_attempts":null,"max_delay":25},"wait":{"strategy":"fixed","delay":10},"retry":{"include_errors":[]}}`, "-")
	require.Equal(t, good, status)
	require.Contains(t, out, "No attempt begins 25 s after the task was made, or later.")
	require.Contains(t, out, "No error is retried: include_errors is empty.")
	require.Equal(t, 7, strings.Count(out, "not reached"), out)
}

func TestCheck_EveryDelayMayBeNone(t *testing.T) {
	status, out, _ := checkFiles(`{"wait":{"strategy":"fixed","delay":0}}`, "-")
	require.Equal(t, good, status)
	require.NotContains(t, out, "#")
}

func TestCheck_DelaysBeyondWhatADurationHolds(t *testing.T) {
	status, out, _ := checkFiles(`{"stop":{"max_attempts":null},"wait":{"strategy":"fixed","delay":1e300}}`, "-")
	require.Equal(t, good, status)
	require.Equal(t, 20+10, strings.Count(out, "2562047h47m16.854775807s"))
}

func TestCheck_StopsAtTheFirstBadFile(t *testing.T) {
	fine, misspelt := filepath.FromSlash("../testdata/orders.policy.json"), filepath.FromSlash("../testdata/bad/misspelt.policy.json")
	status, out, errs := checkFiles("", fine, misspelt, fine)
	require.Equal(t, bad, status)
	require.Equal(t, 1, strings.Count(out, "a policy document"))
	require.Contains(t, errs, misspelt+": ")
	require.Contains(t, errs, "line 1, column 11: stop.max_atempts: ")
	require.Contains(t, errs, "did you mean max_attempts?")

	status, _, errs = checkFiles("", filepath.FromSlash("../testdata/bad/success.rules.json"))
	require.Equal(t, bad, status)
	require.Contains(t, errs, `policies[0].match.types: got "success" as item 1`)

	status, _, errs = checkFiles("", "no-such-file.json")
	require.Equal(t, bad, status)
	require.Equal(t, 1, strings.Count(errs, "no-such-file.json"), errs)
}

func TestCheck_TellsTheFormatsApart(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                          "a policy document",
		`{"policies":3}`:              "policies: got 3",
		`{"policies":3,"version":1}`:  "a policy document",
		`{"policies":[],"retry":{}}`:  "a policy document",
		`[]`:                          "the document: got []",
		``:                            "got no text",
		`{"policies":[]} {}`:          "want JSON",
		`{"Policies":[],"other":[1]}`: `Ignored: "Policies", "other".`,
	} {
		_, out, errs := checkFiles(text, "-")
		require.Contains(t, out+errs, want, text)
	}
	status, _, errs := checkFiles(`{"policies":3}`, "-policy", "-")
	require.Equal(t, good, status, errs)
	status, _, errs = checkFiles(`{}`, "-rules", "-")
	require.Equal(t, bad, status)
	require.Contains(t, errs, "policies: got nothing")
}

func TestCheck_StrictFailsOnIgnoredMembers(t *testing.T) {
	status, out, errs := checkFiles(`{"owner":"me","wiat":{}}`, "-strict", "-")
	require.Equal(t, bad, status)
	require.Empty(t, out)
	require.Contains(t, errs, `ignored members: "owner", "wiat"`)
	status, _, errs = checkFiles(`{"stop":{"max_attempts":2}}`, "-strict", "-")
	require.Equal(t, good, status, errs)
	status, _, errs = checkFiles(`{"policies":[{"match":{"codes":["*"]},"attempts":2}]}`, "-strict", "-")
	require.Equal(t, good, status, errs)
}

func TestCheck_InputsAreBounded(t *testing.T) {
	status, _, errs := checkFiles("{}"+strings.Repeat(" ", retryspec.MaxFileSize), "-")
	require.Equal(t, bad, status)
	require.Contains(t, errs, "more than 1048576 bytes")
	status, _, errs = checkFiles("", t.TempDir())
	require.Equal(t, bad, status)
	require.Contains(t, errs, "is a directory, not a regular file")
}

func TestCheck_Usage(t *testing.T) {
	for _, args := range [][]string{{}, {"-policy", "-rules", "x"}, {"-nonsense", "x"}} {
		status, out, errs := checkFiles("", args...)
		require.Equal(t, misused, status, args)
		require.Empty(t, out)
		require.Contains(t, errs, "usage: check")
	}
	status, _, errs := checkFiles("", "-h")
	require.Equal(t, good, status)
	require.Contains(t, errs, "usage: check")
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("the line is dead") }

func TestCheck_AnInputThatBreaksOff(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, bad, run([]string{"-"}, brokenReader{}, &out, &errs))
	require.Equal(t, "-: the line is dead\n", errs.String())
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("nobody listens") }

func TestCheck_AnOutputThatBreaksOff(t *testing.T) {
	var errs bytes.Buffer
	require.Equal(t, bad, run([]string{"-"}, strings.NewReader("{}"), brokenWriter{}, &errs))
	require.Equal(t, "nobody listens\n", errs.String())
}
