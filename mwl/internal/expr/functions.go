package expr

import (
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/parser"

	"github.com/surebus/eventbus/mwl/internal/temporal"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// Functions by which the analysis replaces or wraps what CEL plans itself, out of reach of guards and cost. No author can write these names.
const (
	// The comparisons of expressions that loop.
	equalsName  = "@equals"
	differsName = "@differs"
	// keyName returns the key of a map, which CEL hashes.
	keyName = "@key"
	// fieldName returns the value of a field of a protocol buffer message.
	fieldName = "@field"
	// subjectName returns the text for a constant pattern; it has the pattern's size, too.
	subjectName = "@subject"
	// turnName returns the condition of a loop of which no part may be counted otherwise.
	turnName = "@turn"
	// sortByName is CEL's own, to which sortBy() expands.
	sortByName = "@sortByAssociatedKeys"
)

// language adds the functions that the language defines beyond CEL.
func language(a types.Adapter) []cel.EnvOption {
	return []cel.EnvOption{
		cel.Macros(clock("now", nowName), clock("wallTime", wallName)),
		cel.Function(equalsName, cel.Overload("mwl_equals", []*cel.Type{cel.DynType, cel.DynType}, cel.BoolType,
			cel.BinaryBinding(types.Equal))),
		cel.Function(differsName, cel.Overload("mwl_differs", []*cel.Type{cel.DynType, cel.DynType}, cel.BoolType,
			cel.BinaryBinding(func(a, b ref.Val) ref.Val { return !types.Equal(a, b).(types.Bool) }))),
		cel.Function(keyName, cel.Overload("mwl_key", []*cel.Type{cel.DynType}, cel.DynType, cel.UnaryBinding(same))),
		cel.Function(fieldName, cel.Overload("mwl_field", []*cel.Type{cel.DynType}, cel.DynType, cel.UnaryBinding(same))),
		cel.Function(turnName, cel.Overload("mwl_turn", []*cel.Type{cel.DynType}, cel.DynType, cel.UnaryBinding(same))),
		cel.Function(subjectName, cel.Overload("mwl_subject", []*cel.Type{cel.DynType, cel.IntType}, cel.DynType,
			cel.BinaryBinding(func(text, _ ref.Val) ref.Val { return text }))),
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

// joinedList is the type of a list that CEL joins without a copy: it keeps both parts.
var joinedList = reflect.TypeOf(types.NewRefValList(types.DefaultTypeAdapter, []ref.Val{types.True}).Add(types.NewRefValList(types.DefaultTypeAdapter, []ref.Val{types.True})))

func joined(v ref.Val) bool { return reflect.TypeOf(v) == joinedList }

// add copies lists of which one is joined already. Without that, an element of a list that was joined n times would take n steps to read.
func add(args []ref.Val, cel call) ref.Val {
	sum := cel(args...)
	if !joined(sum) || !joined(args[0]) && !joined(args[1]) {
		return sum
	}
	list := sum.(traits.Lister)
	elements := make([]ref.Val, 0, sizeOf(list))
	for it := list.Iterator(); it.HasNext() == types.True; {
		elements = append(elements, it.Next())
	}
	return types.NewRefValList(adapter{types.DefaultTypeAdapter}, elements)
}

func same(v ref.Val) ref.Val { return v }

// indexOf is CEL's function without its time, the product of the lengths of both texts.
func indexOf(args []ref.Val, cel call) ref.Val {
	text, sought, ok := search(args)
	if !ok {
		return cel(args...)
	}
	from, start := 0, 0
	if len(args) == 3 {
		offset, ok := args[2].(types.Int)
		if !ok {
			return cel(args...)
		}
		if offset < 0 {
			return types.NewErr("index out of range: %d", offset)
		}
		if start, ok = byteOf(text, int(offset)); !ok && sought != "" {
			return types.Int(-1)
		} else if !ok {
			return types.Int(utf8.RuneCountInString(text))
		}
		from = int(offset)
	}
	i := strings.Index(text[start:], sought)
	if i < 0 {
		return types.Int(-1)
	}
	return types.Int(from + utf8.RuneCountInString(text[start:start+i]))
}

// lastIndexOf is CEL's function without its time, as indexOf.
func lastIndexOf(args []ref.Val, cel call) ref.Val {
	text, sought, ok := search(args)
	if !ok {
		return cel(args...)
	}
	end := len(text)
	if len(args) == 2 && len(args[0].(types.String)) < len(args[1].(types.String)) {
		return types.Int(-1) // whatever is not valid UTF-8 in them
	}
	if len(args) == 3 {
		offset, ok := args[2].(types.Int)
		if !ok {
			return cel(args...)
		}
		if offset < 0 {
			return types.NewErr("index out of range: %d", offset)
		}
		start, within := byteOf(text, int(offset))
		switch {
		case !within && sought == "":
			return types.Int(utf8.RuneCountInString(text))
		case start == len(text) && sought != "":
			return types.Int(-1)
		}
		end = min(len(text), start+len(sought))
	}
	i := strings.LastIndex(text[:end], sought)
	if i < 0 {
		return types.Int(-1)
	}
	return types.Int(utf8.RuneCountInString(text[:i]))
}

// search returns a text and the text to find in it, both as valid UTF-8: CEL compares characters, and all bytes that are
// not UTF-8 are the same character to it.
func search(args []ref.Val) (text, sought string, ok bool) {
	text, first := textOf(args, 0)
	sought, second := textOf(args, 1)
	return valid(text), valid(sought), first && second && len(args) <= 3
}

func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// byteOf returns where a character begins, or the length of the text for the one after the last; false: there are fewer characters.
func byteOf(text string, character int) (offset int, ok bool) {
	for i := range text {
		if character == 0 {
			return i, true
		}
		character--
	}
	return len(text), character == 0
}

// zones keeps the time zones that expressions have named, because each takes a file to load. It has no more than maxZones, about what the time zone database has.
var (
	zones     sync.Map // of names to *time.Location
	zonesKept atomic.Int64
)

const maxZones = 1024

// inZone is a getter, whose second argument is a time zone or an offset.
func inZone(args []ref.Val, cel call) ref.Val {
	name, isName := textOf(args, 1)
	t, isTime := args[0].(types.Timestamp)
	if !isName || !isTime || strings.Contains(name, ":") {
		return cel(args...)
	}
	zone, err := zoneOf(name)
	if err != nil {
		return types.WrapErr(err)
	}
	return cel(types.Timestamp{Time: t.In(zone)})
}

func zoneOf(name string) (*time.Location, error) {
	if kept, ok := zones.Load(name); ok {
		return kept.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	if zonesKept.Add(1) <= maxZones {
		zones.Store(name, zone)
	}
	return zone, nil
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
