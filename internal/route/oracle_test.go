package route_test

import (
	"strings"
	"unicode/utf8"
)

// oracle is the slow and obvious meaning of a pattern that Parse accepts. It
// shares nothing with the package: it works on characters, tries everything, and
// takes braces where they stand instead of writing them out. The step budget
// makes it give up on hostile patterns; ok is then false.
func oracle(pattern, typ string) (match, ok bool) {
	if pattern == "" || pattern == "*" {
		return true, true
	}
	o := oracleRun{budget: 20_000}
	match = o.match([]rune(pattern), []rune(typ), true)
	return match, o.budget > 0
}

type oracleRun struct{ budget int }

// match tells whether the whole of t matches p; start tells that both begin at
// the beginning of a segment.
func (o *oracleRun) match(p, t []rune, start bool) bool {
	if o.budget--; o.budget <= 0 {
		return false
	}
	if len(p) == 0 {
		return len(t) == 0
	}
	switch p[0] {
	case '{':
		alternatives, rest := oracleBraces(p)
		for _, a := range alternatives {
			if o.match(append(append([]rune{}, a...), rest...), t, start) {
				return true
			}
		}
		return false
	case '[':
		end := 1
		for p[end] != ']' {
			end++
		}
		return len(t) > 0 && t[0] != '.' && oracleClass(p[1:end], t[0]) && o.match(p[end+1:], t[1:], false)
	case '?':
		return len(t) > 0 && t[0] != '.' && o.match(p[1:], t[1:], false)
	case '*':
		if start && len(p) > 1 && p[1] == '*' && (len(p) == 2 || p[2] == '.') {
			return o.manySegments(p[2:], t)
		}
		if len(p) > 1 && p[1] == '{' { // see whether a dot or a character follows
			alternatives, rest := oracleBraces(p[1:])
			for _, a := range alternatives {
				if o.match(append(append([]rune{'*'}, a...), rest...), t, start) {
					return true
				}
			}
			return false
		}
		if start && (len(p) == 1 || p[1] == '.') && (len(t) == 0 || t[0] == '.') {
			return false // a segment alone is never empty
		}
		for i := 0; ; i++ {
			if o.match(p[1:], t[i:], start && i == 0) {
				return true
			}
			if i == len(t) || t[i] == '.' {
				return false
			}
		}
	case '.':
		// What follows may be a ** that stands for nothing, together with this dot.
		if len(t) == 0 {
			return o.nothing(p)
		}
		return t[0] == '.' && o.match(p[1:], t[1:], true)
	}
	// p may be a.**, with a type that ends here: the dot case sees to that.
	return len(t) > 0 && t[0] == p[0] && o.match(p[1:], t[1:], false)
}

// manySegments matches rest, which is what follows a **: nothing, or a dot.
func (o *oracleRun) manySegments(rest, t []rune) bool {
	if len(rest) == 0 {
		return true
	}
	// No segment: the dot after ** goes as well.
	if o.match(rest[1:], t, true) {
		return true
	}
	for i := range t {
		if t[i] == '.' && o.match(rest[1:], t[i+1:], true) {
			return true
		}
	}
	return o.nothing(rest)
}

// nothing tells whether p, which begins with a dot, can match the end of a type:
// if it is .** again and again.
func (o *oracleRun) nothing(p []rune) bool {
	if len(p) == 0 {
		return true
	}
	for i, r := range p {
		if r == '{' {
			alternatives, rest := oracleBraces(p[i:])
			for _, a := range alternatives {
				if o.budget--; o.budget <= 0 {
					return false
				}
				if o.nothing(append(append(append([]rune{}, p[:i]...), a...), rest...)) {
					return true
				}
			}
			return false
		}
	}
	return strings.Trim(strings.ReplaceAll(string(p), ".**", ""), "") == ""
}

// oracleBraces splits "{a,b}rest"; the braces match, as Parse has accepted them.
func oracleBraces(p []rune) (alternatives [][]rune, rest []rune) {
	depth, begin, class := 0, 1, false
	for i, r := range p {
		switch {
		case class:
			class = r != ']'
		case r == '[':
			class = true
		case r == '{':
			depth++
		case r == ',' && depth == 1:
			alternatives = append(alternatives, p[begin:i])
			begin = i + 1
		case r == '}':
			if depth--; depth == 0 {
				return append(alternatives, p[begin:i]), p[i+1:]
			}
		}
	}
	return alternatives, nil
}

func oracleClass(class []rune, r rune) bool {
	not := class[0] == '!'
	if not {
		class = class[1:]
	}
	in := false
	for i := 0; i < len(class); i++ {
		if i+2 < len(class) && class[i+1] == '-' {
			in = in || class[i] <= r && r <= class[i+2]
			i += 2
		} else {
			in = in || class[i] == r
		}
	}
	return in != not
}

// validType is E2, word by word.
func validType(typ string) bool {
	if len(typ) < 1 || len(typ) > 255 || !utf8.ValidString(typ) {
		return false
	}
	for segment := range strings.SplitSeq(typ, ".") {
		if segment == "" {
			return false
		}
	}
	return !strings.ContainsFunc(typ, forbidden)
}
