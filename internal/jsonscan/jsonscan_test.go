package jsonscan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/jsonscan"
)

func TestFind(t *testing.T) {
	const object = `{"a":1,"details":{"error":"inner","list":[{"}":"]"}]},"error":"say \"no\" \\","e\u0041":[ "x" , {} ],"null":null, "last" : -1.5e3 }`
	for _, c := range []struct {
		want string
		path []string
	}{
		{`1`, []string{"a"}},
		{`"say \"no\" \\"`, []string{"error"}},
		{`"inner"`, []string{"details", "error"}},
		{`[{"}":"]"}]`, []string{"details", "list"}},
		{`[ "x" , {} ]`, []string{"eA"}},
		{`null`, []string{"null"}},
		{`-1.5e3`, []string{"last"}},
		{``, []string{"inner"}},
		{``, []string{"details", "a"}},
		{``, []string{"b", "error"}},
	} {
		found, err := jsonscan.Find([]byte(object), c.path...)
		require.NoError(t, err, c.path)
		require.Equal(t, c.want, string(found), c.path)
	}
	for _, bad := range []string{``, `[]`, `7`, `{`, `{"b"`, `{"b":`, `{"b":}`, `{"b":"x`, `{"b":1`, `{"b":1]`, `{b:1}`, `{"b":]}`} {
		_, err := jsonscan.Find([]byte(bad), "a")
		require.ErrorIs(t, err, jsonscan.ErrMalformed, bad)
	}
}

func TestEach(t *testing.T) {
	for text, want := range map[string][]string{
		`null`: nil, `[]`: nil, ` [ ] `: nil, `[1,"a,]",{"x":[2]}, null]`: {`1`, `"a,]"`, `{"x":[2]}`, `null`},
	} {
		var got []string
		require.NoError(t, jsonscan.Each([]byte(text), func(e []byte) error {
			got = append(got, string(e))
			return nil
		}), text)
		require.Equal(t, want, got, text)
	}
	errStop := errors.New("stop")
	require.Equal(t, errStop, jsonscan.Each([]byte(`[1,2]`), func([]byte) error { return errStop }))
	for _, bad := range []string{``, `{}`, `"a"`, `[`, `[1`, `[,]`, `[1,]`, `[1}`} {
		require.ErrorIs(t, jsonscan.Each([]byte(bad), func([]byte) error { return nil }), jsonscan.ErrMalformed, bad)
	}
}

func TestText(t *testing.T) {
	for value, want := range map[string]string{`""`: "", `"a"`: "a", `"\u003ca\n\"\\"`: "<a\n\"\\"} {
		text, err := jsonscan.Text([]byte(value))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	for _, bad := range []string{``, `"`, `1`, `{}`, `"\x"`} {
		_, err := jsonscan.Text([]byte(bad))
		require.ErrorIs(t, err, jsonscan.ErrMalformed, bad)
	}
}

// FuzzFind compares with encoding/json.
func FuzzFind(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1,{"c":"}\\"}]},"\u0061":2}`), "a")
	f.Add([]byte(`{"a":1`), "a")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		found, err := jsonscan.Find(text, name)
		_ = jsonscan.Each(text, func(e []byte) error {
			_, _ = jsonscan.Text(e)
			return nil
		})
		var members map[string]json.RawMessage
		if !json.Valid(text) {
			return
		}
		if json.Unmarshal(text, &members) != nil || members == nil {
			require.ErrorIs(t, err, jsonscan.ErrMalformed)
			return
		}
		require.NoError(t, err)
		want, has := members[name]
		require.Equal(t, has, found != nil)
		if n, err := countMembers(text); has && err == nil && n == len(members) { // otherwise a name may be there twice
			require.Equal(t, string(want), string(found))
		}
	})
}

func countMembers(text []byte) (n int, err error) {
	in := json.NewDecoder(bytes.NewReader(text))
	_, err = in.Token()
	for ; err == nil && in.More(); n++ {
		if _, err = in.Token(); err == nil {
			err = in.Decode(new(json.RawMessage))
		}
	}
	return n, err
}
