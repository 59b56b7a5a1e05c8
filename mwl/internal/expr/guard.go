package expr

import (
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/surebus/eventbus/mwl/internal/regex"
)

// Bounds on what one call of a function may make or do. CEL's own cost is counted after a call, too late for those whose result is a product of their arguments.
const (
	maxTextBytes   = 2 << 20
	maxListSize    = 1 << 18
	maxComparisons = 1 << 24
)

// guards hold, by the name of a function, the check of its arguments before a call.
var guards = map[string]func(args []ref.Val) error{
	operators.Add:     guardAdd,
	operators.In:      guardIn,
	equalsName:        guardEqual,
	differsName:       guardEqual,
	"lists.range":     guardRange,
	"toJson":          guardText,
	"fromJson":        guardParse,
	"matches":         guardMatches,
	"replace":         guardReplace,
	"join":            guardJoin,
	"format":          guardFormat,
	"split":           guardSplit,
	"strings.quote":   guardText,
	"base64.encode":   guardText,
	"json.encode":     guardText,
	"flatten":         guardFlatten,
	"distinct":        guardDistinct,
	"sets.contains":   guardPairs,
	"sets.equivalent": guardPairs,
	"sets.intersects": guardPairs,
}

// guarded returns, for each guarded function of the environment, an overload that takes the place of its own.
func guarded(env *cel.Env) ([]*functions.Overload, error) {
	var out []*functions.Overload
	for name, check := range guards {
		decl, ok := env.Functions()[name]
		if !ok {
			return nil, fmt.Errorf("expr: the CEL library has no function %s", name)
		}
		overloads, err := decl.Bindings()
		if err != nil {
			return nil, err
		}
		for _, o := range overloads {
			if o.Operator == name {
				out = append(out, guard(o, check))
			}
		}
	}
	return out, nil
}

func guard(o *functions.Overload, check func([]ref.Val) error) *functions.Overload {
	g := *o
	call := func(args ...ref.Val) ref.Val {
		if err := check(args); err != nil {
			return types.NewErr("%s: %v", written(o.Operator), err)
		}
		switch {
		case len(args) == 1 && o.Unary != nil:
			return o.Unary(args[0])
		case len(args) == 2 && o.Binary != nil:
			return o.Binary(args[0], args[1])
		case o.Function != nil:
			return o.Function(args...)
		}
		return types.NewErr("no such overload: %s", o.Operator)
	}
	g.Unary = func(a ref.Val) ref.Val { return call(a) }
	g.Binary = func(a, b ref.Val) ref.Val { return call(a, b) }
	g.Function = call
	return &g
}

// written is how an author writes a function.
func written(function string) string {
	switch function {
	case operators.Add:
		return "+"
	case operators.In:
		return "in"
	case equalsName:
		return "=="
	case differsName:
		return "!="
	}
	return function + "()"
}

func textOf(args []ref.Val, i int) (string, bool) {
	if i >= len(args) {
		return "", false
	}
	s, ok := args[i].(types.String)
	return string(s), ok
}

func sizeOf(v ref.Val) int {
	l, ok := v.(traits.Lister)
	if !ok {
		return 0
	}
	n, _ := l.Size().(types.Int)
	return int(n)
}

func guardReplace(args []ref.Val) error {
	s, _ := textOf(args, 0)
	from, _ := textOf(args, 1)
	to, _ := textOf(args, 2)
	if grown := len(to) - len(from); grown > 0 && len(s)+strings.Count(s, from)*grown > maxTextBytes {
		return fmt.Errorf("the result is longer than %d bytes", maxTextBytes)
	}
	return nil
}

func guardJoin(args []ref.Val) error {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return nil
	}
	separator, _ := textOf(args, 1)
	total := 0
	for it := list.Iterator(); it.HasNext() == types.True; {
		s, _ := it.Next().(types.String)
		if total += len(s) + len(separator); total > maxTextBytes {
			return fmt.Errorf("the result is longer than %d bytes", maxTextBytes)
		}
	}
	return nil
}

// measure adds what v takes as text, and gives up beyond the bound.
func measure(v ref.Val, total *int, depth int) bool { return measureAs(v, total, depth, 8) }

// measureAs measures with so many bytes for a part that is no text.
func measureAs(v ref.Val, total *int, depth, part int) bool {
	if depth > maxResultDepth {
		return false
	}
	switch v := v.(type) {
	case types.String:
		*total += len(v) + 8
	case types.Bytes:
		*total += len(v) + 8
	case traits.Lister:
		*total += 8
		for it := v.Iterator(); it.HasNext() == types.True; {
			if !measureAs(it.Next(), total, depth+1, part) {
				return false
			}
		}
	case traits.Mapper:
		*total += 8
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			if !measureAs(key, total, depth+1, part) || !measureAs(v.Get(key), total, depth+1, part) {
				return false
			}
		}
	default:
		*total += part
	}
	return *total <= maxTextBytes
}

// guardText is for functions that make a text of the size of their arguments, or a few times that: format uses each of them once. The arguments may share parts,
// and the function be applied to its own result.
func guardText(args []ref.Val) error {
	total := 0
	for _, arg := range args {
		if !measure(arg, &total, 0) {
			return fmt.Errorf("the result is longer than %d bytes", maxTextBytes)
		}
	}
	return nil
}

func guardSplit(args []ref.Val) error {
	s, _ := textOf(args, 0)
	separator, _ := textOf(args, 1)
	if strings.Count(s, separator) > maxListSize {
		return fmt.Errorf("the result has more than %d elements", maxListSize)
	}
	return nil
}

func guardFlatten(args []ref.Val) error {
	levels := 1
	if len(args) > 1 {
		n, _ := args[1].(types.Int)
		levels = int(min(max(n, 0), maxResultDepth))
	}
	total := 0
	if !countFlat(args[0], levels, &total) {
		return fmt.Errorf("the result has more than %d elements", maxListSize)
	}
	return nil
}

func countFlat(v ref.Val, levels int, total *int) bool {
	list, ok := v.(traits.Lister)
	if !ok || levels < 0 {
		*total++
		return *total <= maxListSize
	}
	*total++
	for it := list.Iterator(); it.HasNext() == types.True; {
		if !countFlat(it.Next(), levels-1, total) {
			return false
		}
	}
	return *total <= maxListSize
}

func guardDistinct(args []ref.Val) error { return guardComparisons(args[0], args[0]) }

func guardPairs(args []ref.Val) error {
	if len(args) < 2 {
		return nil
	}
	return guardComparisons(args[0], args[1])
}

// guardComparisons is for functions that compare each element of a list with each of another.
func guardComparisons(a, b ref.Val) error {
	n, m := 0, 0
	if !measure(a, &n, 0) || !measure(b, &m, 0) || n/8*sizeOf(b)+m/8*sizeOf(a) > maxComparisons {
		return fmt.Errorf("lists of %d and %d elements take too many comparisons", sizeOf(a), sizeOf(b))
	}
	return nil
}

// aggregate reports whether comparing a value may take long.
func aggregate(v ref.Val) bool {
	switch v.(type) {
	case traits.Lister, traits.Mapper:
		return true
	}
	return false
}

// guardEqual is for comparisons. Parts of a value may be shared many times, and a comparison visits each occurrence.
func guardEqual(args []ref.Val) error {
	if len(args) < 2 || !aggregate(args[0]) || !aggregate(args[1]) {
		return nil
	}
	return guardText(args)
}

func guardIn(args []ref.Val) error {
	if len(args) < 2 || !aggregate(args[0]) {
		return nil
	}
	return guardText(args)
}

func guardAdd(args []ref.Val) error {
	if len(args) < 2 {
		return nil
	}
	a, _ := args[0].(types.String)
	b, _ := args[1].(types.String)
	if len(a)+len(b) > maxTextBytes {
		return fmt.Errorf("the result is longer than %d bytes", maxTextBytes)
	}
	return nil
}

func guardRange(args []ref.Val) error {
	if n, ok := args[0].(types.Int); ok && n > maxListSize {
		return fmt.Errorf("the result has more than %d elements", maxListSize)
	}
	return nil
}

// guardParse bounds how many values a JSON text has.
func guardParse(args []ref.Val) error {
	s, _ := textOf(args, 0)
	parts := 0
	for i := range len(s) {
		switch s[i] {
		case ',', '[', '{':
			parts++
		}
	}
	if len(s) > maxTextBytes || parts > maxListSize/4 {
		return fmt.Errorf("the text is longer than %d bytes, or has more than %d values", maxTextBytes, maxListSize/4)
	}
	return nil
}

// guardFormat allows for the digits of the numbers.
func guardFormat(args []ref.Val) error {
	total := 0
	for _, arg := range args {
		if !measureAs(arg, &total, 0, maxDigits) {
			return fmt.Errorf("the result may be longer than %d bytes", maxTextBytes)
		}
	}
	return nil
}

// maxDigits is how many bytes a number takes at most: 309 digits, and 100 after the point.
const maxDigits = 420

func guardMatches(args []ref.Val) error {
	pattern, _ := textOf(args, 1)
	_, err := regex.Size(pattern)
	return err
}
