package value

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// double returns the double that a JSON number names, or the problem with it: a double cannot hold every digit, as an exact or its shortest decimal form. inexact
// accepts a double that is only near.
func double(literal string, inexact bool) (f float64, problem string) {
	const always = 15 // digits that a double of ordinary size keeps
	f, err := strconv.ParseFloat(literal, 64)
	switch {
	case err == nil && (inexact || len(literal) <= always && !strings.ContainsAny(literal, "eE") || strictjson.Exact(literal, f)):
		return f, ""
	case err != nil || f == 0:
		problem = "the number %s is beyond the range of a double: carry it as a string"
	case strings.ContainsAny(literal, ".eE"):
		problem = "the number %s has more digits than a double keeps: carry it as a string"
	default:
		problem = "the integer %s is beyond ±2^53, where a number is no longer exact: carry it as a string"
	}
	return 0, fmt.Sprintf(problem, Cut(literal, 40))
}

// number returns a double of Go code.
func number(f float64, at *path) (any, *Error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, at.fail("%v is not a number in JSON: use null or a string", f)
	}
	return f, nil
}

// single returns the double that the JSON form of a float32 names. That form is shorter than the form of the double with the same value.
func single(f float32, at *path) (any, *Error) {
	short, _ := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64)
	return number(short, at)
}

func signed(i int64, at *path) (any, *Error) {
	if -MaxInteger <= i && i <= MaxInteger {
		return float64(i), nil
	}
	return literally(strconv.FormatInt(i, 10), at)
}

func unsigned(u uint64, at *path) (any, *Error) {
	if u <= MaxInteger {
		return float64(u), nil
	}
	return literally(strconv.FormatUint(u, 10), at)
}

// literally returns the double of a JSON number, as from a JSON text.
func literally(literal string, at *path) (any, *Error) {
	f, problem := double(literal, false)
	if problem != "" {
		return nil, at.fail("%s", problem)
	}
	return f, nil
}

func numberOf(literal string, at *path) (any, *Error) {
	p := parser{data: []byte(literal)}
	v, err := p.text(at)
	if f, ok := v.(float64); err == nil && ok {
		return f, nil
	}
	if p.refused != nil {
		return nil, p.refused
	}
	return nil, at.fail("%q is not a number that a value can carry: use a finite JSON number or a string", literal)
}
