package expr

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// work estimates what a call did. CEL's own costs are found by the signature that its checker chose; expressions here are not checked, and every call would cost 1.
type work struct{}

// constant holds the calls that take the same time however big their arguments are.
var constant = map[string]bool{
	operators.Index: true, operators.Conditional: true, operators.LogicalAnd: true, operators.LogicalOr: true, operators.LogicalNot: true, operators.NotStrictlyFalse: true,
	"type": true, "dyn": true,
}

// bytesPerUnit is how many bytes of text one unit of cost reads or writes, as CEL has it.
const bytesPerUnit = 10

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
