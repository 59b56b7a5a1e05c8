package expr

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// work estimates what a call did. CEL's own costs are found by the signature that its checker chose; expressions here are not checked, and every call would cost 1.
type work struct{}

// constant holds the functions that take the same time however big their arguments are.
var constant = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range []string{
		operators.Index, operators.Conditional, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.NotStrictlyFalse,
		operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate,
		"string", "type", "dyn",
		"getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds",
		"math.ceil", "math.floor", "math.round", "math.trunc", "math.abs", "math.sign", "math.isNaN", "math.isInf", "math.isFinite", "math.sqrt",
		"durationToIso8601",
	} {
		m[name] = true
	}
	return m
}()

// bytesPerUnit is how many bytes of text one unit of cost reads or writes, as CEL has it.
const bytesPerUnit = 10

// elementCost is the cost of an element of a list that a function makes: it takes 24 bytes.
const elementCost = 4

// CallCost returns nil for a cost of 1.
func (work) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	if constant[function] {
		return nil
	}
	if function == "matches" && len(args) == 2 {
		text, _ := textOf(args, 0)
		pattern, _ := textOf(args, 1)
		return units(len(text) * (1 + len(pattern)) / 4)
	}
	if _, list := result.(traits.Lister); list && function == operators.Add {
		// Lists are joined without copies; comprehensions build theirs so.
		return nil
	}
	n := extent(result)
	if _, list := result.(traits.Lister); list {
		n *= elementCost
	}
	for _, arg := range args {
		n += extent(arg)
	}
	if n == 0 {
		return nil
	}
	return units(n)
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

func units(n int) *uint64 {
	cost := uint64(n) + 1
	return &cost
}
