package uuid7_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/uuid7"
)

func compare(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }

func millisOf(id [16]byte) int64 { return int64(binary.BigEndian.Uint64(id[:8]) >> 16) }

// UUIDs grow whatever the clock does, and have the version, the variant and the time.
func TestNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source := uuid7.NewSource()
		begin := source.Count()
		times := rapid.SliceOfN(rapid.Int64Range(0, 1<<48-1), 1, 50).Draw(t, "times")
		var last [16]byte
		latest := int64(0)
		for i, millis := range times {
			var id [16]byte
			if i%2 == 0 {
				id = source.Next(millis)
			} else {
				source.Put(&id, millis)
			}
			latest = max(latest, millis)
			if millisOf(id) != latest {
				t.Fatalf("the time is %d, want %d", millisOf(id), latest)
			}
			if id[6]>>4 != 7 || id[8]>>6 != 2 {
				t.Fatalf("%s is not of version 7", uuid7.Format(id))
			}
			if compare(last, id) >= 0 {
				t.Fatalf("%s after %s", uuid7.Format(id), uuid7.Format(last))
			}
			last = id
		}
		if made := source.Count() - begin; made != uint64(len(times)) {
			t.Fatalf("Count has grown by %d, want %d", made, len(times))
		}
	})
}

func TestNextConcurrently(t *testing.T) {
	const goroutines, each = 8, 2_000
	source := uuid7.NewSource()
	made := make([][][16]byte, goroutines)
	var wg sync.WaitGroup
	for g := range made {
		wg.Go(func() {
			for i := range each {
				made[g] = append(made[g], source.Next(int64(i/100)))
			}
		})
	}
	wg.Wait()
	var all [][16]byte
	for _, ids := range made {
		require.True(t, slices.IsSortedFunc(ids, compare))
		all = append(all, ids...)
	}
	slices.SortFunc(all, compare)
	require.Len(t, slices.Compact(all), goroutines*each)
}

func TestSourcesDiffer(t *testing.T) {
	a, b := uuid7.NewSource().Next(1), uuid7.NewSource().Next(1)
	require.NotEqual(t, a, b)
}

func TestParse(t *testing.T) {
	for s, want := range map[string]bool{
		"01234567-89ab-7def-8123-456789abcdef":  true,
		"01234567-89AB-7DEF-8123-456789ABCDEF":  true,
		"00000000-0000-0000-0000-000000000000":  true,
		"":                                      false,
		"0123456789ab7def8123456789abcdef":      false,
		"{1234567-89ab-7def-8123-456789abcde}":  false,
		"01234567-89ab-7def-8123-456789abcdeg":  false,
		"01234567-89ab-7def-8123-456789abcdef ": false,
		"01234567x89ab-7def-8123-456789abcdef":  false,
		"012345678-9ab-7def-8123-456789abcdef":  false,
	} {
		id, ok := uuid7.Parse(s)
		require.Equal(t, want, ok, s)
		if ok {
			require.Equal(t, strings.ToLower(s), uuid7.Format(id))
		} else {
			require.Zero(t, id, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("01234567-89ab-7def-8123-456789abcdef")
	f.Add("01234567-89ab-7def-8123-456789abcde\xff")
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := uuid7.Parse(s)
		if !ok {
			return
		}
		if text := uuid7.Format(id); text != strings.ToLower(s) {
			t.Fatalf("%q is formatted as %q", s, text)
		}
	})
}
