package expr

import (
	"fmt"
	"math/bits"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/surebus/eventbus/mwl/internal/regex"
)

// Bounds on what one call of a function may make or do. CEL's own cost is counted after a call, too late for those whose result is a product of their arguments.
const (
	maxTextBytes   = 2 << 20
	maxListSize    = 1 << 18
	maxParts       = 1 << 18
	maxFieldParts  = 1 << 15
	maxComparisons = 1 << 24
	maxCompared    = 1 << 21 // by one sort or search
	maxSteps       = 1 << 24 // of a regular expression: bytes of the text times instructions of the pattern
)

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

// meter adds up the parts of a value, and gives up beyond its limit. Parts may be shared, and it visits each occurrence, as functions do.
type meter struct {
	// scalar is what a part counts that is neither a text nor a list nor a map; node is what one of those counts by itself.
	scalar, node int
	// bytes is how many bytes of text count as one more.
	bytes        int
	limit, total int
}

func (m *meter) add(v ref.Val) bool { return m.below(v, 0) }

func (m *meter) below(v ref.Val, depth int) bool {
	if depth > maxResultDepth {
		return false
	}
	switch v := v.(type) {
	case types.String:
		m.total += m.node + len(v)/m.bytes
	case types.Bytes:
		m.total += m.node + len(v)/m.bytes
	case traits.Lister:
		m.total += m.node
		for it := v.Iterator(); it.HasNext() == types.True; {
			if !m.below(it.Next(), depth+1) {
				return false
			}
		}
	case traits.Mapper:
		m.total += m.node
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			if !m.below(key, depth+1) || !m.below(v.Get(key), depth+1) {
				return false
			}
		}
	default:
		m.total += m.scalar
	}
	return m.total <= m.limit
}

// weigh counts the parts of a value, and gives up beyond maxParts. Comparing 1,000 bytes of text takes as long as a part.
func weigh(v ref.Val) (parts int, ok bool) {
	m := meter{scalar: 1, node: 1, bytes: 1000, limit: maxParts}
	ok = m.add(v)
	return m.total, ok
}

// guardText is for functions that make a text of the size of their arguments, or a few times that: format uses each of them once. The arguments may share parts,
// and the function be applied to its own result.
func guardText(args []ref.Val) error {
	m := meter{scalar: 8, node: 8, bytes: 1, limit: maxTextBytes}
	for _, arg := range args {
		if !m.add(arg) {
			return fmt.Errorf("the result is longer than %d bytes", maxTextBytes)
		}
	}
	return nil
}

func guardSplit(args []ref.Val) error {
	s, _ := textOf(args, 0)
	separator, _ := textOf(args, 1)
	if len(args) > 2 {
		if most, ok := args[2].(types.Int); ok && most >= 0 && most <= maxListSize {
			return nil
		}
	}
	if strings.Count(s, separator) > maxListSize {
		return fmt.Errorf("the result has more than %d elements", maxListSize)
	}
	return nil
}

func guardFlatten(args []ref.Val) error {
	if visits(args) > maxListSize {
		return fmt.Errorf("the result has more than %d elements", maxListSize)
	}
	return nil
}

// visits is how many lists and elements flatten visits.
func visits(args []ref.Val) int {
	levels := 1
	if len(args) > 1 {
		n, _ := args[1].(types.Int)
		levels = int(min(max(n, 0), maxResultDepth))
	}
	total := 0
	countFlat(args[0], levels, &total)
	return total
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
	n, ok := pairs(a, b)
	if !ok || n > maxComparisons {
		return fmt.Errorf("lists of %d and %d elements take too many comparisons", sizeOf(a), sizeOf(b))
	}
	return nil
}

// pairs is twice the work of comparing each element of a list with each of another; false: it is beyond all bounds.
func pairs(a, b ref.Val) (n int, ok bool) {
	wa, fits := weigh(a)
	wb, ok := weigh(b)
	return wa*sizeOf(b) + wb*sizeOf(a), ok && fits
}

// guardSort is for sort, whose last argument has the keys.
func guardSort(args []ref.Val) error {
	if n := sortSteps(args); n > maxCompared {
		return fmt.Errorf("a list of %d elements of this length takes too many comparisons", sizeOf(args[0]))
	}
	return nil
}

// sortSteps is about how many comparisons a sort takes. One of long texts counts several times.
func sortSteps(args []ref.Val) int {
	list, ok := args[len(args)-1].(traits.Lister)
	if !ok {
		return 0
	}
	n, longest := sizeOf(list), 0
	if n > maxCompared {
		return n
	}
	for it := list.Iterator(); it.HasNext() == types.True; {
		switch v := it.Next().(type) {
		case types.String:
			longest = max(longest, len(v))
		case types.Bytes:
			longest = max(longest, len(v))
		}
	}
	return n * bits.Len(uint(n)) * (1 + longest/1000) //nolint:gosec // a size
}

// aggregate reports whether comparing a value may take long.
func aggregate(v ref.Val) bool {
	switch v.(type) {
	case traits.Lister, traits.Mapper:
		return true
	}
	return false
}

// unequal reports whether a comparison of two values ends at once: one of them is no aggregate, or lists differ in size.
func unequal(a, b ref.Val) bool {
	if !aggregate(a) || !aggregate(b) {
		return true
	}
	_, isList := a.(traits.Lister)
	_, otherIsList := b.(traits.Lister)
	return isList != otherIsList || isList && sizeOf(a) != sizeOf(b)
}

// guardEqual is for comparisons. Parts of a value may be shared many times, and a comparison visits each occurrence.
func guardEqual(args []ref.Val) error {
	if len(args) < 2 || unequal(args[0], args[1]) {
		return nil
	}
	return guardText(args)
}

func guardIn(args []ref.Val) error {
	if len(args) < 2 {
		return nil
	}
	if aggregate(args[0]) {
		return guardText(args)
	}
	if each := longComparison(args[0]); each > 1 && sizeOf(args[1])*each > maxCompared {
		return fmt.Errorf("a text of this length and a list of %d elements take too many comparisons", sizeOf(args[1]))
	}
	return nil
}

// longComparison is how many times longer than a comparison of numbers the one of a text takes.
func longComparison(v ref.Val) int {
	s, _ := v.(types.String)
	b, _ := v.(types.Bytes)
	return 1 + (len(s)+len(b))/1000
}

func guardAdd(args []ref.Val) error {
	if len(args) < 2 {
		return nil
	}
	a, _ := args[0].(types.String)
	b, _ := args[1].(types.String)
	c, _ := args[0].(types.Bytes)
	d, _ := args[1].(types.Bytes)
	if len(a)+len(b)+len(c)+len(d) > maxTextBytes {
		return fmt.Errorf("the result is longer than %d bytes", maxTextBytes)
	}
	if (joined(args[0]) || joined(args[1])) && sizeOf(args[0])+sizeOf(args[1]) > maxListSize {
		return fmt.Errorf("the result has more than %d elements", maxListSize)
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
	m := meter{scalar: maxDigits, node: 8, bytes: 1, limit: maxTextBytes}
	for _, arg := range args {
		if !m.add(arg) {
			return fmt.Errorf("the result may be longer than %d bytes", maxTextBytes)
		}
	}
	return nil
}

// maxDigits is how many bytes a number takes at most: 309 digits, and 100 after the point.
const maxDigits = 420

func guardMatches(args []ref.Val) error {
	pattern, _ := textOf(args, 1)
	size, err := regex.Size(pattern)
	if err != nil || len(args) == 0 {
		return err
	}
	return guardSubject([]ref.Val{args[0], types.Int(size)})
}

// guardSubject has the text for a pattern, and the size of the pattern.
func guardSubject(args []ref.Val) error {
	text, _ := textOf(args, 0)
	if size, _ := args[1].(types.Int); len(text)*int(size) > maxSteps {
		return fmt.Errorf("a text of %d bytes and a pattern of %d instructions take too many steps: match a shorter text, or write a smaller pattern", len(text), size)
	}
	return nil
}

// guardField has the value of a field of a protocol buffer message, which CEL converts part by part.
func guardField(args []ref.Val) error {
	if n, ok := weigh(args[0]); !ok || n > maxFieldParts {
		return fmt.Errorf("it has more than %d parts", maxFieldParts)
	}
	return nil
}

// guardZone has a time zone as the second argument, or none. The names of time zones are shorter than 64 bytes.
func guardZone(args []ref.Val) error {
	if zone, _ := textOf(args, 1); len(zone) > 64 {
		return fmt.Errorf("the name of a time zone has at most 64 bytes")
	}
	return nil
}
