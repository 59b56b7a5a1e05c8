package retryspec

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

type unit struct {
	letter byte
	length time.Duration
}

const day = 24 * time.Hour

// The units of ISO 8601, before the T and after it, in the order in which they may come. A
// year and a month have no fixed length: these are the usual approximations.
var (
	dateUnits = []unit{{'Y', 365 * day}, {'M', 30 * day}, {'W', 7 * day}, {'D', day}}
	timeUnits = []unit{{'H', time.Hour}, {'M', time.Minute}, {'S', time.Second}}
)

// parseISO reads [-]P[nY][nM][nW][nD][T[nH][nM][nS]]: at least one part, and none missing
// after a T; the last one may have a fraction, after a point or a comma. A negative
// duration is 0, and one that does not fit is the longest Duration.
func parseISO(text string) (d time.Duration, ok bool) {
	rest, negative := strings.CutPrefix(text, "-")
	rest, ok = strings.CutPrefix(rest, "P")
	if !ok || rest == "" {
		return 0, false
	}
	units, inTime := dateUnits, false
	total := new(big.Int)
	for rest != "" {
		if after, isT := strings.CutPrefix(rest, "T"); isT && !inTime {
			units, inTime = timeUnits, true
			if rest = after; rest == "" {
				return 0, false
			}
		}
		whole, after := digits(rest)
		if whole == "" {
			return 0, false
		}
		rest = after
		fraction := ""
		if rest != "" && (rest[0] == '.' || rest[0] == ',') {
			if fraction, rest = digits(rest[1:]); fraction == "" {
				return 0, false
			}
		}
		if rest == "" {
			return 0, false
		}
		for len(units) > 0 && units[0].letter != rest[0] {
			units = units[1:]
		}
		if len(units) == 0 || fraction != "" && len(rest) > 1 {
			return 0, false
		}
		total.Add(total, amount(whole, fraction, units[0].length))
		units, rest = units[1:], rest[1:]
	}
	switch {
	case negative:
		return 0, true
	case !total.IsInt64():
		return math.MaxInt64, true
	}
	return time.Duration(total.Int64()), true
}

// digits returns the leading digits of s, and the rest.
func digits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}

// amount returns a number of units in nanoseconds. It omits digits that cannot affect a
// Duration.
func amount(whole, fraction string, length time.Duration) *big.Int {
	const most, exact = 20, 18
	if whole = strings.TrimLeft(whole, "0"); len(whole) > most {
		whole = strings.Repeat("9", most)
	}
	fraction = (fraction + strings.Repeat("0", exact))[:exact]
	n, _ := new(big.Int).SetString(whole+fraction, 10)
	n.Mul(n, big.NewInt(int64(length)))
	return n.Quo(n, big.NewInt(1e18))
}

// formatISO formats a non-negative duration as hours, minutes and seconds. It omits parts
// that are 0.
func formatISO(d time.Duration) string {
	if d <= 0 {
		return "PT0S"
	}
	b := []byte("PT")
	if h := d / time.Hour; h > 0 {
		b = append(strconv.AppendInt(b, int64(h), 10), 'H')
	}
	if m := d % time.Hour / time.Minute; m > 0 {
		b = append(strconv.AppendInt(b, int64(m), 10), 'M')
	}
	if s := d % time.Minute; s > 0 {
		b = strconv.AppendInt(b, int64(s/time.Second), 10)
		if nanos := s % time.Second; nanos > 0 {
			fraction := strconv.FormatInt(int64(nanos+time.Second), 10)[1:]
			b = append(append(b, '.'), strings.TrimRight(fraction, "0")...)
		}
		b = append(b, 'S')
	}
	return string(b)
}
