package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"github.com/surebus/eventbus/internal/docpage"
)

// page is a Markdown file of the repository.
type page struct {
	name    string // its path in the repository, with slashes
	source  []byte
	tree    ast.Node
	title   string
	anchors map[string]bool
	root    string   // the directory of the repository
	to      []string // where its links led in the repository, once asked for
}

// pageSet has the pages by their names.
type pageSet map[string]*page

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))

func readPages(root string) (pageSet, error) {
	pages := make(pageSet)
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(file) != ".md":
			return nil
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		p := newPage(root, filepath.ToSlash(name), source)
		pages[p.name] = p
		return nil
	})
	if err == nil && pages[home] == nil {
		err = fmt.Errorf("%s has no %s: run it in the root of the repository, or give that with -C", root, home)
	}
	return pages, err
}

func newPage(root, name string, source []byte) *page {
	p := &page{name: name, source: source, title: name, anchors: make(map[string]bool), root: root}
	ids := &headingIDs{taken: p.anchors}
	p.tree = markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	if heading, ok := p.tree.FirstChild().(*ast.Heading); ok {
		p.title = textOf(heading, source)
	}
	return p
}

// sorted returns the pages by name.
func (s pageSet) sorted() []*page {
	var all []*page
	for _, p := range s {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *page) int { return strings.Compare(a.name, b.name) })
	return all
}

// line returns the number of the line, from 1, of a place in the source.
func (p *page) line(offset int) int { return bytes.Count(p.source[:offset], []byte("\n")) + 1 }

// lines returns the number of lines.
func (p *page) lines() int { return bytes.Count(p.source, []byte("\n")) }

// target returns the path in the repository, and the fragment, to which a relative link of the page leads.
func (p *page) target(link string) (name, fragment string) {
	name, fragment, _ = strings.Cut(link, "#")
	if name == "" {
		return p.name, fragment
	}
	return path.Join(path.Dir(p.name), name), fragment
}

func isRelative(link string) bool {
	return !strings.Contains(link, "://") && !strings.HasPrefix(link, "mailto:")
}

// textOf returns the text of a node, without its markup.
func textOf(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if leaf, ok := n.(*ast.Text); ok && entering {
			b.Write(leaf.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// headingIDs names headings as GitHub does, so that a link works there and on the site.
type headingIDs struct{ taken map[string]bool }

func (h *headingIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	id := docpage.Anchor(strings.NewReplacer("`", "", "*", "").Replace(string(value)))
	unique := id
	for i := 1; h.taken[unique]; i++ {
		unique = fmt.Sprintf("%s-%d", id, i)
	}
	h.taken[unique] = true
	return []byte(unique)
}

func (h *headingIDs) Put(value []byte) { h.taken[string(value)] = true }
