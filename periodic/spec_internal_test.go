package periodic

import (
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The property needs next and latest, which are not exported.

func zoneOf(t interface{ Fatal(...any) }, name string) *time.Location {
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// zones have changes of half an hour, of a day, at midnight, and none.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "Africa/Casablanca", "America/St_Johns"}

// instants lists the instants of a local time in a location: none if it is skipped.
func instants(local time.Time, in *time.Location) (at []time.Time) {
	for offset := -14 * 60; offset <= 14*60; offset += 15 {
		if t := local.Add(-time.Duration(offset) * time.Minute); sameClock(t.In(in), local) {
			at = append(at, t)
		}
	}
	return at
}

func sameClock(t, u time.Time) bool {
	const clock = "2006-01-02 15:04:05"
	return t.Format(clock) == u.Format(clock)
}

// The ticks are those that a search of every minute finds.
func TestPlan_AgreesWithASearchOfEveryMinute(t *testing.T) {
	specs := []string{"30 2 * * *", "0 0 * * *", "*/7 * * * *", "15,45 1-3 * * *", "5 * * * 0", "0 */2 29-31 * 1", "0 23 30 * *"}
	rapid.Check(t, func(t *rapid.T) {
		in := zoneOf(t, rapid.SampledFrom(zones).Draw(t, "zone"))
		spec := rapid.SampledFrom(specs).Draw(t, "spec")
		changes := []time.Time{
			time.Date(2011, 12, 30, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC), time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC),
			time.Date(2018, 11, 4, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 5, 0, 0, 0, 0, time.UTC), time.Date(2026, 2, 15, 0, 0, 0, 0, time.UTC),
			time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC),
		}
		from := rapid.SampledFrom(changes).Draw(t, "change").Add(time.Duration(rapid.IntRange(-48*60, 24*60).Draw(t, "minutes")) * time.Minute)
		p, err := parse(spec, in, from)
		if err != nil {
			t.Fatal(err)
		}
		until := from.Add(48 * time.Hour)
		want := map[time.Time]bool{}
		for at := from.Add(-26 * time.Hour); !at.After(until.Add(26 * time.Hour)); at = at.Add(time.Minute) {
			if p.elapses {
				local := at.In(in)
				want[at] = matches(p, local)
				continue
			}
			local := at // as a local time, whatever the location
			if !matches(p, local) {
				continue
			}
			if is := instants(local, in); len(is) > 0 {
				want[slices.MinFunc(is, time.Time.Compare)] = true
			} else {
				want[gapEnd(local, in)] = true
			}
		}
		var last time.Time
		for at := from.Add(time.Minute); !at.After(until); at = at.Add(time.Minute) {
			next := p.next(at.Add(-1))
			if is := next.Equal(at); is != want[at] {
				t.Fatalf("%s in %s: %s is a tick: %v, and must be %v", spec, in, at.In(in), is, want[at])
			}
			if want[at] {
				last = at
			}
		}
		if got := p.latest(from, until); !got.Equal(last) {
			t.Fatalf("%s in %s: the latest tick in (%s, %s] is %s, and must be %s", spec, in, from, until, got, last)
		}
	})
}

// matches reports whether the fields match the clock that t shows.
func matches(p *plan, t time.Time) bool {
	local := time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC)
	return t.Second() == 0 && p.civil.Next(local.Add(-time.Second)).Equal(local)
}

// gapEnd returns the first instant whose local time is after a skipped one.
func gapEnd(local time.Time, in *time.Location) time.Time {
	for at := local.Add(-15 * time.Hour); ; at = at.Add(time.Minute) {
		_, offset := at.In(in).Zone()
		if at.Add(time.Duration(offset) * time.Second).After(local) {
			return at
		}
	}
}

// latest counts in seconds, and has the tick at the end of its range and not the one at its beginning.
func TestPlan_LatestOfSeconds(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	p, err := parse("* * * * * *", time.UTC, now)
	require.NoError(t, err)
	for _, c := range []struct{ after, until, want time.Duration }{
		{0, time.Second, time.Second},
		{0, 5*time.Second - 1, 4 * time.Second},
		{time.Millisecond, time.Second, time.Second},
		{-400 * 24 * time.Hour, 0, 0},
	} {
		require.Equal(t, now.Add(c.want), p.latest(now.Add(c.after), now.Add(c.until)), c)
	}
	require.Zero(t, p.latest(now, now))
	require.Zero(t, p.latest(now, now.Add(time.Second-1)))
	require.Zero(t, p.latest(now, now.Add(-time.Hour)))
}

// In the repeated hour, the search passes each of its seconds.
func TestPlan_EachSecondOfTheRepeatedHour(t *testing.T) {
	berlin := zoneOf(t, "Europe/Berlin")
	now := time.Date(2026, 10, 25, 1, 0, 1, 0, time.UTC) // the second 02:00:01
	p, err := parse("* * 0-22 * * *", berlin, now)
	require.NoError(t, err)
	require.Equal(t, "2026-10-25T03:00:00+01:00", p.next(now).Format(time.RFC3339))
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"0 8 * * *", "*/5 * * * * *", "@daily", "@every 1h", "TZ=x", "TZ=", "CRON_TZ=UTC 0 0 * * *", "0 0 30 2 *", ", * * * * *", "1-", "*/0 * * * *",
		"0 0 29 2 *", "? ? ? ? ?", "1/99999999999999999999 * * * *", "jan * * * *", "* * * jan-dec sun-sat", "0 0 31 4,6,9,11 *", "\x00", "60 * * * *",
	} {
		f.Add(seed)
	}
	now := time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)
	berlin := zoneOf(f, "Europe/Berlin")
	f.Fuzz(func(t *testing.T, spec string) {
		p, err := parse(spec, berlin, now)
		if err != nil {
			var refused *SpecError
			require.ErrorAs(t, err, &refused)
			require.NotEmpty(t, refused.Reason)
			require.NotContains(t, strings.ToLower(refused.Reason), "panicked", "a known panic has a reason of its own")
			return
		}
		first := p.next(now)
		second := p.next(first)
		require.True(t, first.After(now))
		require.True(t, second.IsZero() || second.After(first))
		require.Equal(t, first, p.latest(now, first))
	})
}
