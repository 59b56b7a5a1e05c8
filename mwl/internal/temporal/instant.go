package temporal

import (
	"fmt"
	"time"
)

// ParseInstant reads an RFC 3339 timestamp with its offset. A leap second, 23:59:60 in UTC, is the second that follows it; digits beyond the nanosecond are cut off.
func ParseInstant(s string) (time.Time, error) {
	t, problem := parseInstant(s)
	if problem != "" {
		return time.Time{}, fmt.Errorf("%s is not an RFC 3339 timestamp: %s; write one like 2024-01-15T09:30:00Z", quote(s), problem)
	}
	return t, nil
}

func parseInstant(s string) (t time.Time, problem string) {
	// 0123-56-89T12:45:78
	const shape = "dddd-dd-ddTdd:dd:dd"
	if len(s) <= len(shape) {
		return t, "it is too short"
	}
	for i := range len(shape) {
		switch c := s[i]; {
		case shape[i] == 'd' && (c < '0' || c > '9'),
			shape[i] == 'T' && c != 'T' && c != 't',
			(shape[i] == '-' || shape[i] == ':') && c != shape[i]:
			return t, fmt.Sprintf("the character %q at %d does not belong there", c, i+1)
		}
	}
	year, month, day := number(s[0:4]), number(s[5:7]), number(s[8:10])
	hour, minute, second := number(s[11:13]), number(s[14:16]), number(s[17:19])
	if month < 1 || month > 12 || day < 1 || day > time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day() {
		return t, "there is no such day"
	}
	if hour > 23 || minute > 59 || second > 60 {
		return t, "there is no such time of day"
	}
	rest := s[len(shape):]
	nanos := 0
	if rest[0] == '.' {
		fraction, after := digits(rest[1:])
		if fraction == "" {
			return t, "a fraction needs a digit"
		}
		nanos = number((fraction + "000000000")[:9])
		rest = after
	}
	zone, ok := offset(rest)
	if !ok {
		return t, "it needs an offset at its end: Z, or hours and minutes like +02:00"
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, nanos, zone)
	if second == 60 {
		// Normalized to the second after: a leap second ends the last minute of a day in UTC.
		if u := t.UTC(); u.Hour() != 0 || u.Minute() != 0 {
			return t, "a leap second is at 23:59:60 UTC only"
		}
	}
	return t, ""
}

// number reads digits that were looked at before.
func number(digits string) int {
	n := 0
	for i := range len(digits) {
		n = n*10 + int(digits[i]-'0')
	}
	return n
}

func offset(s string) (*time.Location, bool) {
	if s == "Z" || s == "z" {
		return time.UTC, true
	}
	if len(s) != 6 || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return nil, false
	}
	for _, i := range []int{1, 2, 4, 5} {
		if s[i] < '0' || s[i] > '9' {
			return nil, false
		}
	}
	hours, minutes := number(s[1:3]), number(s[4:6])
	if hours > 23 || minutes > 59 {
		return nil, false
	}
	seconds := hours*3600 + minutes*60
	if s[0] == '-' {
		seconds = -seconds
	}
	if seconds == 0 {
		return time.UTC, true
	}
	return time.FixedZone("", seconds), true
}

// FormatInstant writes an instant as an RFC 3339 timestamp in UTC, with as many digits of the second as it has.
func FormatInstant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Add is t plus d, and where that would leave the years that a timestamp can name, the first or last instant of them.
func Add(t time.Time, d time.Duration) time.Time {
	sum := t.Add(d)
	switch year := sum.UTC().Year(); {
	case year > 9999 || d > 0 && sum.Before(t):
		return time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	case year < 0:
		return time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return sum
}
