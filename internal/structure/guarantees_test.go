package structure

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/docpage"
	"github.com/surebus/eventbus/internal/sabotage"
)

// promises are the clauses that there are, by letter.
var promises = []struct {
	letter  string
	clauses int
	bugs    bool // each has a bug that breaks it
}{
	{"E", 10, false},
	{"R", 6, false},
	{"D", 15, true},
	{"P", 8, true},
	{"F", 9, true},
	{"C", 6, true},
	{"L", 9, true},
	{"O", 6, false},
	{"S", 7, true},
	{"T", 6, true},
	{"V", 5, true},
}

// notPromised are the clauses that may be missing, until the code keeps them.
var notPromised []string

// GUARANTEES.md promises every clause but those, and shows how it is known that
// each is kept. What it names is there.
func TestGuarantees(t *testing.T) {
	text, err := os.ReadFile("GUARANTEES.md")
	require.NoError(t, err)
	page, err := os.ReadFile(promisesPage)
	require.NoError(t, err)
	bugs, err := sabotage.Bugs()
	require.NoError(t, err)
	for _, p := range guaranteeProblems(string(text), string(page), guaranteeTests(t), bugs) {
		t.Error(p)
	}
}

// guarantee is a clause as the document has it.
type guarantee struct {
	clause    string
	tests     []string
	bugs      []string
	otherwise string // under what it fails, in words
}

var (
	clauseHeading = regexp.MustCompile(`^### ([A-Z][0-9]+) \S`)
	missingEntry  = regexp.MustCompile(`^- \*\*([A-Z][0-9]+)\*\*, (whole|in part): \S`)
	codeSpan      = regexp.MustCompile("`([^`]+)`")
	bugName       = regexp.MustCompile(`^[A-Z][0-9]+(-[a-z0-9]+)+$`)
	clauseOfTest  = regexp.MustCompile(`(?:^|\.)Test([ERDPFCLOSTV][0-9]+)_`)
	intoDocument  = regexp.MustCompile(`\]\(\.\./GUARANTEES\.md(?:#([^)]*))?\)`)
)

const (
	shownBy    = "- Shown by: "
	failsUnder = "- Fails under: "
	notYet     = "## Not promised yet"

	promisesPage  = "docs/promises.md" // has a table of the promises in short
	promisesTable = "## What you get"
)

// guaranteeProblems says what is wrong with the document, and with the page that points
// into it. tests are those of the workspace, qualified as the document does it.
func guaranteeProblems(text, page string, tests []string, bugs []sabotage.Bug) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	promised, whole, partly := parseGuarantees(text, wrong)

	var order []string
	withBugs := make(map[string]bool)
	for _, p := range promises {
		for n := range p.clauses {
			clause := fmt.Sprint(p.letter, n+1)
			order = append(order, clause)
			withBugs[clause] = p.bugs
		}
	}
	has := make(map[string]bool)
	last := -1
	for _, g := range promised {
		i := slices.Index(order, g.clause)
		switch {
		case i < 0:
			wrong("%s: there is no such clause", g.clause)
		case has[g.clause]:
			wrong("%s: has two headings", g.clause)
		case i < last:
			wrong("%s: comes after %s", g.clause, order[last])
		}
		last = max(last, i)
		has[g.clause] = true
	}
	for _, clause := range order {
		switch {
		case has[clause] && slices.Contains(whole, clause):
			wrong("%s: is promised, and listed as not promised", clause)
		case !has[clause] && !slices.Contains(notPromised, clause):
			wrong("%s: has no heading, and is none of those that need none yet, %v", clause, notPromised)
		case !has[clause] && !slices.Contains(whole, clause):
			wrong("%s: is neither promised nor listed under %q", clause, notYet)
		}
	}
	for _, clause := range slices.Concat(whole, partly) {
		if !slices.Contains(order, clause) {
			wrong("%s: is listed under %q, and there is no such clause", clause, notYet)
		}
	}
	for _, clause := range partly {
		if !has[clause] {
			wrong("%s: is not promised in part only: it has no heading", clause)
		}
	}

	for _, g := range promised {
		if len(g.tests) == 0 {
			wrong("%s: no test shows it", g.clause)
		}
		for _, name := range g.tests {
			if !slices.Contains(tests, name) {
				wrong("%s: there is no test %s", g.clause, name)
			}
		}
		if len(g.bugs) == 0 && (withBugs[g.clause] || g.otherwise == "") {
			wrong("%s: nothing says under which bug its tests fail", g.clause)
		}
		for _, name := range g.bugs {
			i := slices.IndexFunc(bugs, func(b sabotage.Bug) bool { return b.Name == name })
			switch {
			case i < 0:
				wrong("%s: there is no bug %s in internal/sabotage", g.clause, name)
			case !slices.Contains(bugs[i].Clauses, g.clause):
				wrong("%s: the bug %s says that it breaks %v", g.clause, name, bugs[i].Clauses)
			}
		}
	}
	for _, b := range bugs {
		for _, clause := range b.Clauses {
			if !has[clause] {
				wrong("the bug %s breaks %s, which is not promised", b.Name, clause)
			}
		}
	}
	for _, name := range tests {
		if of := clauseOfTest.FindStringSubmatch(name); of != nil && !slices.Contains(order, of[1]) {
			wrong("the test %s is of %s, and there is no such clause", name, of[1])
		}
	}
	return append(problems, linkProblems(text, page)...)
}

// parseGuarantees reads the document: its clauses, and those that are listed as
// not promised.
func parseGuarantees(text string, wrong func(format string, args ...any)) (promised []guarantee, whole, partly []string) {
	missing := false
	// An entry of a list goes on in the lines that are indented.
	for _, line := range strings.Split(regexp.MustCompile(`\n +`).ReplaceAllString(text, " "), "\n") {
		var g *guarantee
		if len(promised) > 0 {
			g = &promised[len(promised)-1]
		}
		names := codeSpan.FindAllStringSubmatch(line, -1)
		switch heading := clauseHeading.FindStringSubmatch(line); {
		case heading != nil && missing:
			wrong("%s: comes after %q", heading[1], notYet)
		case heading != nil:
			promised = append(promised, guarantee{clause: heading[1]})
		case strings.HasPrefix(line, "### "):
			wrong("the heading %q does not begin with a clause", line)
		case strings.HasPrefix(line, "## "):
			missing = line == notYet
		case missing && strings.HasPrefix(line, "- "):
			switch entry := missingEntry.FindStringSubmatch(line); {
			case entry == nil:
				wrong("%q under %q does not say which clause is missing, and whether whole or in part", line, notYet)
			case entry[2] == "whole":
				whole = append(whole, entry[1])
			default:
				partly = append(partly, entry[1])
			}
		case g == nil || missing:
		case strings.HasPrefix(line, shownBy):
			for _, name := range names {
				g.tests = append(g.tests, name[1])
			}
		case strings.HasPrefix(line, failsUnder):
			for _, name := range names {
				if bugName.MatchString(name[1]) {
					g.bugs = append(g.bugs, name[1])
				}
			}
			g.otherwise = strings.Trim(codeSpan.ReplaceAllString(line[len(failsUnder):], ""), " ,.")
		}
	}
	return promised, whole, partly
}

// linkProblems says which rows of the page's table do not point into the
// document, and which of its links point nowhere.
func linkProblems(text, page string) (problems []string) {
	anchors := make(map[string]bool)
	for _, line := range strings.Split(text, "\n") {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			anchors[docpage.Anchor(heading)] = true
		}
	}
	_, table, _ := strings.Cut(page, "\n"+promisesTable+"\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := 0
	for _, line := range strings.Split(table, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| |") || strings.HasPrefix(line, "| ---") {
			continue
		}
		if rows++; !intoDocument.MatchString(line) {
			problems = append(problems, fmt.Sprintf("%s: this row does not point into GUARANTEES.md: %s", promisesPage, line))
		}
	}
	if rows == 0 {
		problems = append(problems, fmt.Sprintf("%s has no table under %q", promisesPage, promisesTable))
	}
	for _, link := range intoDocument.FindAllStringSubmatch(page, -1) {
		if link[1] != "" && !anchors[link[1]] {
			problems = append(problems, fmt.Sprintf("%s points to GUARANTEES.md#%s, which is no heading", promisesPage, link[1]))
		}
	}
	return problems
}

// guaranteeTests returns the tests and fuzz targets of the workspace, as
// "internal/route.TestX". The names in the root and in contractTests are unqualified.
func guaranteeTests(t *testing.T) []string {
	t.Helper()
	var tests []string
	walk(t, func(name string, d fs.DirEntry) error {
		if base := d.Name(); d.IsDir() && name != "." && (base == "testdata" || base[0] == '.' || base[0] == '_') {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			qualified := f.Name.Name
			if dir := path.Dir(filepath.ToSlash(name)); dir != "." && dir != contractTests {
				qualified = dir + "." + qualified
			}
			tests = append(tests, qualified)
		}
		return nil
	})
	return tests
}

// Each thing that can be wrong with the document is noticed.
func TestGuarantees_WhatIsWrongIsNoticed(t *testing.T) {
	notPromised = []string{"V1", "V2", "V3", "V4", "V5"}
	defer func() { notPromised = nil }()
	var sound strings.Builder
	var bugs []sabotage.Bug
	var tests []string
	sound.WriteString("# Guarantees\n\n## Words\n\n- a list\n")
	for _, p := range promises {
		fmt.Fprintf(&sound, "\n## %s\n", p.letter)
		for n := range p.clauses {
			clause := fmt.Sprint(p.letter, n+1)
			if slices.Contains(notPromised, clause) {
				continue
			}
			test := "internal/x.Test" + clause + "_X"
			tests = append(tests, test, "Test"+clause+"_Y")
			fmt.Fprintf(&sound, "\n### %s A promise\n\nText with `Code`.\n\n- Shown by: `%s`,\n  `Test%s_Y`\n", clause, test, clause)
			if p.bugs {
				bugs = append(bugs, sabotage.Bug{Name: clause + "-it-breaks", Clauses: []string{clause}})
				fmt.Fprintf(&sound, "- Fails under: `%s-it-breaks`\n", clause)
			} else {
				sound.WriteString("- Fails under: without the code\n")
			}
		}
	}
	sound.WriteString("\n## Not promised yet\n\nThese:\n\n- **V1**, whole: x,\n  and y\n- **E3**, in part: x\n- **V2**, whole: x\n- **V3**, whole: x\n- **V4**, whole: x\n- **V5**, whole: x\n")
	const page = "\n## What you get\n\n| | |\n| --- | --- |\n| [a](../GUARANTEES.md#e1-a-promise) | b |\n\n## More\n\n[c](../GUARANTEES.md)\n"
	require.Empty(t, guaranteeProblems(sound.String(), page, tests, bugs))

	d3 := "### D3 A promise\n\nText with `Code`.\n\n- Shown by: `internal/x.TestD3_X`,\n  `TestD3_Y`\n- Fails under: `D3-it-breaks`\n"
	for _, c := range []struct{ from, to, want string }{
		{d3, "", "D3: has no heading"},
		{"### D3 ", "### D30 ", "D30: there is no such clause"},
		{"### D3 ", "### ", "does not begin with a clause"},
		{"### D3 ", "### D4 ", "D4: has two headings"},
		{"### D3 ", "### D5 ", "D4: comes after D5"},
		{"`internal/x.TestD3_X`,\n  `TestD3_Y`", "x", "D3: no test shows it"},
		{"`internal/x.TestD3_X`", "`TestD3_X`", "D3: there is no test TestD3_X"},
		{"`TestD3_Y`", "`TestD3_Z`", "D3: there is no test TestD3_Z"},
		{"`D3-it-breaks`", "by hand", "D3: nothing says under which bug"},
		{"- Fails under: `D3-it-breaks`\n", "", "D3: nothing says under which bug"},
		{"`TestE3_Y`\n- Fails under: without the code", "`TestE3_Y`", "E3: nothing says under which bug"},
		{"`D3-it-breaks`", "`D3-it-breaks`, `D3-other`", "D3: there is no bug D3-other"},
		{"`D3-it-breaks`", "`D3-it-breaks`, `C2-it-breaks`", "D3: the bug C2-it-breaks says that it breaks [C2]"},
		{"- **V1**, whole: x,\n  and y\n", "", "V1: is neither promised nor listed"},
		{"- **V1**, whole: x,", "- V1: x,", "does not say which clause is missing"},
		{"- **V1**", "- **P8**, whole: x\n- **V1**", "P8: is promised, and listed as not promised"},
		{"- **E3**, in part", "- **V1**, in part", "V1: is not promised in part only"},
		{"- **E3**", "- **E30**", "E30: is listed under"},
		{"## Not promised yet", "## Not yet", "V1: is neither promised nor listed"},
		{"- **E3**, in part: x\n", "- **E3**, in part: x\n\n### V1 A promise\n", "V1: comes after"},
		{"# Guarantees", "# Guarantees\n\n### E1 A promise", "E1: has two headings"},
	} {
		broken := strings.Replace(sound.String(), c.from, c.to, 1)
		require.NotEqual(t, sound.String(), broken, c.from)
		require.Contains(t, strings.Join(guaranteeProblems(broken, page, tests, bugs), "\n"), c.want, "%q instead of %q", c.to, c.from)
	}
	for _, c := range []struct{ from, to, want string }{
		{"#e1-a-promise", "#e1", "GUARANTEES.md#e1, which is no heading"},
		{"[a](../GUARANTEES.md#e1-a-promise)", "a", "does not point into"},
		{"GUARANTEES.md)", "GUARANTEES.md#nowhere)", "GUARANTEES.md#nowhere, which is no heading"},
		{"## What you get", "## What", "no table"},
	} {
		broken := strings.Replace(page, c.from, c.to, 1)
		require.NotEqual(t, page, broken, c.from)
		require.Contains(t, strings.Join(guaranteeProblems(sound.String(), broken, tests, bugs), "\n"), c.want, "%q instead of %q", c.to, c.from)
	}
	of := func(tests []string, bugs []sabotage.Bug) string {
		return strings.Join(guaranteeProblems(sound.String(), page, tests, bugs), "\n")
	}
	require.Contains(t, of(append(tests, "internal/x.TestS30_X"), bugs), "the test internal/x.TestS30_X is of S30, and there is no such clause")
	require.Empty(t, of(append(tests, "TestS3_X", "TestA8_X", "TestX"), bugs))
	require.Contains(t, of(tests, append(bugs, sabotage.Bug{Name: "D3-x", Clauses: []string{"D3", "V1"}})), "the bug D3-x breaks V1, which is not promised")
}

func TestGuarantees_Anchors(t *testing.T) {
	for heading, want := range map[string]string{
		" D7 Acceptance and waiting":     "d7-acceptance-and-waiting",
		"C5 What is skipped, and `held`": "c5-what-is-skipped-and-held",
		"E6 An id's life (100,000)":      "e6-an-ids-life-100000",
	} {
		require.Equal(t, want, docpage.Anchor(heading))
	}
}
