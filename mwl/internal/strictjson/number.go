package strictjson

import (
	"strconv"
	"strings"
)

// number reads the number at the offset into n.
func (p *parser) number(n *Node) bool {
	n.Kind = Number
	start := p.offset
	if p.peek() == '-' {
		p.offset++
	}
	if p.peek() == '0' {
		p.offset++
		if c := p.peek(); '0' <= c && c <= '9' {
			return p.fail(n, start, "delete the zero", "a number begins with a zero that others follow")
		}
	} else if p.digits() == 0 {
		return p.fail(n, start, "write a digit after it", "a minus sign is followed by %s", p.found())
	}
	if p.peek() == '.' {
		p.offset++
		if p.digits() == 0 {
			return p.fail(n, start, "write a digit after it, or delete the point", "a number's point is followed by %s", p.found())
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.offset++
		if c := p.peek(); c == '+' || c == '-' {
			p.offset++
		}
		if p.digits() == 0 {
			return p.fail(n, start, "write a digit after it", "a number's exponent has no digit but %s", p.found())
		}
	}
	n.Text = string(p.data[start:p.offset])
	number, err := strconv.ParseFloat(n.Text, 64)
	if err != nil { // the syntax is right, so it is out of range
		p.report(n, start, "carry it as a string", "the number %s is beyond the range of a double", shortened(n.Text))
		number = 0
	}
	n.Number, n.Exact = number, err == nil && Exact(n.Text, number)
	return true
}

// digits skips digits and returns their number.
func (p *parser) digits() int {
	start := p.offset
	for p.offset < len(p.data) && '0' <= p.data[p.offset] && p.data[p.offset] <= '9' {
		p.offset++
	}
	return p.offset - start
}

func shortened(text string) string {
	if len(text) > 40 {
		return strings.ToValidUTF8(text[:40], "") + "…"
	}
	return text
}

// exactDigits is enough for the exact decimal value of every float64.
const exactDigits = 767

// Exact reports whether a float64 is the number of a JSON text, in its exact or its
// shortest decimal form.
func Exact(text string, number float64) bool {
	digits, exponent, ok := decimal(text)
	if number == 0 || !ok {
		return digits == "" // else what is not zero became zero
	}
	for _, precision := range [...]int{-1, exactDigits} {
		d, e, _ := decimal(strconv.FormatFloat(number, 'e', precision, 64))
		if d == digits && e == exponent {
			return true
		}
	}
	return false
}

// decimal returns the number without its sign as 0.digits × 10^exponent, with
// digits that neither begin nor end with a zero. It reports whether the exponent
// fits.
func decimal(text string) (digits string, exponent int, ok bool) {
	text = strings.TrimPrefix(text, "-")
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.Atoi(text[i+1:]); err != nil || exponent > 1<<40 || exponent < -1<<40 {
			return strings.Trim(strings.Replace(text[:i], ".", "", 1), "0"), 0, false
		}
		text = text[:i]
	}
	whole, fraction, _ := strings.Cut(text, ".")
	exponent += len(whole)
	digits = whole + fraction
	significant := strings.TrimLeft(digits, "0")
	exponent -= len(digits) - len(significant)
	return strings.TrimRight(significant, "0"), exponent, true
}
