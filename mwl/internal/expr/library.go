package expr

import (
	"fmt"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// function says what bounds the work of one function. Nothing interrupts a call, and its cost is counted when it has returned.
type function struct {
	// check refuses a call that would take too long or make too much. Nil: the work of a call is constant, or linear in the size of what it gets and makes.
	check func(args []ref.Val) error
	// instead computes the result; nil: CEL does.
	instead func(args []ref.Val, cel call) ref.Val
	// cost is the work of a call in units of cost, beyond the one of every call; nil: the work is constant.
	cost func(w work, args []ref.Val, result ref.Val) int
	// plain is set when an expression of such calls alone need not be counted, because its text bounds it.
	plain bool
}

type call func(args ...ref.Val) ref.Val

// The kinds of functions without a check.
var (
	constant = function{plain: true}
	linear   = function{cost: linearCost}
)

func guarded(check func([]ref.Val) error, cost func(work, []ref.Val, ref.Val) int) function {
	return function{check: check, cost: cost}
}

// library has each function of the environment. A function that is not in it is linear, but a test fails.
var library = func() map[string]function {
	m := map[string]function{
		operators.Add:       {check: guardAdd, instead: add, cost: addCost},
		operators.In:        guarded(guardIn, inCost),
		operators.OldIn:     guarded(guardIn, inCost),
		"in":                guarded(guardIn, inCost),
		equalsName:          guarded(guardEqual, equalCost),
		differsName:         guarded(guardEqual, equalCost),
		operators.Equals:    {cost: equalCost}, // of an expression that does not loop; see guardLoops
		operators.NotEquals: {cost: equalCost},
		keyName:             {cost: keyCost},
		fieldName:           guarded(guardField, fieldCost),
		subjectName:         guarded(guardSubject, nil),
		"matches":           guarded(guardMatches, work.matchesCost),
		"lists.range":       guarded(guardRange, linearCost),
		"toJson":            guarded(guardText, partsCost(3)),
		"json.encode":       guarded(guardText, partsCost(4)),
		"format":            guarded(guardFormat, formatCost),
		"fromJson":          guarded(guardParse, linearCost),
		"replace":           guarded(guardReplace, linearCost),
		"join":              guarded(guardJoin, joinCost),
		"split":             guarded(guardSplit, linearCost),
		"strings.quote":     guarded(guardText, linearCost),
		"base64.encode":     guarded(guardText, linearCost),
		"flatten":           guarded(guardFlatten, flattenCost),
		"distinct":          guarded(guardDistinct, distinctCost),
		"sets.contains":     guarded(guardPairs, pairsCost),
		"sets.equivalent":   guarded(guardPairs, pairsCost),
		"sets.intersects":   guarded(guardPairs, pairsCost),
		"sort":              guarded(guardSort, sortCost),
		sortByName:          guarded(guardSort, sortCost),
		"indexOf":           {cost: linearCost, instead: indexOf},
		"lastIndexOf":       {cost: linearCost, instead: lastIndexOf},
		"string":            {cost: linearCost, plain: true}, // bytes come from a call that is counted
	}
	for _, name := range getters {
		m[name] = function{check: guardZone, instead: inZone, cost: zoneCost}
	}
	for _, name := range []string{
		operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
		"base64.decode", "bytes", "bool", "int", "uint", "double", "timestamp", "duration", "durationFromIso8601", "size",
		"charAt", "contains", "startsWith", "endsWith", "lowerAscii", "upperAscii", "reverse", "slice", "substring", "trim", "math.@max", "math.@min",
	} {
		m[name] = linear
	}
	for _, name := range []string{
		turnName, operators.Index, operators.Conditional, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot,
		operators.NotStrictlyFalse, "__not_strictly_false__",
		operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate,
		"type", "dyn", "durationToIso8601",
		"math.ceil", "math.floor", "math.round", "math.trunc", "math.abs", "math.sign", "math.isNaN", "math.isInf", "math.isFinite", "math.sqrt",
		"math.bitAnd", "math.bitOr", "math.bitXor", "math.bitNot", "math.bitShiftLeft", "math.bitShiftRight",
	} {
		m[name] = constant
	}
	return m
}()

// getters are the functions that read a part of a timestamp, also in a time zone.
var getters = []string{
	"getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds",
}

// macros are the macros of the environment, each with what counts its work.
var macros = map[string]string{
	"has":        "constant",
	"all":        "each iteration is counted",
	"exists":     "each iteration is counted",
	"exists_one": "each iteration is counted",
	"map":        "each iteration is counted",
	"filter":     "each iteration is counted",
	"sortBy":     sortByName,
	"least":      "math.@min",
	"greatest":   "math.@max",
	"now":        "constant",
	"wallTime":   "constant",
}

// replacements returns an overload for each function with a check or an implementation, to take the place of CEL's.
func replacements(env *cel.Env) ([]*functions.Overload, error) {
	var out []*functions.Overload
	for name, f := range library {
		if f.check == nil && f.instead == nil {
			continue
		}
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
				out = append(out, replacement(o, f))
			}
		}
	}
	return out, nil
}

func replacement(o *functions.Overload, f function) *functions.Overload {
	original := func(args ...ref.Val) ref.Val {
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
	replaced := func(args ...ref.Val) ref.Val {
		if f.check != nil {
			if err := f.check(args); err != nil {
				return types.NewErr("%s: %v", written(o.Operator), err)
			}
		}
		if f.instead != nil {
			return f.instead(args, original)
		}
		return original(args...)
	}
	g := *o
	g.Unary = func(a ref.Val) ref.Val { return replaced(a) }
	g.Binary = func(a, b ref.Val) ref.Val { return replaced(a, b) }
	g.Function = replaced
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
	case fieldName:
		return "a field of a message"
	case sortByName:
		return "sortBy()"
	case subjectName:
		return "matches()"
	}
	return function + "()"
}

// plainCall reports whether a call does not make an expression counted.
func plainCall(name string, args int) bool {
	return library[name].plain || args == 0 && slices.Contains(getters, name)
}
