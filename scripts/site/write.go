package main

import (
	"bytes"
	_ "embed"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark/ast"
)

//go:embed page.html
var layout string

var layoutTemplate = template.Must(template.New("page").Parse(layout))

// sources is where a link to a file leads that is no page, such as the code of an example.
const sources = "https://github.com/surebus/eventbus/blob/main/"

// write writes the site: each page as HTML, and the pictures.
func write(pages pageSet, root, out string) error {
	for _, p := range pages.sorted() {
		if err := copyPictures(p, root, out); err != nil {
			return err
		}
		html, err := render(p, pages)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(out, filepath.FromSlash(htmlName(p.name))), html); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o644)
}

// htmlName returns the file of a page on the site.
func htmlName(name string) string {
	dir, base := path.Split(name)
	if base == "README.md" {
		return dir + "index.html"
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

type entry struct {
	Title, Link string
	Here        bool
}

// render returns a page as HTML.
func render(p *page, pages pageSet) ([]byte, error) {
	var body bytes.Buffer
	nav := navigation(p, pages)
	relink(p, pages)
	if err := markdown.Renderer().Render(&body, p.source, p.tree); err != nil {
		return nil, err
	}
	var html bytes.Buffer
	err := layoutTemplate.Execute(&html, struct {
		Title, Home string
		Nav         []entry
		Body        template.HTML
	}{p.title, relative(p, htmlName(home)), nav, template.HTML(body.String())}) //nolint:gosec // the repository's own text; raw HTML in it is left out by goldmark
	return html.Bytes(), err
}

// navigation lists the pages to which docs/README.md leads.
func navigation(p *page, pages pageSet) (nav []entry) {
	list := pages[contents]
	if list == nil {
		return nil
	}
	seen := make(map[string]bool)
	for _, name := range list.leadsTo() {
		if target := pages[name]; target != nil && !seen[name] {
			seen[name] = true
			nav = append(nav, entry{target.title, relative(p, htmlName(name)), target == p})
		}
	}
	return nav
}

// leadsTo returns the paths in the repository to which the relative links of a page lead.
func (p *page) leadsTo() []string {
	if p.to == nil {
		p.to = []string{}
		for _, l := range links(p.tree) {
			if isRelative(l.to) {
				name, _ := p.target(l.to)
				p.to = append(p.to, name)
			}
		}
	}
	return p.to
}

// relative returns the link from a page to a file of the site.
func relative(p *page, to string) string {
	return strings.Repeat("../", strings.Count(p.name, "/")) + to
}

// relink makes the links of a page lead to the pages of the site, and those to other files to the sources.
func relink(p *page, pages pageSet) {
	p.leadsTo()                                                                    // reads the links before they change
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if l, ok := n.(*ast.Link); ok && entering && isRelative(string(l.Destination)) {
			l.Destination = []byte(siteLink(p, string(l.Destination), pages))
		}
		return ast.WalkContinue, nil
	})
}

func siteLink(p *page, to string, pages pageSet) string {
	name, fragment := p.target(to)
	if fragment != "" {
		fragment = "#" + fragment
	}
	for _, page := range []string{name, path.Join(name, "README.md")} {
		if pages[page] != nil {
			return relative(p, htmlName(page)) + fragment
		}
	}
	return sources + name + fragment
}

// copyPictures copies the pictures that a page shows.
func copyPictures(p *page, root, out string) error {
	return ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		picture, ok := n.(*ast.Image)
		if !ok || !entering || !isRelative(string(picture.Destination)) {
			return ast.WalkContinue, nil
		}
		name, _ := p.target(string(picture.Destination))
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return ast.WalkStop, err
		}
		return ast.WalkContinue, writeFile(filepath.Join(out, filepath.FromSlash(name)), data)
	})
}
