package expr

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/parser"

	"github.com/surebus/eventbus/mwl/internal/temporal"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// The comparisons of expressions that loop. CEL plans == and != itself, out of reach of the guards. No author can write these names.
const (
	equalsName  = "@equals"
	differsName = "@differs"
)

// language adds the functions that the language defines beyond CEL.
func language(a types.Adapter) []cel.EnvOption {
	return []cel.EnvOption{
		cel.Macros(clock("now", nowName), clock("wallTime", wallName)),
		cel.Function(equalsName, cel.Overload("mwl_equals", []*cel.Type{cel.DynType, cel.DynType}, cel.BoolType,
			cel.BinaryBinding(types.Equal))),
		cel.Function(differsName, cel.Overload("mwl_differs", []*cel.Type{cel.DynType, cel.DynType}, cel.BoolType,
			cel.BinaryBinding(func(a, b ref.Val) ref.Val { return !types.Equal(a, b).(types.Bool) }))),
		cel.Function("toJson", cel.Overload("mwl_to_json", []*cel.Type{cel.DynType}, cel.StringType,
			cel.UnaryBinding(toJSON))),
		cel.Function("fromJson", cel.Overload("mwl_from_json", []*cel.Type{cel.StringType}, cel.DynType,
			cel.UnaryBinding(func(arg ref.Val) ref.Val { return fromJSON(a, arg) }))),
		cel.Function("durationToIso8601", cel.Overload("mwl_duration_to_iso8601", []*cel.Type{cel.DurationType}, cel.StringType,
			cel.UnaryBinding(durationToISO))),
		cel.Function("durationFromIso8601", cel.Overload("mwl_duration_from_iso8601", []*cel.Type{cel.StringType}, cel.DurationType,
			cel.UnaryBinding(durationFromISO))),
	}
}

// clock expands a call without arguments to a name that the scope resolves at each evaluation.
func clock(function, name string) parser.Macro {
	return cel.GlobalMacro(function, 0, func(f cel.MacroExprFactory, _ ast.Expr, _ []ast.Expr) (ast.Expr, *cel.Error) {
		return f.NewIdent(name), nil
	})
}

func toJSON(arg ref.Val) ref.Val {
	v, err := result(arg)
	if err != nil {
		return types.NewErr("toJson(): %v", err)
	}
	return types.String(value.JSON(v))
}

func fromJSON(a types.Adapter, arg ref.Val) ref.Val {
	s, ok := arg.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	v, err := value.Parse([]byte(s))
	if err != nil {
		return types.NewErr("fromJson(): %v", err)
	}
	return a.NativeToValue(v)
}

func durationToISO(arg ref.Val) ref.Val {
	d, ok := arg.(types.Duration)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	return types.String(temporal.FormatDuration(d.Duration))
}

func durationFromISO(arg ref.Val) ref.Val {
	s, ok := arg.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	d, err := temporal.ParseDurationExact(string(s))
	if err != nil {
		return types.NewErr("durationFromIso8601(): %v", err)
	}
	return types.Duration{Duration: d}
}
