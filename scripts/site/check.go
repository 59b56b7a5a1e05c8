package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
	east "github.com/yuin/goldmark/extension/ast"

	"github.com/surebus/eventbus/internal/docpage"
)

// The pages with rules of their own.
const (
	home     = "README.md"
	contents = "docs/README.md"
	glossary = "docs/glossary.md"
)

// Pages are short: a reader finishes one, and finds another by its title.
const (
	maxHomeLines = 200
	maxPageLines = 150
)

// isGuide reports whether a page is one of those that are written for a user to read from top to bottom. Other pages are
// references: their links are checked, not their length, words and code.
func (p *page) isGuide() bool { return p.name == home || strings.HasPrefix(p.name, "docs/") }

// check returns the problems of the pages, and the number of the blocks of code in the guides.
func check(pages pageSet) (problems []string, blocks int) {
	words, err := forbiddenWords(pages[glossary])
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, p := range pages.sorted() {
		problems = append(problems, deadLinks(p, pages)...)
		if !p.isGuide() {
			continue
		}
		found, err := docpage.Blocks(string(p.source))
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %s", p.name, err))
		}
		blocks += len(found)
		if limit := maxLines(p); p.lines() > limit {
			problems = append(problems, fmt.Sprintf("%s has %d lines, more than %d: split it", p.name, p.lines(), limit))
		}
		if p.name != glossary {
			problems = append(problems, usedWords(p, words)...)
		}
	}
	return append(problems, unlisted(pages)...), blocks
}

func maxLines(p *page) int {
	if p.name == home {
		return maxHomeLines
	}
	return maxPageLines
}

// deadLinks finds links to files and headings that do not exist. It does not look at other hosts.
func deadLinks(p *page, pages pageSet) (problems []string) {
	for _, l := range links(p.tree) {
		if !isRelative(l.to) {
			continue
		}
		name, fragment := p.target(l.to)
		at := fmt.Sprintf("%s:%d", p.name, p.line(l.offset))
		if _, err := os.Stat(filepath.Join(p.root, filepath.FromSlash(name))); err != nil {
			problems = append(problems, fmt.Sprintf("%s: dead link %s: there is no %s", at, l.to, name))
		} else if target := pages[name]; fragment != "" && target != nil && !target.anchors[fragment] {
			problems = append(problems, fmt.Sprintf("%s: dead link %s: %s has no heading #%s", at, l.to, name, fragment))
		}
	}
	return problems
}

type link struct {
	to     string
	offset int // of the block that has it
}

// links returns the links and pictures of a page.
func links(tree ast.Node) (all []link) {
	offset := 0
	_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		if n.Type() == ast.TypeBlock && n.Lines().Len() > 0 {
			offset = n.Lines().At(0).Start
		}
		switch n := n.(type) {
		case *ast.Text:
			offset = n.Segment.Start
		case *ast.Link:
			all = append(all, link{string(n.Destination), offset})
		case *ast.Image:
			all = append(all, link{string(n.Destination), offset})
		}
		return ast.WalkContinue, nil
	})
	return all
}

// forbidden is a word that the glossary forbids.
type forbidden struct {
	word, instead string
	pattern       *regexp.Regexp
}

// forbiddenWords reads the table of the glossary: its rows are a word, its meaning, and the words not to use for it,
// separated by commas.
func forbiddenWords(p *page) (words []forbidden, err error) {
	if p == nil {
		return nil, fmt.Errorf("there is no %s: it lists the words not to use", glossary)
	}
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		row, ok := n.(*east.TableRow)
		if !ok || !entering || row.ChildCount() != 3 {
			return ast.WalkContinue, nil
		}
		instead := textOf(row.FirstChild(), p.source)
		for word := range strings.SplitSeq(textOf(row.LastChild(), p.source), ",") {
			if word = strings.TrimSpace(word); word != "" {
				pattern := regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(regexp.QuoteMeta(word), " ", `\s+`) + `s?\b`)
				words = append(words, forbidden{word, instead, pattern})
			}
		}
		return ast.WalkSkipChildren, nil
	})
	if len(words) == 0 {
		return nil, fmt.Errorf("%s forbids no word: its tables have the columns word, meaning, not", glossary)
	}
	return words, nil
}

// usedWords finds forbidden words in the prose of a page. Code, also in a line, may have them: so do the names of others.
func usedWords(p *page, words []forbidden) (problems []string) {
	for _, prose := range proseOf(p) {
		for _, w := range words {
			if found := w.pattern.FindString(prose.text); found != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %q: the glossary's word is %q", p.name, p.line(prose.offset), found, w.instead))
			}
		}
	}
	return problems
}

type prose struct {
	text   string
	offset int
}

// proseOf returns the text of each paragraph, heading and cell, without code.
func proseOf(p *page) (all []prose) {
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		if n.Type() == ast.TypeBlock && n.FirstChild() != nil && n.FirstChild().Type() == ast.TypeInline {
			all = append(all, prose{})
		}
		switch n := n.(type) {
		case *ast.CodeSpan:
			return ast.WalkSkipChildren, nil
		case *ast.Text:
			last := &all[len(all)-1]
			if last.text == "" {
				last.offset = n.Segment.Start
			}
			last.text += string(n.Segment.Value(p.source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				last.text += "\n"
			}
		}
		return ast.WalkContinue, nil
	})
	return all
}

// unlisted finds guides to which the contents do not lead.
func unlisted(pages pageSet) (problems []string) {
	p := pages[contents]
	if p == nil {
		return []string{"there is no " + contents + ": it lists the pages of docs"}
	}
	var listed []string
	for _, l := range links(p.tree) {
		name, _ := p.target(l.to)
		listed = append(listed, name)
	}
	for _, guide := range pages.sorted() {
		if guide.isGuide() && guide != p && guide.name != home && !slices.Contains(listed, guide.name) {
			problems = append(problems, fmt.Sprintf("%s does not list %s", contents, guide.name))
		}
	}
	return problems
}
