package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"

	"github.com/surebus/eventbus"
)

// code marks a text as code: see figure.text.
func code(text string) string { return "`" + text + "`" }

// nameOf returns the name of a function, or of a method given as (*eventbus.Bus).Publish, as code.
func nameOf(function any) string {
	name := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Name()
	name, _, _ = strings.Cut(name, "[") // of a generic function
	return code(name[strings.LastIndexByte(name, '.')+1:])
}

// typeName returns the name of a type, as code.
func typeName[T any]() string { return code(reflect.TypeFor[T]().Name()) }

// fieldName returns the name of the field of a struct to which of returns a pointer, as code.
func fieldName[S any](of func(*S) any) string {
	var s S
	field := reflect.ValueOf(of(&s)).Pointer()
	for i, v := 0, reflect.ValueOf(&s).Elem(); i < v.NumField(); i++ {
		if v.Field(i).Addr().Pointer() == field {
			return code(v.Type().Field(i).Name)
		}
	}
	panic(fmt.Sprintf("no field of %T", s))
}

// constants has the exported constants of the root package, of its types of numbers.
type constants map[reflect.Type]map[int64]string

// readConstants reads the sources of the root package: only they have the name of a constant.
func readConstants(root string) (constants, error) {
	files, err := filepath.Glob(filepath.Join(root, "*.go"))
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	var syntax []*ast.File
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		syntax = append(syntax, f)
	}
	if len(syntax) == 0 {
		return nil, fmt.Errorf("%s has no Go files: run it in the root of the repository, or give that with -C", root)
	}
	// The compiler has checked the package. Errors here are only about imports, on which these constants do not depend.
	config := types.Config{Error: func(error) {}, IgnoreFuncBodies: true}
	pkg, _ := config.Check(reflect.TypeFor[eventbus.Event]().PkgPath(), set, syntax, nil)
	all := make(constants)
	for _, t := range []reflect.Type{reflect.TypeFor[eventbus.WhenOpen](), reflect.TypeFor[eventbus.WhenFull]()} {
		all[t] = make(map[int64]string)
		for _, name := range pkg.Scope().Names() {
			c, ok := pkg.Scope().Lookup(name).(*types.Const)
			if ok && c.Exported() && types.TypeString(c.Type(), nil) == t.PkgPath()+"."+t.Name() {
				if n, exact := constant.Int64Val(c.Val()); exact {
					all[t][n] = name
				}
			}
		}
	}
	return all, nil
}

// name returns the name of a constant, as code.
func (c constants) name(v any) string {
	name := c[reflect.TypeOf(v)][reflect.ValueOf(v).Int()]
	if name == "" {
		panic(fmt.Sprintf("no constant of the type %T is %v", v, v))
	}
	return code(name)
}

// number returns a number with its thousands apart: 10,000.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
