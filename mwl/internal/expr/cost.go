package expr

import (
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/surebus/eventbus/mwl/internal/regex"
)

// work estimates what a call did. CEL's own costs are found by the signature that its checker chose; expressions here are not checked, and every call would cost 1.
// A unit stands for about 100 ns. BenchmarkFunctions measures what the dearest arguments of each function take for a unit.
type work struct {
	// sizes holds the sizes of the expression's constant patterns, which are compiled once.
	sizes map[string]int
}

// bytesPerUnit is how many bytes of text one unit of cost reads or writes, as CEL has it.
const bytesPerUnit = 10

// elementCost is the cost of an element of a list that a function makes: it takes 24 bytes.
const elementCost = 4

// CallCost returns nil for a cost of 1.
func (w work) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	f, known := library[function]
	if !known {
		f = linear
	}
	if f.cost == nil {
		return nil
	}
	n := f.cost(w, args, result)
	if n == 0 {
		return nil
	}
	cost := uint64(n) + 1 //nolint:gosec // never negative
	return &cost
}

// extent is the size of a value in units of cost; 0 is what fits into a register.
func extent(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v) / bytesPerUnit
	case types.Bytes:
		return len(v) / bytesPerUnit
	case traits.Sizer:
		n, _ := v.Size().(types.Int)
		return int(n)
	}
	return 0
}

// linearCost is the cost of functions that visit the bytes or elements of their arguments and of their result, but not the
// elements of these elements.
func linearCost(_ work, args []ref.Val, result ref.Val) int {
	n := extent(result)
	if _, list := result.(traits.Lister); list {
		n *= elementCost
	}
	for _, arg := range args {
		n += extent(arg)
	}
	return n
}

// partsOf is for functions that visit all parts of their arguments. A call that was refused has visited them, too.
func partsOf(args []ref.Val) int {
	n := 0
	for _, arg := range args {
		parts, _ := weigh(arg)
		n += parts
	}
	return n
}

func partsCost(each int) func(work, []ref.Val, ref.Val) int {
	return func(_ work, args []ref.Val, result ref.Val) int { return extent(result) + each*partsOf(args) }
}

func addCost(w work, args []ref.Val, result ref.Val) int {
	_, loop := result.(traits.MutableLister)
	_, list := result.(traits.Lister)
	switch {
	case loop:
		return extent(args[1]) // the accumulator of a loop grows in place
	case list && joined(result):
		return 0
	case list:
		return sizeOf(result)
	}
	return linearCost(w, args, result)
}

func equalCost(w work, args []ref.Val, result ref.Val) int {
	switch {
	case len(args) < 2:
		return 0
	case aggregate(args[0]) || aggregate(args[1]):
		if unequal(args[0], args[1]) {
			return 0
		}
		return 2 * partsOf(args)
	}
	return linearCost(w, args, result)
}

func inCost(_ work, args []ref.Val, _ ref.Val) int {
	if len(args) < 2 {
		return 0
	}
	_, list := args[1].(traits.Lister)
	switch {
	case !list:
		return extent(args[0])
	case aggregate(args[0]):
		return 2 * partsOf(args)
	}
	return extent(args[0]) + sizeOf(args[1])*longComparison(args[0])
}

// keyCost is for a key that is hashed, or quoted in the error that it is not there.
func keyCost(_ work, args []ref.Val, _ ref.Val) int { return extent(args[0]) }

// fieldCost is dear: a field takes a message for each part.
func fieldCost(_ work, args []ref.Val, _ ref.Val) int { return extent(args[0]) + 20*partsOf(args) }

func formatCost(_ work, args []ref.Val, result ref.Val) int {
	n := 20 + 5*extent(result) + 2*partsOf(args)
	for _, arg := range args {
		n += extent(arg)
	}
	return n
}

func joinCost(w work, args []ref.Val, result ref.Val) int {
	return linearCost(w, args, result) + sizeOf(args[0])
}

func flattenCost(_ work, args []ref.Val, _ ref.Val) int { return elementCost * visits(args) }

func distinctCost(w work, args []ref.Val, result ref.Val) int {
	return pairsCost(w, []ref.Val{args[0], args[0]}, result)
}

// pairsCost is for functions that compare all pairs, unless they refused to.
func pairsCost(_ work, args []ref.Val, result ref.Val) int {
	n := partsOf(args)
	if len(args) == 2 && !types.IsError(result) {
		compared, _ := pairs(args[0], args[1])
		n += compared / 4
	}
	return n
}

func sortCost(_ work, args []ref.Val, result ref.Val) int {
	n := sizeOf(args[0])
	if !types.IsError(result) {
		n += sortSteps(args)
	}
	return n
}

// zoneCost is for getters: loading a time zone takes a file, and of one that is not there, a search.
func zoneCost(_ work, args []ref.Val, _ ref.Val) int {
	name, zoned := textOf(args, 1)
	if !zoned {
		return 0
	}
	if _, kept := zones.Load(name); kept || strings.Contains(name, ":") {
		return 1
	}
	return 400
}

// matchesCost is for the steps of a match: a byte of the text takes one for each instruction of the pattern. A pattern that is not constant is compiled as well.
func (w work) matchesCost(args []ref.Val, result ref.Val) int {
	text, _ := textOf(args, 0)
	pattern, _ := textOf(args, 1)
	size, compiled := w.sizes[pattern]
	n := 0
	if !compiled {
		size, _ = regex.Size(pattern)
		n = 20 + 5*size + len(pattern)
	}
	if !types.IsError(result) {
		n += len(text) * size / 6
	}
	return n
}
