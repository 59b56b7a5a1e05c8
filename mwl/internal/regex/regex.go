// Package regex bounds regular expressions. RE2 matches in linear time, but a short
// pattern with repetitions such as .{1000} compiles to a large program.
package regex

import (
	"fmt"
	"regexp/syntax"
)

// MaxSize is how large one pattern may be, in instructions of its program.
const MaxSize = 10_000

// Size returns roughly how many instructions a pattern compiles to, without compiling
// it. The error says that it is larger than [MaxSize]. A pattern that is not valid has
// the size 0: compiling it says what is wrong.
func Size(pattern string) (int, error) {
	if len(pattern) > MaxSize {
		return 0, errTooLarge
	}
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, nil //nolint:nilerr // see above
	}
	n := size(tree)
	if n > MaxSize {
		return 0, errTooLarge
	}
	return n, nil
}

var errTooLarge = fmt.Errorf("the pattern is too large: it takes more than %d instructions", MaxSize)

func size(tree *syntax.Regexp) int {
	n := 1 + len(tree.Rune)
	for _, sub := range tree.Sub {
		n += size(sub)
	}
	if tree.Op == syntax.OpRepeat {
		n *= max(tree.Min, tree.Max, 1)
	}
	return min(n, MaxSize+1) // each repetition multiplies
}
