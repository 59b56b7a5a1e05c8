// Package temporal reads and writes the durations and instants of the language: ISO 8601 durations and RFC 3339 timestamps.
package temporal

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// The spans of the units that a calendar would vary: a duration here is an interval, the same at every instant.
const (
	Day   = 24 * time.Hour
	Week  = 7 * Day
	Month = 30 * Day
	Year  = 365 * Day
)

// ErrRange is what [ParseDurationExact] wraps for a duration beyond what a time.Duration holds, about 292 years.
var ErrRange = errors.New("the duration is beyond ±292 years")

// ParseDuration reads an ISO 8601 duration: PnYnMnWnDTnHnMnS with at least one component, in this order; a minus before the P negates the whole;
// the last component may have a fraction, after '.' or ','. A year is 365 days, a month 30. What is beyond the range of a time.Duration becomes its nearest bound, and
// what is below a nanosecond is cut off.
func ParseDuration(s string) (time.Duration, error) {
	d, err := ParseDurationExact(s)
	if errors.Is(err, ErrRange) {
		return d, nil
	}
	return d, err
}

// ParseDurationExact is [ParseDuration], except that a duration beyond the range of a time.Duration is an error that wraps [ErrRange].
func ParseDurationExact(s string) (time.Duration, error) {
	total, negative, problem := parseDuration(s)
	if problem != "" {
		return 0, fmt.Errorf("%s is not an ISO 8601 duration: %s; write one like PT30S or P1DT12H", quote(s), problem)
	}
	if negative {
		switch {
		case total == -math.MinInt64:
			return math.MinInt64, nil
		case total > math.MaxInt64:
			return math.MinInt64, fmt.Errorf("%s: %w", quote(s), ErrRange)
		}
		return -time.Duration(total), nil
	}
	if total > math.MaxInt64 {
		return math.MaxInt64, fmt.Errorf("%s: %w", quote(s), ErrRange)
	}
	return time.Duration(total), nil
}

type unit struct {
	letter byte
	span   time.Duration
}

var (
	dateUnits = []unit{{'Y', Year}, {'M', Month}, {'W', Week}, {'D', Day}}
	timeUnits = []unit{{'H', time.Hour}, {'M', time.Minute}, {'S', time.Second}}
)

// parseDuration returns the magnitude in nanoseconds, saturated at the top of uint64.
func parseDuration(s string) (total uint64, negative bool, problem string) {
	s, negative = strings.CutPrefix(s, "-")
	s, ok := strings.CutPrefix(s, "P")
	if !ok {
		return 0, false, "it does not begin with P"
	}
	units, inTime, last := dateUnits, false, false
	if s == "" || s == "T" {
		return 0, false, "it has no component"
	}
	for s != "" {
		if s[0] == 'T' && !inTime {
			if len(s) == 1 {
				return 0, false, "no component follows the T"
			}
			units, inTime, s = timeUnits, true, s[1:]
		}
		if last {
			return 0, false, "only the last component may have a fraction"
		}
		whole, rest := digits(s)
		if whole == "" {
			return 0, false, "a component needs a number"
		}
		var fraction string
		if rest != "" && (rest[0] == '.' || rest[0] == ',') {
			fraction, rest = digits(rest[1:])
			if fraction == "" {
				return 0, false, "a fraction needs a digit"
			}
			last = true
		}
		if rest == "" {
			return 0, false, "a number has no unit"
		}
		i := 0
		for i < len(units) && units[i].letter != rest[0] {
			i++
		}
		if i == len(units) {
			return 0, false, "the unit " + quote(rest[:1]) + " is unknown, repeated or out of order"
		}
		total = add(total, add(multiply(whole, units[i].span), part(fraction, units[i].span)))
		units, s = units[i+1:], rest[1:]
	}
	return total, negative, ""
}

func digits(s string) (number, rest string) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}

func add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

func multiply(number string, span time.Duration) uint64 {
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	high, low := bits.Mul64(n, uint64(span))
	if high != 0 {
		return math.MaxUint64
	}
	return low
}

// part is the fraction of a span, cut off below the nanosecond. The digits after the eighteenth are worth less than that together.
func part(fraction string, span time.Duration) uint64 {
	if len(fraction) > 18 {
		fraction = fraction[:18]
	}
	if fraction == "" {
		return 0
	}
	n, _ := strconv.ParseUint(fraction, 10, 64)
	scale := uint64(math.Pow10(len(fraction)))
	high, low := bits.Mul64(n, uint64(span))
	whole, _ := bits.Div64(high, low, scale)
	return whole
}

// FormatDuration writes the canonical form of a duration: hours, minutes and seconds without the zero ones, a fraction on the seconds, PT0S for none and a minus
// in front of a negative one.
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "PT0S"
	}
	dst := make([]byte, 0, 32)
	n := uint64(d)
	if d < 0 {
		dst = append(dst, '-')
		n = -n
	}
	dst = append(dst, 'P', 'T')
	if hours := n / uint64(time.Hour); hours > 0 {
		dst = append(strconv.AppendUint(dst, hours, 10), 'H')
	}
	if minutes := n / uint64(time.Minute) % 60; minutes > 0 {
		dst = append(strconv.AppendUint(dst, minutes, 10), 'M')
	}
	if rest := n % uint64(time.Minute); rest > 0 {
		dst = strconv.AppendUint(dst, rest/uint64(time.Second), 10)
		if nanos := rest % uint64(time.Second); nanos > 0 {
			dst = append(dst, '.')
			dst = append(dst, strings.TrimRight(fmt.Sprintf("%09d", nanos), "0")...)
		}
		dst = append(dst, 'S')
	}
	return string(dst)
}

// quote shows what was written, shortened: it may be somebody's whole document.
func quote(s string) string {
	if len(s) > 64 {
		return strconv.Quote(strings.ToValidUTF8(s[:64], "�")) + "…"
	}
	return strconv.Quote(s)
}
