package eventbus_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rootCalls is the reading order of the root package. A function calls functions of its
// own file and of files further down. A call of a function in a file further up needs an
// entry in vocabulary or in allowed.
var rootCalls = callRules{
	order: []string{
		"doc.go",
		"event.go",
		"errors.go", "options.go", "options_door.go",
		"bus.go",
		"lifecycle.go",
		"publish.go", "publish_ids.go", "quota.go", "unknown.go", "publish_wait.go", "schedule.go",
		"subscribe.go",
		"dispatch.go",
		"dispatcher.go", "record.go", "codec.go", "store.go", "store_use.go", "store_times.go", "feeder.go", "recovery.go", "suspects.go", "restart.go",
		"call.go", "guard.go",
		"door.go", "spill.go", "breaker.go", "control.go", "orders.go", "audit.go", "tool.go", "catalog.go",
		"failure.go", "errortraits.go", "retrypolicy.go", "retryrules.go", "retry_settings.go",
		"dlq.go", "dlq_replay.go", "dlq_query.go", "dlq_bulk.go", "dlq_preview.go", "dlq_group.go", "dlq_transfer.go", "dlq_store.go", "dlq_memory.go",
		"metrics.go", "observer.go", "log.go", "dispatches.go", "dispatches_list.go", "inspect.go",
	},
	vocabulary: map[string]string{
		"event.go":    "every file handles events, ids and metadata",
		"errors.go":   "every file makes errors",
		"options.go":  "every file may validate or read an option",
		"bus.go":      "every exported method checks first that New made the bus",
		"dispatch.go": "the data of a dispatch: its methods read and write fields, and decide nothing",
	},
	allowed: map[filePair]string{
		{"restart.go", "recovery.go"}:           "a claimed record becomes a dispatch",
		{"recovery.go", "record.go"}:            "a transition is a recorded change",
		{"unknown.go", "publish.go"}:            "a replay is refused as a publication is",
		{"unknown.go", "lifecycle.go"}:          "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"suspects.go", "record.go"}:            "a transition is a recorded change",
		{"suspects.go", "dispatcher.go"}:        "a dispatch that enters memory is queued",
		{"suspects.go", "codec.go"}:             "a record becomes a dispatch, and a dispatch a record",
		{"spill.go", "door.go"}:                 "an operator's order acts on the door",
		{"spill.go", "dispatcher.go"}:           "a dispatch that enters memory is queued",
		{"restart.go", "unknown.go"}:            "an unknown outcome ends with the change",
		{"restart.go", "store.go"}:              "the counts begin with what the store has",
		{"record.go", "unknown.go"}:             "an unknown outcome ends with the change",
		{"quota.go", "publish.go"}:              "a replay is refused as a publication is",
		{"orders.go", "door.go"}:                "an operator's order acts on the door",
		{"orders.go", "control.go"}:             "an operator's order acts on the door",
		{"dlq_transfer.go", "store_times.go"}:   "a time must be one that a store keeps",
		{"control.go", "store_times.go"}:        "a time must be one that a store keeps",
		{"door.go", "feeder.go"}:                "the feeder claims, and wakes, again",
		{"restart.go", "record.go"}:             "a transition is a recorded change",
		{"restart.go", "lifecycle.go"}:          "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"restart.go", "feeder.go"}:             "the feeder claims, and wakes, again",
		{"recovery.go", "subscribe.go"}:         "a subscription's own data, and the policy of its targets",
		{"recovery.go", "schedule.go"}:          "an event may not be due yet, or may be due now",
		{"recovery.go", "dispatcher.go"}:        "a dispatch that enters memory is queued",
		{"recovery.go", "codec.go"}:             "a record becomes a dispatch, and a dispatch a record",
		{"dlq_replay.go", "subscribe.go"}:       "a subscription's own data, and the policy of its targets",
		{"dlq_replay.go", "schedule.go"}:        "an event may not be due yet, or may be due now",
		{"dlq_replay.go", "retry_settings.go"}:  "the settings that are in force",
		{"dlq_replay.go", "restart.go"}:         "nothing is accepted while the store has failed",
		{"dlq_replay.go", "record.go"}:          "a transition is a recorded change",
		{"dlq_replay.go", "publish.go"}:         "a replay is refused as a publication is",
		{"dlq_replay.go", "lifecycle.go"}:       "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"dlq_replay.go", "dispatcher.go"}:      "a dispatch that enters memory is queued",
		{"dlq_bulk.go", "dlq_replay.go"}:        "a bulk replay replays letter by letter",
		{"publish.go", "lifecycle.go"}:          "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"publish_wait.go", "publish.go"}:       "PublishAndWait is Publish and a wait",
		{"schedule.go", "lifecycle.go"}:         "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"schedule.go", "publish_ids.go"}:       "the id of a cancelled event may be given again",
		{"publish_wait.go", "publish_ids.go"}:   "a repetition waits for nothing",
		{"dispatch.go", "subscribe.go"}:         "a delivery that is split off has one of the targets",
		{"dispatcher.go", "lifecycle.go"}:       "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"dispatcher.go", "publish_wait.go"}:    "the end of a dispatch is the end of its wait",
		{"dispatcher.go", "schedule.go"}:        "an accepted event may be due later",
		{"dispatcher.go", "subscribe.go"}:       "a subscription's own data, and the policy of its targets",
		{"record.go", "lifecycle.go"}:           "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"dispatch.go", "publish_wait.go"}:      "the wait for an event is for all its copies",
		{"record.go", "publish_wait.go"}:        "the end of a dispatch is the end of its wait",
		{"record.go", "schedule.go"}:            "a recorded change is applied by its transition",
		{"codec.go", "subscribe.go"}:            "a subscription's own data, and the policy of its targets",
		{"feeder.go", "lifecycle.go"}:           "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"feeder.go", "record.go"}:              "the feeder submits the changes that open dispatches",
		{"record.go", "dispatcher.go"}:          "a recorded change is applied by its transition",
		{"call.go", "dispatcher.go"}:            "a call that ends without its worker is concluded by a fresh one",
		{"guard.go", "subscribe.go"}:            "a subscription's own data, and the policy of its targets",
		{"door.go", "lifecycle.go"}:             "a dispatch that settles may be the last one that Shutdown waits for; after its end nothing starts",
		{"door.go", "dispatcher.go"}:            "a throttled delivery that becomes held is no longer waited for",
		{"control.go", "door.go"}:               "an operator's order acts on the door",
		{"failure.go", "subscribe.go"}:          "a subscription's own data, and the policy of its targets",
		{"retryrules.go", "retrypolicy.go"}:     "a policy's fields and their merge",
		{"retry_settings.go", "control.go"}:     "settings, like orders, are refused after Unsubscribe",
		{"retry_settings.go", "retrypolicy.go"}: "a policy's fields and their merge",
		{"retry_settings.go", "retryrules.go"}:  "a rule's own data",
		{"dlq.go", "codec.go"}:                  "an edited payload is encoded",
		{"dlq_store.go", "codec.go"}:            "the errors of recorded failures",
		{"dlq_store.go", "dlq.go"}:              "a letter's own data, and the check of the queue",
		{"metrics.go", "dlq_memory.go"}:         "metrics, observers, logs and plans read the state",
		{"metrics.go", "feeder.go"}:             "metrics, observers, logs and plans read the state",
		{"metrics.go", "spill.go"}:              "metrics, observers, logs and plans read the state",
		{"dlq.go", "retryrules.go"}:             "a rule's own data",
		{"dlq_query.go", "dlq.go"}:              "a letter's own data, and the check of the queue",
		{"dlq_bulk.go", "dlq.go"}:               "a letter's own data, and the check of the queue",
		{"dlq_bulk.go", "dlq_query.go"}:         "a query's own data",
		{"dlq_group.go", "dlq_query.go"}:        "a query's own data",
		{"dlq_transfer.go", "retryrules.go"}:    "a rule's own data",
		{"dlq_transfer.go", "dlq.go"}:           "a letter's own data, and the check of the queue",
		{"dlq_transfer.go", "dlq_query.go"}:     "a query's own data",
		{"dlq_transfer.go", "dlq_bulk.go"}:      "exports and imports report their progress as bulk operations do",
		{"dlq_transfer.go", "dlq_group.go"}:     "an imported letter gets its fingerprint",
		{"dlq_memory.go", "dlq.go"}:             "a letter's own data, and the check of the queue",
		{"dlq_memory.go", "dlq_query.go"}:       "a query's own data",
		{"metrics.go", "subscribe.go"}:          "metrics, observers, logs and plans read the state",
		{"metrics.go", "door.go"}:               "metrics, observers, logs and plans read the state",
		{"metrics.go", "breaker.go"}:            "metrics, observers, logs and plans read the state",
		{"metrics.go", "control.go"}:            "metrics, observers, logs and plans read the state",
		{"observer.go", "subscribe.go"}:         "metrics, observers, logs and plans read the state",
		{"observer.go", "call.go"}:              "metrics, observers, logs and plans read the state",
		{"observer.go", "failure.go"}:           "metrics, observers, logs and plans read the state",
		{"observer.go", "dlq.go"}:               "metrics, observers, logs and plans read the state",
		{"observer.go", "dlq_group.go"}:         "a failure names the class by which letters are grouped",
		{"log.go", "subscribe.go"}:              "metrics, observers, logs and plans read the state",
		{"log.go", "call.go"}:                   "metrics, observers, logs and plans read the state",
		{"log.go", "guard.go"}:                  "metrics, observers, logs and plans read the state",
		{"log.go", "breaker.go"}:                "metrics, observers, logs and plans read the state",
		{"log.go", "failure.go"}:                "metrics, observers, logs and plans read the state",
		{"log.go", "retrypolicy.go"}:            "metrics, observers, logs and plans read the state",
		{"log.go", "observer.go"}:               "a change of a circuit is logged, then observed",
		{"inspect.go", "subscribe.go"}:          "metrics, observers, logs and plans read the state",
		{"inspect.go", "call.go"}:               "metrics, observers, logs and plans read the state",
		{"inspect.go", "door.go"}:               "metrics, observers, logs and plans read the state",
		{"inspect.go", "breaker.go"}:            "metrics, observers, logs and plans read the state",
		{"inspect.go", "control.go"}:            "metrics, observers, logs and plans read the state",
		{"inspect.go", "failure.go"}:            "metrics, observers, logs and plans read the state",
		{"inspect.go", "retrypolicy.go"}:        "metrics, observers, logs and plans read the state",
		{"inspect.go", "retryrules.go"}:         "metrics, observers, logs and plans read the state",
		{"dispatches.go", "codec.go"}:           "metrics, observers, logs and plans read the state",
		{"dispatches.go", "control.go"}:         "metrics, observers, logs and plans read the state",
		{"dispatches.go", "dlq_store.go"}:       "metrics, observers, logs and plans read the state",
		{"dispatches.go", "door.go"}:            "metrics, observers, logs and plans read the state",
		{"dispatches.go", "publish_ids.go"}:     "metrics, observers, logs and plans read the state",
		{"dispatches_list.go", "dispatches.go"}: "metrics, observers, logs and plans read the state",
		{"dispatches_list.go", "store.go"}:      "metrics, observers, logs and plans read the state",
		{"dlq_replay.go", "tool.go"}:            "a tool stands for the subscriptions that another process has",
		{"catalog.go", "orders.go"}:             "the catalog is recorded with the orders that subscriptions inherit",
		{"retry_settings.go", "catalog.go"}:     "the catalog has the settings",
		{"feeder.go", "quota.go"}:               "what other processes commit makes room, or takes it",
		{"feeder.go", "store_use.go"}:           "a publication is submitted with its room",
		{"store_use.go", "codec.go"}:            "a batch counts by the sizes of its payloads",
		{"dlq_replay.go", "quota.go"}:           "a replay waits for room as a publication does",
		{"recovery.go", "publish_wait.go"}:      "the end of a dispatch is the end of its wait",
		{"audit.go", "orders.go"}:               "an operator's action names the operator, and the audit has it",
		{"audit.go", "store_times.go"}:          "an operator's action names the operator, and the audit has it",
		{"dlq.go", "audit.go"}:                  "an operator's action names the operator, and the audit has it",
		{"dlq.go", "orders.go"}:                 "an operator's action names the operator, and the audit has it",
		{"dlq_bulk.go", "audit.go"}:             "an operator's action names the operator, and the audit has it",
		{"dlq_bulk.go", "orders.go"}:            "an operator's action names the operator, and the audit has it",
		{"dlq_replay.go", "audit.go"}:           "an operator's action names the operator, and the audit has it",
		{"dlq_store.go", "audit.go"}:            "an operator's action names the operator, and the audit has it",
		{"dlq_transfer.go", "audit.go"}:         "an operator's action names the operator, and the audit has it",
		{"dlq_preview.go", "dlq.go"}:            "the preview reads what a replay would use",
		{"dlq_preview.go", "dlq_query.go"}:      "the preview reads what a replay would use",
		{"dlq_preview.go", "dlq_replay.go"}:     "the preview reads what a replay would use",
		{"inspect.go", "retry_settings.go"}:     "metrics, observers, logs and plans read the state",
	},
}

func TestStructure_Calls(t *testing.T) {
	pkg := loadRoot(t)
	calls := upwardCalls(pkg, rootCalls.order)
	t.Log(rootCalls.summary(calls))
	for _, problem := range rootCalls.problems(rootFiles(t), calls) {
		t.Error(problem)
	}
}

// callRules defines which calls between the files of a package are allowed.
type callRules struct {
	order      []string            // files from top to bottom
	vocabulary map[string]string   // file that every file may call → reason
	allowed    map[filePair]string // pair of files with upward calls → reason
}

type filePair struct{ caller, callee string }

func (p filePair) String() string { return p.caller + " → " + p.callee }

// upwardCall is a function that is used in a file below the file that declares it.
type upwardCall struct {
	filePair
	function string
	declared token.Position
	sites    []token.Position // in the order of the source
}

// upwardCalls finds every use of a function or method of pkg whose declaration is in a
// file above the file of the use. A use is a call, a method value or a function value.
// Calls through an interface are left out: their callee is not known. So are files
// that order does not list.
func upwardCalls(pkg typedPackage, order []string) []upwardCall {
	rank := make(map[string]int, len(order))
	for i, file := range order {
		rank[file] = i
	}
	found := make(map[*types.Func]map[string]*upwardCall) // callee → caller file
	uses := slices.SortedFunc(maps.Keys(pkg.info.Uses), func(a, b *ast.Ident) int { return cmp.Compare(a.Pos(), b.Pos()) })
	for _, use := range uses {
		callee, ok := pkg.info.Uses[use].(*types.Func)
		if !ok || callee.Pkg() != pkg.types {
			continue
		}
		callee = callee.Origin() // the declaration, if the use instantiates a generic
		if recv := callee.Signature().Recv(); recv != nil && types.IsInterface(recv.Type()) {
			continue
		}
		site, declared := pkg.position(use), pkg.position(callee)
		from, listed := rank[site.Filename]
		to, alsoListed := rank[declared.Filename]
		if !listed || !alsoListed || to >= from {
			continue
		}
		if found[callee] == nil {
			found[callee] = make(map[string]*upwardCall)
		}
		call := found[callee][site.Filename]
		if call == nil {
			call = &upwardCall{
				filePair: filePair{site.Filename, declared.Filename},
				function: functionName(callee),
				declared: declared,
			}
			found[callee][site.Filename] = call
		}
		call.sites = append(call.sites, site)
	}
	var calls []upwardCall
	for _, byCaller := range found {
		for _, call := range byCaller {
			calls = append(calls, *call)
		}
	}
	slices.SortFunc(calls, func(a, b upwardCall) int {
		return cmp.Or(
			cmp.Compare(rank[a.caller], rank[b.caller]),
			cmp.Compare(rank[a.callee], rank[b.callee]),
			cmp.Compare(a.sites[0].Offset, b.sites[0].Offset),
		)
	})
	return calls
}

// problems compares the files of the package and its upward calls with the rules.
func (r callRules) problems(files []string, calls []upwardCall) []string {
	var problems []string
	report := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
	}

	for _, file := range files {
		if !slices.Contains(r.order, file) {
			report("%s is not in the reading order: add it where a reader needs it first", file)
		}
	}
	for i, file := range r.order {
		if !slices.Contains(files, file) {
			report("%s is in the reading order and does not exist: remove it", file)
		}
		if slices.Contains(r.order[:i], file) {
			report("%s is twice in the reading order: remove one", file)
		}
	}

	usedPairs, usedWords := make(map[filePair]bool), make(map[string]bool)
	for _, call := range calls {
		if _, ok := r.vocabulary[call.callee]; ok {
			usedWords[call.callee] = true
			continue
		}
		if _, ok := r.allowed[call.filePair]; ok {
			usedPairs[call.filePair] = true
			continue
		}
		times := ""
		if n := len(call.sites); n > 1 {
			times = fmt.Sprintf(" (%d times in this file)", n)
		}
		report("%s uses %s%s, which is declared above it in the reading order, at %s: move one of the two, or allow the pair %s in structure_calls_test.go with a reason",
			call.sites[0], call.function, times, call.declared, call.filePair)
	}

	for _, file := range slices.Sorted(maps.Keys(r.vocabulary)) {
		if !usedWords[file] {
			report("%s is vocabulary, and no file below it calls it: remove it from vocabulary", file)
		}
		if r.vocabulary[file] == "" {
			report("%s is vocabulary without a reason: add one", file)
		}
	}
	pairs := slices.SortedFunc(maps.Keys(r.allowed), func(a, b filePair) int { return strings.Compare(a.String(), b.String()) })
	for _, pair := range pairs {
		if !usedPairs[pair] {
			report("the pair %s is allowed and has no upward call of its own: remove it", pair)
		}
		if r.allowed[pair] == "" {
			report("the pair %s is allowed without a reason: add one", pair)
		}
	}
	return problems
}

// summary lists the pairs of files with upward calls, in reading order.
func (r callRules) summary(calls []upwardCall) string {
	var lines strings.Builder
	pairs := 0
	for start := 0; start < len(calls); pairs++ {
		pair, sites, functions := calls[start].filePair, 0, []string(nil)
		for ; start < len(calls) && calls[start].filePair == pair; start++ {
			sites += len(calls[start].sites)
			functions = append(functions, calls[start].function)
		}
		verdict := "not allowed"
		if reason, ok := r.vocabulary[pair.callee]; ok {
			verdict = "vocabulary: " + reason
		} else if reason, ok := r.allowed[pair]; ok {
			verdict = "allowed: " + reason
		}
		fmt.Fprintf(&lines, "\n%s: %d × %s (%s)", pair, sites, strings.Join(functions, ", "), verdict)
	}
	return fmt.Sprintf("%d pairs of files with upward calls:%s", pairs, lines.String())
}

// functionName returns the name of f without its package: "run" or "(*Bus).run".
func functionName(f *types.Func) string {
	recv := f.Signature().Recv()
	if recv == nil {
		return f.Name()
	}
	return fmt.Sprintf("(%s).%s", types.TypeString(recv.Type(), func(*types.Package) string { return "" }), f.Name())
}

type typedPackage struct {
	fset  *token.FileSet
	types *types.Package
	info  *types.Info
}

func (p typedPackage) position(node interface{ Pos() token.Pos }) token.Position {
	position := p.fset.Position(node.Pos())
	position.Filename = filepath.Base(position.Filename)
	return position
}

// loadRoot parses and type-checks the non-test files of the root. Dependencies come
// from the compiler's export data in the build cache.
func loadRoot(t *testing.T) typedPackage {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles", ".")
	var failure strings.Builder
	list.Stderr = &failure
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", list, err, failure.String())
	}
	exports := make(map[string]string) // import path → file with export data
	sources := make(map[string]string)
	for packages := json.NewDecoder(strings.NewReader(string(out))); packages.More(); {
		var listed struct {
			ImportPath, Export string
			GoFiles            []string
		}
		if err := packages.Decode(&listed); err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		exports[listed.ImportPath] = listed.Export
		if listed.ImportPath != modulePath {
			continue
		}
		for _, file := range listed.GoFiles {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sources[file] = string(source)
		}
	}
	if len(sources) == 0 {
		t.Fatalf("%s lists no file of %s", list, modulePath)
	}
	return typeCheck(t, sources, func(importPath string) (io.ReadCloser, error) {
		return os.Open(exports[importPath])
	})
}

func typeCheck(t *testing.T, sources map[string]string, lookup importer.Lookup) typedPackage {
	t.Helper()
	pkg := typedPackage{fset: token.NewFileSet(), info: &types.Info{Uses: make(map[*ast.Ident]types.Object)}}
	var files []*ast.File
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		file, err := parser.ParseFile(pkg.fset, name, sources[name], parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	config := types.Config{Importer: importer.ForCompiler(pkg.fset, "gc", lookup)}
	var err error
	if pkg.types, err = config.Check(modulePath, pkg.fset, files, pkg.info); err != nil {
		t.Fatalf("the package does not compile: %v", err)
	}
	return pkg
}

// rootFiles returns the names of the non-test files of the root, whatever their build tags.
func rootFiles(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, f := range goFiles(t) {
		if f.pkg == "." && !f.test {
			names = append(names, f.name)
		}
	}
	return names
}

func TestStructure_CallRules(t *testing.T) {
	const top, bottom = "top.go", "bottom.go"
	order := []string{top, bottom}
	upward := filePair{bottom, top}

	for name, test := range map[string]struct {
		top, bottom string
		rules       callRules
		want        []string // one part of each problem, in order
	}{
		"a call downwards": {
			top:    `func a() { b() }`,
			bottom: `func b() { c() }; func c() {}`,
		},
		"a call upwards": {
			top:    `func a() {}`,
			bottom: `func b() { a() }`,
			want:   []string{"bottom.go:2:12 uses a, which is declared above it in the reading order, at top.go:2:6: move one of the two, or allow the pair bottom.go → top.go"},
		},
		"several calls of one function": {
			top:    `func a() {}`,
			bottom: `func b() { a(); a(); a() }`,
			want:   []string{"bottom.go:2:12 uses a (3 times in this file)"},
		},
		"a call of a method": {
			top:    `type T struct{}; func (*T) m() {}`,
			bottom: `func b(t *T) { t.m() }`,
			want:   []string{"uses (*T).m,"},
		},
		"a method value": {
			top:    `type T struct{}; func (T) m() {}`,
			bottom: `func b(t T) func() { return t.m }`,
			want:   []string{"uses (T).m,"},
		},
		"a method expression": {
			top:    `type T struct{}; func (T) m() {}`,
			bottom: `func b() func(T) { return T.m }`,
			want:   []string{"uses (T).m,"},
		},
		"a promoted method": {
			top:    `type T struct{}; func (T) m() {}`,
			bottom: `type U struct{ T }; func b(u U) { u.m() }`,
			want:   []string{"uses (T).m,"},
		},
		"a function value": {
			top:    `func a() {}`,
			bottom: `func b() { f := a; f() }`,
			want:   []string{"uses a,"},
		},
		"a variable of the package": {
			top:    `func a() int { return 1 }`,
			bottom: `var b = a()`,
			want:   []string{"uses a,"},
		},
		"a generic function": {
			top:    `func a[T any](T) {}`,
			bottom: `func b() { a(1); a[string]("") }`,
			want:   []string{"uses a (2 times in this file)"},
		},
		"a method of a generic type": {
			top:    `type T[E any] struct{}; func (T[E]) m() {}`,
			bottom: `func b(i T[int], s T[string]) { i.m(); _ = s.m }`,
			want:   []string{"uses (T[E]).m (2 times in this file)"},
		},
		"types, constants, fields and interface methods": {
			top:    `type T struct{ field func() }; const c = 1; var v int; type I interface{ m() }`,
			bottom: `func b(t T, i I) int { t.field(); i.m(); _ = T{}; return c + v }`,
		},
		"a parameter with the name of a function": {
			top:    `func a() {}`,
			bottom: `func b(a func()) { a() }`,
		},
		"an allowed pair": {
			top:    `func a() {}`,
			bottom: `func b() { a() }`,
			rules:  callRules{allowed: map[filePair]string{upward: "tests"}},
		},
		"an allowed pair without a reason": {
			top:    `func a() {}`,
			bottom: `func b() { a() }`,
			rules:  callRules{allowed: map[filePair]string{upward: ""}},
			want:   []string{"bottom.go → top.go is allowed without a reason"},
		},
		"an allowed pair that is unused": {
			rules: callRules{allowed: map[filePair]string{upward: "tests"}},
			want:  []string{"bottom.go → top.go is allowed and has no upward call of its own: remove it"},
		},
		"an allowed pair that points downwards": {
			top:    `func a() { b() }`,
			bottom: `func b() {}`,
			rules:  callRules{allowed: map[filePair]string{{top, bottom}: "tests"}},
			want:   []string{"top.go → bottom.go is allowed and has no upward call of its own: remove it"},
		},
		"a pair that vocabulary allows already": {
			top:    `func a() {}`,
			bottom: `func b() { a() }`,
			rules:  callRules{vocabulary: map[string]string{top: "tests"}, allowed: map[filePair]string{upward: "tests"}},
			want:   []string{"bottom.go → top.go is allowed and has no upward call of its own: remove it"},
		},
		"vocabulary": {
			top:    `func a() {}`,
			bottom: `func b() { a() }`,
			rules:  callRules{vocabulary: map[string]string{top: "tests"}},
		},
		"vocabulary that is unused": {
			rules: callRules{vocabulary: map[string]string{top: "tests"}},
			want:  []string{"top.go is vocabulary, and no file below it calls it: remove it"},
		},
		"vocabulary without a reason": {
			top:    `func a() {}`,
			bottom: `func b() { a() }`,
			rules:  callRules{vocabulary: map[string]string{top: ""}},
			want:   []string{"top.go is vocabulary without a reason: add one"},
		},
		"a file that the order does not list": {
			rules: callRules{order: []string{top}},
			want:  []string{"bottom.go is not in the reading order"},
		},
		"a listed file that does not exist": {
			rules: callRules{order: []string{top, "middle.go", bottom}},
			want:  []string{"middle.go is in the reading order and does not exist"},
		},
		"a file that is listed twice": {
			rules: callRules{order: []string{top, bottom, bottom}},
			want:  []string{"bottom.go is twice in the reading order"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := test.rules
			if rules.order == nil {
				rules.order = order
			}
			pkg := typeCheck(t, map[string]string{
				top:    "package p\n" + test.top,
				bottom: "package p\n" + test.bottom,
			}, nil)
			got := rules.problems(order, upwardCalls(pkg, rules.order))
			if !slices.EqualFunc(got, test.want, strings.Contains) {
				t.Errorf("problems:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(test.want, "\n\t"))
			}
		})
	}
}
