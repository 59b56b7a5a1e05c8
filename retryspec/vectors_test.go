package retryspec_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/retryspec"
)

// vector is a test vector: see testdata/README.md.
type vector struct {
	ID      string          `json:"id"`
	Kind    string          `json:"kind"`
	Policy  json.RawMessage `json:"policy"`
	Attempt int             `json:"attempt"`
	Error   string          `json:"error"`
	Elapsed float64         `json:"elapsed"`
	Expect  json.RawMessage `json:"expect"`
}

func TestVectors(t *testing.T) {
	files := []string{"testdata/vectors.json", "testdata/more.json"}
	if name := os.Getenv("EVENTBUS_RETRYSPEC_VECTORS"); name != "" {
		// First, so that its subtests have the names, if some are the same.
		files = append([]string{name}, files...)
	}
	for _, file := range files {
		for _, v := range readVectors(t, file) {
			t.Run(v.ID, func(t *testing.T) { v.run(t) })
		}
	}
}

func readVectors(t testing.TB, file string) []vector {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var f struct {
		Format  int      `json:"format"`
		Vectors []vector `json:"vectors"`
	}
	require.NoError(t, json.Unmarshal(text, &f), file)
	require.Equal(t, 1, f.Format, "%s: the format", file)
	require.NotEmpty(t, f.Vectors, file)
	ids := make(map[string]bool)
	for _, v := range f.Vectors {
		require.NotEmpty(t, v.ID, file)
		require.False(t, ids[v.ID], "%s has two vectors %s", file, v.ID)
		ids[v.ID] = true
	}
	return f.Vectors
}

func (v vector) run(t *testing.T) {
	if v.Kind == "parse" {
		v.parse(t)
		return
	}
	d, err := retryspec.Parse(v.Policy)
	require.NoError(t, err)
	switch v.Kind {
	case "delay":
		v.delay(t, d)
	case "retry":
		require.Equal(t, expected[bool](t, v), d.Retries(v.Error))
	case "stop":
		require.Equal(t, expected[bool](t, v), d.Stopped(v.Attempt, seconds(v.Elapsed)))
	default:
		t.Fatalf("unknown kind %q", v.Kind)
	}
}

func (v vector) parse(t *testing.T) {
	want := expected[struct {
		OK     bool            `json:"ok"`
		At     string          `json:"at"`
		Policy json.RawMessage `json:"policy"`
	}](t, v)
	d, err := retryspec.Parse(v.Policy)
	if !want.OK {
		var e *retryspec.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, retryspec.ErrInvalid)
		require.Equal(t, want.At, e.Path, e)
		return
	}
	require.NoError(t, err)
	printed, err := json.Marshal(d)
	require.NoError(t, err)
	require.JSONEq(t, string(want.Policy), string(printed))
}

func (v vector) delay(t *testing.T, d retryspec.Document) {
	want := expected[struct{ Min, Max float64 }](t, v)
	least, most := d.Bounds(v.Attempt)
	require.InDelta(t, seconds(want.Min), least, float64(time.Microsecond))
	require.InDelta(t, seconds(want.Max), most, float64(time.Microsecond))
	seen := make(map[time.Duration]bool)
	for range 1000 {
		drawn := d.Delay(v.Attempt, rand.Float64())
		require.GreaterOrEqual(t, drawn, least)
		require.LessOrEqual(t, drawn, most)
		seen[drawn] = true
	}
	if want.Min == want.Max {
		require.Len(t, seen, 1)
	} else {
		require.Greater(t, len(seen), 1)
	}
}

// expected is what the vector expects.
func expected[T any](t *testing.T, v vector) (want T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(v.Expect, &want))
	return want
}

// seconds are so many, or the longest Duration.
func seconds(n float64) time.Duration {
	if n *= float64(time.Second); n < math.MaxInt64 {
		return time.Duration(math.Round(n))
	}
	return math.MaxInt64
}
