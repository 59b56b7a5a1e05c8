package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

func parse(t *testing.T, text string) *strictjson.Node {
	t.Helper()
	root, problems, more := strictjson.Parse([]byte(text), strictjson.Limits{})
	require.Empty(t, problems)
	require.Zero(t, more)
	require.NotNil(t, root)
	return root
}

func TestParseKeepsValues(t *testing.T) {
	root := parse(t, ` {"a":[null,true,false,-0.5e1,"x\u0041\n\ud83d\ude00é\/"],"":{},"b":[]} `)
	require.Equal(t, map[string]any{
		"a": []any{nil, true, false, -5.0, "xA\n😀é/"},
		"":  map[string]any{},
		"b": []any{},
	}, root.Value())
	require.Equal(t, "-0.5e1", root.Member("a").Items[3].Text)
	require.Nil(t, root.Member("c"))
	require.Equal(t, `[null,true,false,-0.5e1,"x\u0041\n\ud83d\ude00é\/"]`, string(root.Member("a").Source()))
}

func TestParseKeepsTheOrderOfMembers(t *testing.T) {
	var names []string
	for _, m := range parse(t, `{"z":1,"a":2,"m":3}`).Members {
		names = append(names, m.Name)
	}
	require.Equal(t, []string{"z", "a", "m"}, names)
}

func TestNodesKnowTheirPlace(t *testing.T) {
	root := parse(t, "{\"é/~\": [1,\r\n  \"ä\", {\"x\": \n true}]}")
	items := root.Member("é/~").Items
	for _, c := range []struct {
		node         *strictjson.Node
		pointer      string
		line, column int
	}{
		{root, "", 1, 1},
		{root.Member("é/~"), "/é~1~0", 1, 9},
		{items[0], "/é~1~0/0", 1, 10},
		{items[1], "/é~1~0/1", 2, 3},
		{items[2], "/é~1~0/2", 2, 8},
		{items[2].Member("x"), "/é~1~0/2/x", 3, 2},
	} {
		require.Equal(t, c.pointer, c.node.Pointer())
		line, column := c.node.Position()
		require.Equal(t, []int{c.line, c.column}, []int{line, column}, c.pointer)
	}
	line, column := root.PositionAt(root.Members[0].NameOffset)
	require.Equal(t, []int{1, 2}, []int{line, column})
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		text, pointer string
		line, column  int
		message       string
		remedy        string
		readable      bool // a tree is returned all the same
	}{
		{"", "", 1, 1, "the document is empty", "JSON value", false},
		{" \n ", "", 2, 2, "the document is empty", "JSON value", false},
		{"\ufeff{}", "", 1, 1, "byte order mark", "without", false},
		{"{} x", "", 1, 4, "'x' follows the end of the document", "delete it", false},
		{"{}{}", "", 1, 3, "'{' follows the end of the document", "delete it", false},
		{`{"a":1,}`, "", 1, 8, "ends after a comma", "delete the comma", false},
		{`[1,]`, "", 1, 4, "ends after a comma", "delete the comma", false},
		{`[1 2]`, "", 1, 4, "'2' follows an element", "commas", false},
		{`{"a":1 "b":2}`, "", 1, 8, `'"' follows a member`, "commas", false},
		{`{"a" 1}`, "/a", 1, 6, `'1' follows the name "a"`, "colon", false},
		{`{a:1}`, "", 1, 2, "'a' stands where a member's name should", "double quotes", false},
		{`{"a":1, // one` + "\n}", "", 1, 9, "'/' stands", "no comments", false},
		{`[1, /* one */ 2]`, "/1", 1, 5, "'/' stands", "no comments", false},
		{`{"a":'x'}`, "/a", 1, 6, `'\''`, "double quotes", false},
		{`{"a":True}`, "/a", 1, 6, "'T' stands", "true, false and null", false},
		{`{"a":nul}`, "/a", 1, 6, "'n' stands", "true, false and null", false},
		{`{"a":NaN}`, "/a", 1, 6, "'N' stands", "true, false and null", false},
		{`{"a":`, "/a", 1, 6, "the end of the document stands", "write an object", false},
		{`{"a":+1}`, "/a", 1, 6, "'+' stands", "delete the sign", false},
		{`{"a":.5}`, "/a", 1, 6, "'.' stands", "before the point", false},
		{`{"a":01}`, "/a", 1, 6, "begins with a zero", "delete the zero", false},
		{`{"a":-}`, "/a", 1, 6, "minus sign is followed by '}'", "digit", false},
		{`{"a":1.}`, "/a", 1, 6, "point is followed by '}'", "digit", false},
		{`{"a":1e+}`, "/a", 1, 6, "exponent has no digit", "digit", false},
		{`{"a":1e400}`, "/a", 1, 6, "the number 1e400 is beyond", "as a string", true},
		{`{"a":"x` + "\n" + `"}`, "/a", 1, 8, "control character 0x0a", "close the string", false},
		{`{"a":"x` + "\x00" + `"}`, "/a", 1, 8, "control character 0x00", `\u0000`, false},
		{`{"a":"x`, "/a", 1, 6, "does not end", "close it", false},
		{`{"a":"\x"}`, "/a", 1, 7, "backslash is followed by 'x'", `write a backslash as \\`, false},
		{`{"a":"\u12"}`, "/a", 1, 7, "four hexadecimal digits", "write four", false},
		{"{\"\xe6\" 1}", "", 1, 3, "0xe6, which is not valid UTF-8", "UTF-8", false},
		{`{"a":"\ud800"}`, "/a", 1, 7, "lone surrogate", "both halves", true},
		{`{"a":"\udc00\ud800"}`, "/a", 1, 7, "lone surrogate", "both halves", true},
		{`{"a":"` + "\xff" + `"}`, "/a", 1, 7, "0xff, which is not valid UTF-8", "UTF-8", true},
		{"{\n\"a\":1,\n\"a\":2}", "/a", 3, 1, `the name "a" repeats within the object; it stands in line 2 already`, "keep one", true},
		{`{"a":1,"\u0061":2}`, "/a", 1, 8, `"a" repeats`, "keep one", true},
		{"\xff", "", 1, 1, "the byte 0xff stands", "write an object", false},
	} {
		root, problems, more := strictjson.Parse([]byte(c.text), strictjson.Limits{})
		require.NotEmpty(t, problems, c.text)
		require.Zero(t, more)
		p := problems[0]
		require.Equal(t, []any{c.pointer, c.line, c.column}, []any{p.Pointer, p.Line, p.Column}, c.text)
		require.Contains(t, p.Message, c.message, c.text)
		require.Contains(t, p.Remedy, c.remedy, c.text)
		require.Equal(t, c.readable, root != nil, c.text)
	}
}

func TestParseReportsAllThatItCanRead(t *testing.T) {
	text := `{"a":1,"a":{"b":1e999,"b":"\ud800"},"c":[1e999],"d"}`
	_, problems, more := strictjson.Parse([]byte(text), strictjson.Limits{})
	require.Zero(t, more)
	var pointers []string
	for _, p := range problems {
		pointers = append(pointers, p.Pointer)
	}
	require.Equal(t, []string{"/a", "/a/b", "/a/b", "/a/b", "/c/0", "/d"}, pointers)

	_, problems, more = strictjson.Parse([]byte(text), strictjson.Limits{Problems: 3})
	require.Equal(t, 3, more)
	require.Len(t, problems, 3)
	require.Contains(t, problems[2].Error(), `line 1, column 52: '}' follows the name "d"; put a colon`, "what ended the reading is never left out")
}

func TestRepeatedNamesOfLargeObjects(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		b.WriteString(`"n` + strconv.Itoa(i) + `":` + strconv.Itoa(i) + ",")
	}
	for _, repeated := range []string{"n0", "n7", "n8", "n9", "n39"} {
		root, problems, _ := strictjson.Parse([]byte("{"+b.String()+`"`+repeated+`":-1}`), strictjson.Limits{})
		require.Len(t, problems, 1)
		require.Equal(t, "/"+repeated, problems[0].Pointer)
		require.Len(t, root.Members, 40)
		require.GreaterOrEqual(t, root.Member(repeated).Number, 0.0, "the first one is kept")
	}
}

func TestLimits(t *testing.T) {
	nested := func(depth int) []byte {
		return []byte(strings.Repeat(`[`, depth-1) + "{}" + strings.Repeat(`]`, depth-1))
	}
	root, problems, _ := strictjson.Parse(nested(7), strictjson.Limits{Depth: 7})
	require.Empty(t, problems)
	require.NotNil(t, root)
	root, problems, _ = strictjson.Parse(nested(8), strictjson.Limits{Depth: 7})
	require.Nil(t, root)
	require.Contains(t, problems[0].Message, "deeper than the limit of 7")
	require.Equal(t, "/0/0/0/0/0/0/0", problems[0].Pointer)

	for _, none := range []int{0, -1, 1 << 30} {
		_, problems, _ = strictjson.Parse(nested(10_000), strictjson.Limits{Depth: none})
		require.Empty(t, problems)
		_, problems, _ = strictjson.Parse(nested(10_001), strictjson.Limits{Depth: none})
		require.Contains(t, problems[0].Message, "deeper than the limit of 10000")
	}

	root, problems, _ = strictjson.Parse([]byte("[1,2]"), strictjson.Limits{Bytes: 5})
	require.Empty(t, problems)
	require.NotNil(t, root)
	root, problems, _ = strictjson.Parse([]byte("[1,2] "), strictjson.Limits{Bytes: 5})
	require.Nil(t, root)
	require.Contains(t, problems[0].Message, "has 6 bytes, more than the limit of 5")
}

func TestNumbersAreExactOrSaidNotToBe(t *testing.T) {
	for text, exact := range map[string]bool{
		"0": true, "-0": true, "0.0e-9999999999999": true, "0e9999999999999": true,
		"1": true, "1.50": true, "15e-1": true, "0.1": true, "1e23": true,
		"9007199254740992": true, "9007199254740993": false, "9007199254740994": true,
		"1152921504606846976": true, "1152921504606847000": true, "1152921504606846977": false,
		"0.1000000000000000055511151231257827021181583404541015625": true, // the float64 itself
		"0.10000000000000000555":                                    false,
		"1.7976931348623157e308":                                    true, "5e-324": true, "4e-324": false, "1e-400": false, "1e-9999999999999": false,
	} {
		n := parse(t, text)
		require.Equal(t, exact, n.Exact, text)
		want, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(want), math.Float64bits(n.Number), text)
	}
}

// FuzzParse compares with encoding/json, which accepts more: what this package
// refuses besides must be for one of its reasons.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-2.5e+3,"x\ud83d\ude00",null,true,false,{}]}`, `[[[[[]]]]]`, `{"a":1,"\u0061":2}`,
		`"\ud800"`, "\"\xff\"", `1e999`, `01`, `[1,]`, `{"a":1,}`, ` "\/" `, "\ufeff1", `"\u00zz"`, `9007199254740993`, `-`, `tru`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := strictjson.Limits{Bytes: 1 << 16, Depth: 64, Problems: 5}
		root, problems, more := strictjson.Parse(data, limits)
		again, problemsAgain, moreAgain := strictjson.Parse(data, limits)
		require.Equal(t, problems, problemsAgain)
		require.Equal(t, more, moreAgain)
		require.Equal(t, root == nil, again == nil)
		require.LessOrEqual(t, len(problems), 5)
		if len(data) > 1<<16 {
			require.Nil(t, root)
			return
		}
		for i, p := range problems {
			require.NotEmpty(t, p.Message)
			require.NotEmpty(t, p.Remedy)
			require.True(t, utf8.ValidString(p.Pointer+p.Message+p.Source), "%q", p)
			if i > 0 {
				require.GreaterOrEqual(t, p.Line, problems[i-1].Line)
			}
		}
		repeats, depth, readable := look(data)
		if !readable {
			require.NotEmpty(t, problems)
			return
		}
		if depth > 64 {
			require.Nil(t, root)
			return
		}
		require.NotNil(t, root, "%v", problems)
		odd := repeats || !utf8.Valid(data) || loneSurrogate(data) || outOfRange(data)
		require.Equal(t, odd, len(problems) > 0, "%v", problems)
		if !odd {
			require.Equal(t, slowDecode(t, data), root.Value())
			check(t, root)
		}
	})
}

// look reads data with encoding/json.
func look(data []byte) (repeats bool, depth int, readable bool) {
	if !json.Valid(data) {
		return false, 0, false
	}
	type level struct {
		names  map[string]bool
		isName bool
	}
	var levels []level
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return repeats, depth, true
		}
		if err != nil {
			return false, 0, false
		}
		var top *level
		if len(levels) > 0 {
			top = &levels[len(levels)-1]
		}
		if delim, ok := token.(json.Delim); ok && (delim == '}' || delim == ']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if top != nil && top.names != nil {
			if top.isName {
				name := token.(string)
				repeats = repeats || top.names[name]
				top.names[name] = true
			}
			top.isName = !top.isName
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}, isName: true})
		case json.Delim('['):
			levels = append(levels, level{})
		}
		depth = max(depth, len(levels))
	}
}

// loneSurrogate looks for the replacement character in what encoding/json makes
// of the strings that do not have it.
func loneSurrogate(data []byte) bool {
	var count func(v any) int
	count = func(v any) int {
		n := 0
		switch v := v.(type) {
		case string:
			n = strings.Count(v, "\ufffd")
		case []any:
			for _, item := range v {
				n += count(item)
			}
		}
		return n
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	got := 0
	for {
		token, err := d.Token()
		if err != nil {
			break
		}
		got += count(token)
	}
	written := strings.Count(string(data), "\ufffd") + strings.Count(strings.ToLower(strings.ReplaceAll(string(data), `\\`, "")), `\ufffd`)
	return got > written
}

func outOfRange(data []byte) bool {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return false
		}
		if number, ok := token.(json.Number); ok {
			if _, err := number.Float64(); err != nil {
				return true
			}
		}
	}
}

func slowDecode(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal(data, &v))
	return v
}

// check compares every node with its source.
func check(t *testing.T, n *strictjson.Node) {
	t.Helper()
	require.Equal(t, slowDecode(t, n.Source()), n.Value(), n.Pointer())
	if n.Kind == strictjson.Number && len(n.Text) < 30 && n.Number != 0 {
		written, ok := new(big.Rat).SetString(n.Text)
		require.True(t, ok, n.Text)
		short, ok := new(big.Rat).SetString(strconv.FormatFloat(n.Number, 'g', -1, 64))
		require.True(t, ok)
		same := written.Cmp(new(big.Rat).SetFloat64(n.Number)) == 0 || written.Cmp(short) == 0
		require.Equal(t, same, n.Exact, n.Text)
	}
	for _, item := range n.Items {
		check(t, item)
	}
	for _, m := range n.Members {
		check(t, m.Value)
	}
}
