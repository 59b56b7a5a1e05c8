package temporal_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/mwl/internal/temporal"
)

func TestDataModel_TemporalFormatProfile_Durations(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"PT30S":                       30 * time.Second,
		"PT1H":                        time.Hour,
		"P1D":                         24 * time.Hour,
		"P1Y":                         365 * 24 * time.Hour,
		"P1M":                         30 * 24 * time.Hour,
		"PT1M":                        time.Minute,
		"P1W":                         7 * 24 * time.Hour,
		"P1W2D":                       9 * 24 * time.Hour,
		"P1Y2M3W4DT5H6M7.5S":          (365+60+21+4)*24*time.Hour + 5*time.Hour + 6*time.Minute + 7500*time.Millisecond,
		"PT0S":                        0,
		"P0D":                         0,
		"-PT0S":                       0,
		"-PT30S":                      -30 * time.Second,
		"-P1DT1H":                     -25 * time.Hour,
		"PT1.5S":                      1500 * time.Millisecond,
		"PT1,5S":                      1500 * time.Millisecond,
		"PT0.5H":                      30 * time.Minute,
		"P0.5D":                       12 * time.Hour,
		"P0.5W":                       84 * time.Hour,
		"PT1H0.5M":                    time.Hour + 30*time.Second,
		"PT0.000000001S":              1,
		"PT0.0000000019S":             1,
		"PT0.123456789123456789999S":  123456789,
		"PT000000000000000000000001S": time.Second,
		"PT36H":                       36 * time.Hour,
		"PT90M":                       90 * time.Minute,
	} {
		got, err := temporal.ParseDuration(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
		exact, err := temporal.ParseDurationExact(s)
		require.NoError(t, err, s)
		require.Equal(t, want, exact, s)
	}
}

func TestDataModel_TemporalFormatProfile_WhatIsNoDuration(t *testing.T) {
	for _, s := range []string{
		"", "P", "-P", "PT", "-PT", "P1", "PT1", "1S", "T1S", "PS", "PTS", "P1DT", "P1S", "P1H", "PT1D", "PT1Y", "P1D1Y", "PT1S1H", "PT1S1S", "P1D1D", "P1W1M",
		"PT1.5H30M", "P1.5DT1H", "PT1.S", "PT.5S", "PT,5S", "PT1.5.5S", "+PT1S", "--PT1S", "PT-1S", "P-1D", "pt1s", "PT1s", " PT1S", "PT1S ", "PT1 S", "P1D T1S", "PTT1S", "P1DTT1S",
		"not-a-duration", "30", "30s", "5m", "PT1S\n", "PT١S", "P1DT1HT1M", "P0001-00-00T00:00:00", "PT1e3S", "PT0x1S",
	} {
		_, err := temporal.ParseDuration(s)
		require.ErrorContains(t, err, "is not an ISO 8601 duration", s)
		require.ErrorContains(t, err, "PT30S", "the remedy")
	}
	_, err := temporal.ParseDuration(strings.Repeat("x", 1<<20))
	require.Less(t, len(err.Error()), 300)
}

func TestDataModel_TemporalFormatProfile_DurationsBeyondTheRangeSaturate(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"P292Y":                              292 * 365 * 24 * time.Hour,
		"P300Y":                              math.MaxInt64,
		"-P300Y":                             math.MinInt64,
		"P99999999999999999999999999999999Y": math.MaxInt64,
		"PT9223372036.854775807S":            math.MaxInt64,
		"-PT9223372036.854775808S":           math.MinInt64,
		"PT9223372036.854775808S":            math.MaxInt64,
		"P200YT8000000000000S":               math.MaxInt64,
	} {
		got, err := temporal.ParseDuration(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	_, err := temporal.ParseDurationExact("P300Y")
	require.ErrorIs(t, err, temporal.ErrRange)
	_, err = temporal.ParseDurationExact("-P300Y")
	require.ErrorIs(t, err, temporal.ErrRange)
	_, err = temporal.ParseDurationExact("-PT9223372036.854775808S")
	require.NoError(t, err)
}

func TestExpressions_MWLFunctions_CanonicalDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                    "PT0S",
		time.Hour + 30*time.Minute:           "PT1H30M",
		26 * time.Hour:                       "PT26H",
		500 * time.Millisecond:               "PT0.5S",
		-30 * time.Second:                    "-PT30S",
		time.Hour + time.Second:              "PT1H1S",
		90 * time.Second:                     "PT1M30S",
		1:                                    "PT0.000000001S",
		-time.Minute - 1500*time.Microsecond: "-PT1M0.0015S",
		math.MaxInt64:                        "PT2562047H47M16.854775807S",
		math.MinInt64:                        "-PT2562047H47M16.854775808S",
	} {
		require.Equal(t, want, temporal.FormatDuration(d))
	}
}

func TestDurationsReadBackAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(t, "nanoseconds"))
		back, err := temporal.ParseDurationExact(temporal.FormatDuration(d))
		require.NoError(t, err)
		require.Equal(t, d, back)
	})
}

func TestDataModel_TemporalFormatProfile_Timestamps(t *testing.T) {
	zone := func(hours, minutes int) *time.Location { return time.FixedZone("", hours*3600+minutes*60) }
	for s, want := range map[string]time.Time{
		"2024-01-15T09:30:00Z":                time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC),
		"2024-01-15t09:30:00z":                time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC),
		"2024-01-15T09:30:00.5Z":              time.Date(2024, 1, 15, 9, 30, 0, 5e8, time.UTC),
		"2024-01-15T09:30:00.123456789Z":      time.Date(2024, 1, 15, 9, 30, 0, 123456789, time.UTC),
		"2024-01-15T09:30:00.1234567899999Z":  time.Date(2024, 1, 15, 9, 30, 0, 123456789, time.UTC),
		"2024-01-15T09:30:00+02:00":           time.Date(2024, 1, 15, 9, 30, 0, 0, zone(2, 0)),
		"2024-01-15T09:30:00-05:30":           time.Date(2024, 1, 15, 9, 30, 0, 0, zone(-5, -30)),
		"2024-01-15T09:30:00-00:00":           time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC),
		"2024-02-29T23:59:59Z":                time.Date(2024, 2, 29, 23, 59, 59, 0, time.UTC),
		"2016-12-31T23:59:60Z":                time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC),
		"2017-01-01T01:59:60+02:00":           time.Date(2017, 1, 1, 2, 0, 0, 0, zone(2, 0)),
		"0001-01-01T00:00:00Z":                time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC),
		"9999-12-31T23:59:59.999999999+23:59": time.Date(9999, 12, 31, 23, 59, 59, 999999999, zone(23, 59)),
	} {
		got, err := temporal.ParseInstant(s)
		require.NoError(t, err, s)
		require.True(t, want.Equal(got), "%s: %v", s, got)
		_, offset := got.Zone()
		_, wanted := want.Zone()
		require.Equal(t, wanted, offset, "%s keeps its offset", s)
	}
}

func TestDataModel_TemporalFormatProfile_WhatIsNoTimestamp(t *testing.T) {
	for _, s := range []string{
		"", "2024-01-15", "2024-01-15T09:30Z", "2024-01-15T09:30:00", "2024-01-15 09:30:00Z", "2024-1-15T09:30:00Z", "2024-01-15T9:30:00Z", "2023-02-29T00:00:00Z", "2024-00-01T00:00:00Z",
		"2024-13-01T00:00:00Z", "2024-01-00T00:00:00Z", "2024-01-32T00:00:00Z", "2024-01-15T24:00:00Z", "2024-01-15T23:60:00Z", "2024-01-15T23:59:61Z", "2024-01-15T12:00:60Z",
		"2024-01-15T09:30:00.Z", "2024-01-15T09:30:00,5Z", "2024-01-15T09:30:00+2:00", "2024-01-15T09:30:00+0200", "2024-01-15T09:30:00+24:00", "2024-01-15T09:30:00+02:60",
		"2024-01-15T09:30:00 Z", "2024-01-15T09:30:00Zx", "02024-01-15T09:30:00Z", "-2024-01-15T09:30:00Z", "1705311000", "tomorrow", "2024-01-15T09:30:00+ab:cd", "2024-01-15T09:30:00ZZ",
	} {
		_, err := temporal.ParseInstant(s)
		require.ErrorContains(t, err, "is not an RFC 3339 timestamp", s)
		require.ErrorContains(t, err, "2024-01-15T09:30:00Z", "the remedy")
	}
}

func TestDataModel_TemporalFormatProfile_RecordsAreUTCAndReadBack(t *testing.T) {
	require.Equal(t, "2024-01-15T07:30:00.5Z", temporal.FormatInstant(time.Date(2024, 1, 15, 9, 30, 0, 5e8, time.FixedZone("", 7200))))
	rapid.Check(t, func(t *rapid.T) {
		instant := time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "seconds"), rapid.Int64Range(0, 999999999).Draw(t, "nanoseconds"))
		back, err := temporal.ParseInstant(temporal.FormatInstant(instant))
		require.NoError(t, err)
		require.True(t, instant.Equal(back))
	})
}

func TestAddStaysWithinTheYearsOfATimestamp(t *testing.T) {
	start := time.Date(2024, 1, 15, 9, 30, 0, 0, time.UTC)
	require.Equal(t, start.Add(time.Hour), temporal.Add(start, time.Hour))
	require.Equal(t, start.Add(math.MaxInt64), temporal.Add(start, math.MaxInt64))
	last := temporal.Add(time.Date(9990, 1, 1, 0, 0, 0, 0, time.UTC), math.MaxInt64)
	require.Equal(t, "9999-12-31T23:59:59.999999999Z", temporal.FormatInstant(last))
	first := temporal.Add(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), math.MinInt64)
	require.Equal(t, "0000-01-01T00:00:00Z", temporal.FormatInstant(first))
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"PT30S", "-P1Y2M3W4DT5H6M7.5S", "P1.5Y", "PT99999999999999999999S", "P", "PT,5S", "-PT9223372036.854775808S"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := temporal.ParseDuration(s)
		if err != nil {
			require.Less(t, len(err.Error()), 600)
			return
		}
		if strings.HasPrefix(s, "-") {
			require.LessOrEqual(t, d, time.Duration(0))
		} else {
			require.GreaterOrEqual(t, d, time.Duration(0))
		}
		back, err := temporal.ParseDuration(temporal.FormatDuration(d))
		require.NoError(t, err)
		require.Equal(t, d, back)
	})
}

// FuzzParseInstant compares with Go's parser, which takes the same format but for lower case, leap seconds, commas and lenient offsets.
func FuzzParseInstant(f *testing.F) {
	for _, s := range []string{"2024-01-15T09:30:00Z", "2024-02-30T00:00:00.5+02:00", "2016-12-31T23:59:60Z", "2024-01-15t09:30:00z", "2024-01-15T09:30:00,5Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := temporal.ParseInstant(s)
		want, wantErr := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			require.Less(t, len(err.Error()), 600)
			if wantErr == nil {
				require.True(t, strings.Contains(s, ",") || want.Format(time.RFC3339)[:19] != s[:19] || !validOffset(s), s)
			}
			return
		}
		if wantErr == nil {
			require.True(t, want.Equal(got), s)
		}
		back, err := temporal.ParseInstant(temporal.FormatInstant(got))
		if year := got.UTC().Year(); year >= 0 && year <= 9999 {
			require.NoError(t, err)
			require.True(t, got.Equal(back))
		}
	})
}

// validOffset reports whether the offset is one that RFC 3339 names: Go takes +24:00 too.
func validOffset(s string) bool {
	if !strings.ContainsAny(s[len(s)-1:], "0123456789") {
		return true
	}
	return s[len(s)-5:len(s)-3] <= "23" && s[len(s)-2:] <= "59"
}
