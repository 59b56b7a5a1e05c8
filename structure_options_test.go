package eventbus_test

import (
	"go/ast"
	"go/doc/comment"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// The section "Options" of the package comment lists every option, and each link of the comment leads to a name.
func TestStructure_PackageCommentListsEveryOption(t *testing.T) {
	pkg := loadRoot(t)
	all, listed := docLinks(packageComment(t))
	if len(listed) == 0 {
		t.Fatal(`the package comment has no section "Options" with links`)
	}
	for link := range all {
		if !resolves(pkg.types, link) {
			t.Errorf("the package comment links to [%s], and the package has no such name", link)
		}
	}
	options := optionsOf(pkg.types)
	for name := range options {
		if !listed[name] {
			t.Errorf(`the section "Options" of the package comment does not list [%s]: add it to the group of its purpose`, name)
		}
	}
	for link := range listed {
		if !options[link] && resolves(pkg.types, link) {
			t.Errorf(`the section "Options" of the package comment lists [%s], which is no option`, link)
		}
	}
}

// optionsOf returns the exported functions that return an option, and the exported types that are options themselves.
// An option is a value of an exported type whose name ends in "Option".
func optionsOf(pkg *types.Package) map[string]bool {
	options := make(map[string]bool)
	var kinds []*types.Interface
	for _, name := range pkg.Scope().Names() {
		if of, ok := pkg.Scope().Lookup(name).Type().Underlying().(*types.Interface); ok && isOptionName(name) {
			kinds = append(kinds, of)
		}
	}
	for _, name := range pkg.Scope().Names() {
		if !token.IsExported(name) {
			continue
		}
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Func:
			results := o.Signature().Results()
			if results.Len() == 1 && isOptionName(typeName(results.At(0).Type())) {
				options[name] = true
			}
		case *types.TypeName:
			for _, kind := range kinds {
				if !types.IsInterface(o.Type()) && types.Implements(o.Type(), kind) {
					options[name] = true
				}
			}
		}
	}
	return options
}

func isOptionName(name string) bool {
	return token.IsExported(name) && strings.HasSuffix(name, "Option")
}

func packageComment(t *testing.T) *comment.Doc {
	t.Helper()
	var text strings.Builder
	for _, f := range goFiles(t) {
		if f.pkg == "." && !f.test {
			text.WriteString(f.ast.Doc.Text())
		}
	}
	anything := comment.Parser{LookupSym: func(string, string) bool { return true }}
	return anything.Parse(text.String())
}

// docLinks returns the links of a comment to names of the package, and those in the lists of its section "Options".
func docLinks(doc *comment.Doc) (all, listed map[string]bool) {
	all, listed = make(map[string]bool), make(map[string]bool)
	collect := func(block comment.Block, into ...map[string]bool) {
		p, ok := block.(*comment.Paragraph)
		if !ok {
			return
		}
		for _, text := range p.Text {
			link, ok := text.(*comment.DocLink)
			if !ok || link.ImportPath != "" {
				continue
			}
			name := link.Name
			if link.Recv != "" {
				name = link.Recv + "." + name
			}
			for _, links := range into {
				links[name] = true
			}
		}
	}
	section := ""
	for _, block := range doc.Content {
		switch b := block.(type) {
		case *comment.Heading:
			section = ""
			if title, ok := b.Text[0].(comment.Plain); ok {
				section = string(title)
			}
		case *comment.List:
			for _, item := range b.Items {
				for _, block := range item.Content {
					if section == "Options" {
						collect(block, all, listed)
					} else {
						collect(block, all)
					}
				}
			}
		default:
			collect(block, all)
		}
	}
	return all, listed
}

// resolves reports whether a package has an exported name, or an exported method or field "Type.Name".
func resolves(pkg *types.Package, link string) bool {
	name, member, isMember := strings.Cut(link, ".")
	of := pkg.Scope().Lookup(name)
	if of == nil || !ast.IsExported(name) || !isMember {
		return of != nil && ast.IsExported(name)
	}
	found, _, _ := types.LookupFieldOrMethod(of.Type(), true, pkg, member)
	return found != nil && found.Exported()
}
