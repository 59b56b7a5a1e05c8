package route_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/race"
	"github.com/surebus/eventbus/internal/route"
)

func forbidden(r rune) bool {
	return strings.ContainsRune(`*?[]{}\`, r) || unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
}

func TestE2_TypesAreDotSeparatedSegmentsWithoutMetacharacters(t *testing.T) {
	for _, typ := range []string{
		"a", "order.placed", "order-1.x_y", "!a.b,c", "日本.注文", "é", "\ufffd", "a^b",
		strings.Repeat("a", 255), strings.Repeat("a.", 127) + "a",
	} {
		require.Nil(t, route.CheckType(typ), "%q", typ)
	}
	for _, c := range []struct {
		typ    string
		offset int
		reason string
	}{
		{"", 0, "empty"},
		{strings.Repeat("a", 256), 255, "longer than 255"},
		{".a", 0, "at the beginning"},
		{"a..b", 2, "one of the two dots"},
		{"a.", 1, "dot at the end"},
		{".", 0, "segment is empty"},
		{"a.*", 2, "'*'"},
		{"a?", 1, "'?'"},
		{"[a", 0, "'['"},
		{"a]", 1, "']'"},
		{"{a", 0, "'{'"},
		{"a}", 1, "'}'"},
		{`a\b`, 1, `'\\'`},
		{"a b", 1, "white space"},
		{"é\u00a0", 2, "white space"},
		{"a\u2028", 1, "white space"},
		{"a\tb", 1, "white space"},
		{"a\x00", 1, "control characters"},
		{"a\x7f", 1, "control characters"},
		{"a\u0085b", 1, "white space"},
		{"a\u200bb", 1, "invisible"},
		{"\ufeffa", 0, "invisible"},
		{"a\xff", 1, "UTF-8"},
		{"a\xed\xa0\x80", 1, "UTF-8"},
	} {
		off := route.CheckType(c.typ)
		require.NotNil(t, off, "%q", c.typ)
		require.Equal(t, c.offset, off.Offset, "%q: %v", c.typ, off)
		require.Contains(t, off.Error(), c.reason, "%q", c.typ)
	}
}

// Eight bytes at once or one after the other, whatever they are and wherever.
func TestE2_EveryByteIsCheckedWhereverItIs(t *testing.T) {
	for n := 1; n <= 25; n++ {
		for at := range n {
			typ := []byte(strings.Repeat("k", n))
			for c := range 256 {
				for _, next := range []byte{'k', '.', byte(c)} {
					typ[at] = byte(c)
					if at+1 < n {
						typ[at+1] = next
					}
					if off := route.CheckType(string(typ)); validType(string(typ)) != (off == nil) {
						t.Fatalf("CheckType(%q) = %v", typ, off)
					}
				}
			}
		}
	}
}

func TestE2_CheckingAValidTypeAllocatesNothing(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = route.CheckType("order.eu.placed")
		_ = route.CheckType("日本.注文")
	}))
}

// long70 is longer than what the index looks at of a segment.
var long70 = strings.Repeat("0123456789", 7)

func TestR1_Grammar(t *testing.T) {
	for _, c := range []struct{ pattern, matches, not string }{
		{"order.placed", "order.placed", "order order.place order.placed.x orderxplaced Order.placed"},
		{"order.*.shipped", "order.123.shipped", "order.shipped order.1.2.shipped"},
		{"user.*", "user.a", "user user.a.b users.a"},
		{"*.*", "a.b", "a a.b.c"},
		{"user.cre*", "user.cre user.created", "user.xcre user.cr user.created.x"},
		{"*ed", "placed ed", "placed.x edx x.placed"},
		{"a*b", "ab axb aab", "a.b abx ba"},
		{"a*b*c", "abc axbxc abbc", "acb a.b.c abcd"},
		{"*a*", "a xax", "x x.a"},
		{"a.**", "a a.b a.b.c", "b ab b.a"},
		{"**.z", "z a.z a.b.z", "a az z.a"},
		{"a.**.z", "a.z a.b.z a.b.c.z", "a z a.zz az a.z.b"},
		{"**", "a a.b a.b.c", ""},
		{"**.**", "a a.b", ""},
		{"**.*", "a a.b a.b.c", ""},
		{"*.**.*", "a.b a.b.c", "a"},
		{"**.a.**.b.**", "a.b x.a.x.b.x a.a.b.b", "b.a a b x.a.x"},
		{"?", "a é 日", "ab a.b"},
		{"a?c", "abc aéc", "ac abbc a.c"},
		{"x.?.y", "x.1.y", "x.12.y x.y"},
		{"[ab]", "a b", "c ab"},
		{"[!ab]", "c é -", "a b cc"},
		{"[a-c]x", "ax bx cx", "dx x"},
		{"[a-z0-9_]", "q 5 _", "A - é"},
		{"[!a-z0-9]", "A - é", "q 5"},
		{"[a-zA-Z]*", "Ab z", "1a"},
		{"[a-]", "a -", "b"},
		{"[-a]", "a -", "b"},
		{"[!-]", "a", "-"},
		{"[!!]", "a", "!"},
		{"[a!]", "a !", "b"},
		{"[!!-#]", "a", "! #"},
		{"[+-9a]", "+ - 5 a", "b"},
		{"[a,b]", "a , b", "c"},
		{"[,-]", ", -", "a"},
		{"[!+-]", "a", "+ -"},
		{long70 + "*", long70 + "q " + long70, long70[1:]},
		{"*" + long70, "q" + long70 + " " + long70, long70[1:]},
		{"[а-яё]", "ж ё", "z"},
		{"[一-龥]", "注", "a"},
		{"v[0-9].*", "v1.x", "vx.x v12.x"},
		{"{a,b}", "a b", "c ab a,b"},
		{"order.{placed,shipped.eu}", "order.placed order.shipped.eu", "order.shipped order.eu"},
		{"{a,b{c,d}}.x", "a.x bc.x bd.x", "b.x bcd.x"},
		{"a{,b}", "a ab", "b abb"},
		{"{a.,}b", "a.b b", "a ab"},
		{"{**,x}.z", "z a.b.z x.z", "x"},
		{"{[a,b],c}", "a b , c", "d"},
		{"{*,a.b}", "x a.b", "x.y"},
		{"{a}", "a", "b"},
		{"a,b", "a,b", "a b"},
		{"{a,a,a}", "a", "b"},
	} {
		p := mustParse(t, c.pattern)
		require.Equal(t, c.pattern, p.String())
		for typ := range strings.FieldsSeq(c.matches) {
			requireMatch(t, p, typ, true)
		}
		for typ := range strings.FieldsSeq(c.not) {
			requireMatch(t, p, typ, false)
		}
	}
}

// requireMatch asks the pattern, a table that holds only it, and the oracle.
func requireMatch(t *testing.T, p *route.Pattern, typ string, want bool) {
	t.Helper()
	require.Equal(t, want, p.Match(typ), "Match(%q, %q)", p, typ)
	table := newTable()
	s := &sub{p.String()}
	table.Add(p, s)
	if want {
		require.Equal(t, []*sub{s}, table.Lookup(typ).subs, "Table(%q, %q)", p, typ)
	} else {
		require.Empty(t, table.Lookup(typ).subs, "Table(%q, %q)", p, typ)
	}
	if match, ok := oracle(p.String(), typ); ok {
		require.Equal(t, want, match, "oracle(%q, %q)", p, typ)
	}
}

func TestR2_TheStarAloneAndTheEmptyPatternMatchEveryType(t *testing.T) {
	for _, pattern := range []string{"", "*"} {
		for _, typ := range []string{"a", "a.b", "a.b.c", strings.Repeat("a.", 127) + "a"} {
			requireMatch(t, mustParse(t, pattern), typ, true)
		}
	}
}

func TestR3_ABadPatternIsRefusedWithReasonAndOffset(t *testing.T) {
	for _, c := range []struct {
		pattern string
		offset  int
		reason  string
	}{
		{".a", 0, "dot at the beginning"},
		{"a..b", 2, "one of the two dots"},
		{"a.", 1, "dot at the end"},
		{".", 0, "segment is empty"},
		{"a b", 1, "white space"},
		{"{a, b}", 3, "white space"},
		{"a\x01", 1, "control"},
		{"a\u200b", 1, "invisible"},
		{"a\xffb", 1, "UTF-8"},
		{`a\*`, 1, "backslash"},
		{strings.Repeat("a", 1025), 1024, "longer than 1024"},
		{"a**b", 1, "whole segment"},
		{"a.b**", 3, "whole segment"},
		{"***", 0, "whole segment"},
		{"{a*,b}*", 6, "two stars meet"},
		{"*{,b}*", 5, "two stars meet"},
		{"{*,b}*", 5, "two stars meet"},
		{"[", 1, "not closed"},
		{"a.[bc", 5, "not closed"},
		{"[a-", 3, "not closed"},
		{"[]", 0, "class is empty"},
		{"[!]", 0, "class is empty"},
		{"[z-a]", 1, "reversed: write a-z"},
		{"[0-9.]", 4, "dot"},
		{"[.-9]", 1, "dot"},
		{"[^a]", 1, "[!"},
		{"[[a]", 1, "'['"},
		{"[a*]", 2, "'*'"},
		{"[*-z]", 1, "'*'"},
		{"a]", 1, "no ["},
		{"a}", 1, "no {"},
		{"{a,b", 4, "not closed"},
		{"{a,{b}", 6, "not closed"},
		{"{a,[b}", 5, "'}'"},
		{"a.{,b}", 1, "segment after this dot"},
		{"{,b}.a", 4, "segment before this dot"},
		{"x.{a,}.y", 6, "segment before this dot"},
		{"{.a,b}", 1, "segment before this dot"},
		{"{,a}", 0, "the pattern is empty"},
		{"{}", 0, "the pattern is empty"},
		{"{a,b}{c,d}{e,f}{g,h}{i,j}{k,l}{m,n}", 30, "more than 64"},
		{"{" + strings.Repeat("a,", 64) + "a}", 0, "more than 64"},
		{strings.Repeat("{a,aa}", 100), 36, "more than 64"},
		{"[一-龥a]", 0, "more than 256"},
		{strings.Repeat("{a,b}", 6) + strings.Repeat("[a-z0-9]", 30), 238, "written out"},
	} {
		p, off := route.Parse(c.pattern)
		require.NotNil(t, off, "%q", c.pattern)
		require.Nil(t, p)
		require.Equal(t, c.offset, off.Offset, "%q: %v", c.pattern, off)
		require.Contains(t, off.Reason, c.reason, "%q", c.pattern)
	}
}

func TestR1_SixtyFourAlternativesAreAccepted(t *testing.T) {
	p := mustParse(t, strings.Repeat("{a,b}", 6))
	requireMatch(t, p, "ababab", true)
	requireMatch(t, p, "ababa", false)
}

// Each of these takes longer than the universe has if anything in it backtracks
// without bound, so that the test need not look at a clock.
func TestR1_HostilePatternsTakePolynomialTime(t *testing.T) {
	many := strings.Repeat("a.", 127) + "a"
	long := strings.Repeat("a", 255)
	for _, c := range []struct {
		pattern, typ string
		want         bool
	}{
		{strings.Repeat("**.a.", 60) + "b", many, false},
		{strings.Repeat("**.a.", 60) + "**", many, true},
		{strings.Repeat("**.?.", 60) + "*b", many, false},
		{strings.Repeat("**.*.", 100) + "b", many, false},
		{strings.Repeat("**.a*.*a.", 60) + "b", many, false},
		{strings.Repeat("*a", 200) + "*b", long, false},
		{strings.Repeat("*a", 200) + "*b*", long, false},
		{strings.Repeat("*a", 200) + "*", long, true},
		{strings.Repeat("*?", 200) + "b", long, false},
		{strings.Repeat("*[ab]", 120) + "[!a]", long, false},
		{strings.Repeat("*[a-c0-9]", 100) + "?c", long, false},
		{"{" + strings.Repeat("*a", 100) + "b," + strings.Repeat("*?", 100) + "c}", long, false},
	} {
		p := mustParse(t, c.pattern)
		require.Equal(t, c.want, p.Match(c.typ), c.pattern)
		table := newTable()
		table.Add(p, &sub{})
		require.Len(t, table.Lookup(c.typ).subs, map[bool]int{true: 1}[c.want], c.pattern)
	}
	// Nested braces without end are refused before they are written out.
	_, off := route.Parse(strings.Repeat("{", 1024))
	require.NotNil(t, off)
	_, off = route.Parse(strings.Repeat("{a,b", 204) + strings.Repeat("}", 204))
	require.NotNil(t, off)
}

func TestR1_MatchAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector empties gobwas/glob's pool at random")
	}
	p := mustParse(t, "{order.*,user.**.cre*ed,a*b*[0-9x].?}")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = p.Match("order.placed")
		_ = p.Match("user.a.b.created")
		_ = p.Match("axbxb7.q")
		_ = p.Match("nothing.of.that")
	}))
}

func FuzzCheckType(f *testing.F) {
	for _, typ := range []string{"", "a", "a.b", "a..b", ".a", "a.", "a*", "\xff", "\u200b", "a b", "a\x00", "日本", "\ufffd", strings.Repeat("a", 256)} {
		f.Add(typ)
	}
	f.Fuzz(func(t *testing.T, typ string) {
		off := route.CheckType(typ)
		if validType(typ) != (off == nil) {
			t.Fatalf("CheckType(%q) = %v", typ, off)
		}
		if off != nil && (off.Offset < 0 || off.Offset > len(typ) || off.Reason == "") {
			t.Fatalf("CheckType(%q) blames byte %d: %v", typ, off.Offset, off)
		}
	})
}

var nastyPatterns = []string{
	"", "*", "**", "***", "*.**", "a.**.b", "**.a.**", "a*b", "?", "[a-z]", "[!a-z0-9]", "[a-]", "[-a]", "[!-]", "[!!-]", "[--9]", "[]a]",
	"{a,b}", "{a,b{c,}}", "{a.,}b", "{**,a}.*", "{*,a}*", "a{,.b}", "[a,b]{c,[d,e]}", "{a.{b.{c,d},},e}", "{{a}}", "{a,b}{c,d}",
	`\`, "]", "}", ",", "a,b", "[+-9a]", "[ab!]", "日*?", "\xff", "a b", "{", "[", "x.{**,y}.{z,**}", "**.{a,**.b}",
}

func FuzzParse(f *testing.F) {
	for _, pattern := range nastyPatterns {
		f.Add(pattern)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		p, off := route.Parse(pattern)
		switch {
		case (p == nil) == (off == nil):
			t.Fatalf("Parse(%q) = %v, %v", pattern, p, off)
		case off != nil:
			if off.Offset < 0 || off.Offset > len(pattern) || off.Reason == "" {
				t.Fatalf("Parse(%q) blames byte %d: %v", pattern, off.Offset, off)
			}
		case p.String() != pattern:
			t.Fatalf("Parse(%q).String() = %q", pattern, p)
		case validType(pattern):
			if !p.Match(pattern) {
				t.Fatalf("the type %q does not match itself", pattern)
			}
		}
	})
}

func FuzzMatch(f *testing.F) {
	for _, pattern := range nastyPatterns {
		for _, typ := range []string{"a", "a.b", "axb", "a.x.b", "b.a.b.a", "-", "!", "5", "日本x", "x.y.z", "a.b.c"} {
			f.Add(pattern, typ)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, typ string) {
		p, off := route.Parse(pattern)
		if off != nil || route.CheckType(typ) != nil {
			return
		}
		want, ok := oracle(pattern, typ)
		got := p.Match(typ)
		if ok && got != want {
			t.Fatalf("Match(%q, %q) = %v, the oracle says %v", pattern, typ, got, want)
		}
		table := newTable()
		remove := subscribe(table, p, &sub{})
		if n := len(table.Lookup(typ).subs); n != map[bool]int{true: 1}[got] {
			t.Fatalf("Match(%q, %q) = %v, but the table yields %d", pattern, typ, got, n)
		}
		remove()
		if len(table.Lookup(typ).subs) != 0 || table.Len() != 0 {
			t.Fatalf("%q is still there after remove", pattern)
		}
	})
}
