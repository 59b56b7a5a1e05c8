package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repository writes files and returns their directory.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return root
}

// good is a repository without problems.
func good() map[string]string {
	return map[string]string{
		"README.md":        "# Bus\n\nSee [the docs](docs/README.md), [code](main.go), [a word](docs/glossary.md#glossary) and [elsewhere](https://example.com).\n\n![life](docs/life.svg)\n\n```go\na()\n```\n",
		"main.go":          "package main\n",
		"docs/README.md":   "# Docs\n\n- [Glossary](glossary.md)\n- [Keys & order](keys.md#keys--order)\n",
		"docs/glossary.md": "# Glossary\n\n| word | meaning | not |\n| --- | --- | --- |\n| `dead letter` | an event that failed | poison message, lost event |\n",
		"docs/keys.md":     "# Keys & order\n\nA key. `poison message` is code.\n\n```go\nb()\n```\n\n```output\nb\n```\n",
		"docs/life.svg":    "<svg/>",
	}
}

func site(t *testing.T, root string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(append([]string{"-C", root}, args...), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestCheck(t *testing.T) {
	code, out, errOut := site(t, repository(t, good()), "-check")
	require.Zero(t, code, errOut)
	require.Equal(t, "4 pages, 2 blocks of code\n", out)
	require.Empty(t, errOut)
}

func TestCheck_Problems(t *testing.T) {
	for name, c := range map[string]struct{ file, text, problem string }{
		"dead link":     {"docs/keys.md", "# Keys & order\n\n[x](gone.md)\n", "docs/keys.md:3: dead link gone.md: there is no docs/gone.md"},
		"dead picture":  {"docs/keys.md", "# Keys & order\n\n![x](gone.svg)\n", "docs/keys.md:3: dead link gone.svg: there is no docs/gone.svg"},
		"no heading":    {"docs/keys.md", "# Keys & order\n\n[x](../README.md#gone)\n", "docs/keys.md:3: dead link ../README.md#gone: README.md has no heading #gone"},
		"word":          {"docs/keys.md", "# Keys & order\n\nSome text,\nand poison\nmessages.\n", "docs/keys.md:3: \"poison\\nmessages\": the glossary's word is \"dead letter\""},
		"word in table": {"docs/keys.md", "# Keys & order\n\n| a |\n| --- |\n| Lost event |\n", "docs/keys.md:5: \"Lost event\": the glossary's word is \"dead letter\""},
		"long page":     {"docs/keys.md", "# Keys & order\n" + strings.Repeat("\n", 150), "docs/keys.md has 151 lines, more than 150: split it"},
		"long home":     {"README.md", "# Bus\n" + strings.Repeat("\n", 200), "README.md has 201 lines, more than 200: split it"},
		"open block":    {"docs/keys.md", "# Keys & order\n\n```go\na()\n", "docs/keys.md: line 3: the block has no end"},
		"unlisted page": {"docs/more.md", "# More\n", "docs/README.md does not list docs/more.md"},
		"no words":      {"docs/glossary.md", "# Glossary\n", "docs/glossary.md forbids no word: its tables have the columns word, meaning, not"},
	} {
		t.Run(name, func(t *testing.T) {
			files := good()
			files[c.file] = c.text
			code, _, errOut := site(t, repository(t, files), "-check")
			require.Equal(t, 1, code)
			require.Equal(t, c.problem+"\nsite: problems: 1\n", errOut)
		})
	}
}

// References may be long, and have the words of others. Only their links are checked.
func TestCheck_References(t *testing.T) {
	files := good()
	files["OTHER.md"] = "# Other\n\nA poison message. [x](gone.md)\n" + strings.Repeat("\n", 500)
	_, _, errOut := site(t, repository(t, files), "-check")
	require.Equal(t, "OTHER.md:3: dead link gone.md: there is no gone.md\nsite: problems: 1\n", errOut)
}

func TestRun_BadArguments(t *testing.T) {
	code, _, errOut := site(t, repository(t, good()), "-check", "all")
	require.Equal(t, 2, code)
	require.Equal(t, "site: unknown argument \"all\"\n", errOut)
	code, _, errOut = site(t, t.TempDir(), "-check")
	require.Equal(t, 1, code)
	require.Contains(t, errOut, "has no README.md: run it in the root of the repository, or give that with -C")
}

func TestWrite(t *testing.T) {
	out := t.TempDir()
	code, _, errOut := site(t, repository(t, good()), "-o", out)
	require.Zero(t, code, errOut)
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(out, name))
		require.NoError(t, err)
		return string(data)
	}
	home, keys := read("index.html"), read("docs/keys.html")
	for _, want := range []string{
		`<a href="docs/index.html">the docs</a>`,
		`<a href="https://github.com/surebus/eventbus/blob/main/main.go">code</a>`,
		`<a href="docs/glossary.html#glossary">a word</a>`,
		`<a href="https://example.com">elsewhere</a>`,
		`<img src="docs/life.svg" alt="life">`,
		`<li><a href="docs/keys.html">Keys &amp; order</a></li>`,
		`name="viewport"`, `prefers-color-scheme: dark`,
	} {
		require.Contains(t, home, want)
	}
	require.Contains(t, keys, `<h1 id="keys--order">`)
	require.Contains(t, keys, `<li><a href="../docs/keys.html" aria-current="page">`)
	require.Contains(t, keys, `<a href="../index.html">eventbus</a>`)
	require.Equal(t, "<svg/>", read("docs/life.svg"))
}
