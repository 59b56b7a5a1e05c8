package jsonline_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/jsonline"
)

func TestLinesAreReadIntoTheSameMemory(t *testing.T) {
	r := bufio.NewReaderSize(strings.NewReader("a\n"+strings.Repeat("b", 100)+"\n\nc"), 16)
	var buffer []byte
	for _, want := range []string{"a\n", strings.Repeat("b", 100) + "\n", "\n"} {
		line, err := jsonline.Read(r, buffer, 101)
		require.NoError(t, err)
		require.Equal(t, want, string(line))
		buffer = line
	}
	memory := &buffer[:1][0]
	line, err := jsonline.Read(r, buffer, 101)
	require.Equal(t, io.EOF, err)
	require.Equal(t, "c", string(line))
	require.Same(t, memory, &line[0])

	_, err = jsonline.Read(bufio.NewReaderSize(strings.NewReader(strings.Repeat("b", 100)+"\n"), 16), nil, 100)
	require.Equal(t, bufio.ErrTooLong, err)
}

func TestRepeatedFieldsAreRefused(t *testing.T) {
	var line struct{ Payload jsonline.Raw }
	require.NoError(t, json.Unmarshal([]byte(`{"payload": {"a": 1}}`), &line))
	require.JSONEq(t, `{"a": 1}`, string(line.Payload.Value().(json.RawMessage)))
	require.ErrorContains(t, json.Unmarshal([]byte(`{"payload": null}`), &line), "names a payload twice")

	line.Payload = jsonline.Raw{}
	require.NoError(t, json.Unmarshal([]byte(`{"payload": null}`), &line))
	require.Nil(t, line.Payload.Value())
}

func TestListsOfStrings(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:         "",
		`null`:       "",
		`["a", "b"]`: "a b",
		`[1]`:        "a list has an element that is not a string",
		`{"a": 1}`:   "a list has an element that is not a string",
		`{"a": "b"}`: "cannot unmarshal",
		`"a"`:        "a list has an element that is not a string",
	} {
		var f jsonline.Strings
		if err := json.Unmarshal([]byte(text), &f); err != nil {
			require.ErrorContains(t, err, want, text)
			continue
		}
		require.Equal(t, want, strings.Join(f.Values, " "), text)
		require.ErrorContains(t, json.Unmarshal([]byte(text), &f), "twice")
	}
}

func FuzzCountStrings(f *testing.F) {
	for _, seed := range []string{`["a", "b\""]`, `{"a": "b"}`, `[1, "a"]`, `[]`, `["\\"]`, `[["a"]]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		jsonline.CountStrings([]byte(text)) // whatever it is
		text = strings.TrimSpace(text)
		var list []any
		if json.Unmarshal([]byte(text), &list) != nil || len(list) == 0 {
			return
		}
		n, only := jsonline.CountStrings([]byte(text))
		strs := 0
		for _, x := range list {
			if _, ok := x.(string); !ok {
				require.False(t, only)
				require.LessOrEqual(t, strs, n)
				return
			}
			strs++
		}
		require.True(t, only)
		require.Equal(t, strs, n)
	})
}

func TestEndsKeepTheFirstAndTheLast(t *testing.T) {
	for list, kept := range map[string][]int{
		"null": nil, "[]": nil, "[1,2]": {1, 2}, "[1,2,3,4,5]": {1, 2, 3, 4, 5}, "[1,2,3,4,5,6,7]": {1, 2, 5, 6, 7},
	} {
		f := jsonline.Ends[int]{Name: "a list", First: 2, Last: 3, Normal: func(*int) error { return nil }}
		require.NoError(t, json.Unmarshal([]byte(list), &f))
		require.Equal(t, kept, f.Kept(), list)
		require.Error(t, json.Unmarshal([]byte(list), &f), "twice")
	}
	refuse := jsonline.Ends[int]{Normal: func(*int) error { return errors.New("refused") }}
	require.ErrorContains(t, json.Unmarshal([]byte("[1]"), &refuse), "refused")
	require.Error(t, json.Unmarshal([]byte("3"), new(jsonline.Ends[int])))
}
