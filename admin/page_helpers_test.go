package admin_test

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxPage is the bound of a page's weight, without payloads.
const maxPage = 100 << 10

// element is an element of a page, with its own text.
type element struct {
	name  string
	attrs map[string]string
	text  string
	in    []string // names of the elements around it
	from  int      // where text begins in that of the page
}

// has reports whether an attribute is present, also without a value.
func (e *element) has(name string) bool {
	_, ok := e.attrs[name]
	return ok
}

// document is a parsed page.
type document struct {
	*httptest.ResponseRecorder
	elements []*element
	forms    []*form
}

// form is a form with the values that a browser sends.
type form struct {
	method, action string
	values         url.Values
	buttons        []*element
}

// parse reads HTML. It fails for a tag that is not closed, and for anything that a browser would have to guess.
func parse(t *testing.T, w *httptest.ResponseRecorder) *document {
	t.Helper()
	d := &document{ResponseRecorder: w}
	in := xml.NewDecoder(strings.NewReader(w.Body.String()))
	in.Strict, in.AutoClose, in.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	var open []*element
	var text strings.Builder // of all elements
	for {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "%s", w.Body)
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attrs: make(map[string]string), from: text.Len()}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			for _, around := range open {
				e.in = append(e.in, around.name)
			}
			d.elements, open = append(d.elements, e), append(open, e)
			d.note(e)
		case xml.EndElement:
			require.NotEmpty(t, open)
			last := open[len(open)-1]
			require.Equal(t, last.name, token.Name.Local, "%s", w.Body)
			last.text = text.String()[last.from:]
			text.WriteByte(' ') // as its layout separates it from what follows
			open = open[:len(open)-1]
		case xml.CharData:
			text.Write(token)
		}
	}
	require.Empty(t, open)
	for _, e := range d.elements {
		if e.name == "textarea" {
			d.formOf(e).values.Set(e.attrs["name"], strings.TrimPrefix(e.text, "\n"))
		}
	}
	return d
}

// note records what belongs to a form.
func (d *document) note(e *element) {
	switch e.name {
	case "form":
		d.forms = append(d.forms, &form{method: e.attrs["method"], action: e.attrs["action"], values: make(url.Values)})
	case "input":
		if f := d.formOf(e); f != nil && (e.attrs["type"] != "checkbox" || e.has("checked")) {
			f.values.Set(e.attrs["name"], e.attrs["value"])
		}
	case "select":
		d.formOf(e).values.Set(e.attrs["name"], "")
	case "button":
		if f := d.formOf(e); f != nil {
			f.buttons = append(f.buttons, e)
		}
	}
}

// formOf returns the form of an element that was just read.
func (d *document) formOf(e *element) *form {
	if !slices.Contains(e.in, "form") {
		return nil
	}
	return d.forms[len(d.forms)-1]
}

func (d *document) all(name string) (found []*element) {
	for _, e := range d.elements {
		if e.name == name {
			found = append(found, e)
		}
	}
	return found
}

// text returns the text of a page's main part, with single spaces.
func (d *document) text() string {
	for _, e := range d.elements {
		if e.name == "main" {
			return strings.Join(strings.Fields(e.text), " ")
		}
	}
	return ""
}

// links returns the targets of links, files and forms by GET.
func (d *document) links() (links []string) {
	for _, e := range d.elements {
		for _, name := range []string{"href", "src"} {
			if target := e.attrs[name]; target != "" && !strings.HasPrefix(target, "#") {
				links = append(links, target)
			}
		}
	}
	for _, f := range d.forms {
		if f.method == "get" {
			links = append(links, f.action)
		}
	}
	return links
}

// visitor is an operator with a browser without JavaScript.
type visitor struct {
	t *testing.T
	h http.Handler
	// secret must be on no page, unless it is empty.
	secret string
}

// visit loads a page, which must be as every page is.
func (v *visitor) visit(target string) *document {
	v.t.Helper()
	d := v.load(target)
	require.Equal(v.t, http.StatusOK, d.Code, "GET %s: %s", target, d.text())
	return d
}

// load is visit for a page that may have any status.
func (v *visitor) load(target string) *document {
	v.t.Helper()
	return v.check(target, serve(v.h, request(v.t, http.MethodGet, target, "")))
}

// submit sends a form by one of its buttons, with changed values. A page of the same origin sends it.
func (v *visitor) submit(f *form, button string, changes map[string]string) *document {
	v.t.Helper()
	target := f.action
	fields := make(url.Values)
	for name, value := range f.values {
		fields[name] = value
	}
	i := slices.IndexFunc(f.buttons, func(b *element) bool { return strings.TrimSpace(b.text) == button })
	require.GreaterOrEqual(v.t, i, 0, "no button %q", button)
	b := f.buttons[i]
	if b.has("formaction") {
		target = b.attrs["formaction"]
	}
	if b.has("name") {
		fields.Set(b.attrs["name"], b.attrs["value"])
	}
	for name, value := range changes {
		fields.Set(name, value)
	}
	require.Equal(v.t, "post", f.method)
	r := request(v.t, http.MethodPost, target, fields.Encode())
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return v.check(target, serve(v.h, r))
}

// follow loads the page to which a form has led.
func (v *visitor) follow(d *document) *document {
	v.t.Helper()
	require.Equal(v.t, http.StatusSeeOther, d.Code, "%s", d.text())
	return v.visit(d.Header().Get("Location"))
}

// formWith returns the form of a page that has a button.
func (d *document) formWith(t *testing.T, button string) *form {
	t.Helper()
	for _, f := range d.forms {
		for _, b := range f.buttons {
			if strings.TrimSpace(b.text) == button {
				return f
			}
		}
	}
	require.Fail(t, "no form", "no form has the button %q: %s", button, d.text())
	return nil
}

// values are the values of inputs, which must be those that were typed.
var values = regexp.MustCompile(` value="[^"]*"`)

// check tests what holds for every page.
func (v *visitor) check(target string, w *httptest.ResponseRecorder) *document {
	v.t.Helper()
	if w.Code == http.StatusSeeOther {
		return &document{ResponseRecorder: w}
	}
	require.Equal(v.t, "text/html; charset=utf-8", w.Header().Get("Content-Type"), "%s: %s", target, w.Body)
	assert.LessOrEqual(v.t, w.Body.Len(), maxPage, target)
	require.True(v.t, utf8.Valid(w.Body.Bytes()), target)
	require.False(v.t, v.secret != "" && strings.Contains(w.Body.String(), v.secret), "%s shows the secret", target)
	seen := values.ReplaceAllString(w.Body.String(), "")
	for i, r := range seen {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			require.Fail(v.t, "a character is not escaped", "%s: %q after %q", target, r, seen[max(0, i-80):i])
		}
	}
	d := parse(v.t, w)
	v.checkStructure(target, d)
	ids, labels := make(map[string]bool), make(map[string]bool)
	for _, e := range d.elements {
		for name := range e.attrs {
			assert.False(v.t, name == "style" || strings.HasPrefix(name, "on"), "%s: <%s %s>", target, e.name, name)
		}
		if id := e.attrs["id"]; id != "" {
			assert.False(v.t, ids[id], "%s: the id %s is not unique", target, id)
			ids[id] = true
		}
		if e.name == "label" {
			labels[e.attrs["for"]] = true
		}
	}
	for _, e := range d.elements {
		switch e.name {
		case "style":
			assert.Fail(v.t, "inline style", target)
		case "script":
			assert.True(v.t, e.has("src") && strings.TrimSpace(e.text) == "", "%s: inline script", target)
		case "input", "select", "textarea":
			assert.True(v.t, e.attrs["type"] == "hidden" || labels[e.attrs["id"]] || slices.Contains(e.in, "label"),
				"%s: no label for %s", target, e.attrs["name"])
		case "label", "section":
			for _, ref := range []string{e.attrs["for"], e.attrs["aria-labelledby"]} {
				assert.True(v.t, ref == "" || ids[ref], "%s: no element %q", target, ref)
			}
		}
	}
	return d
}

// checkStructure tests title, headings and tables.
func (v *visitor) checkStructure(target string, d *document) {
	v.t.Helper()
	titles := d.all("title")
	require.Len(v.t, titles, 1, target)
	assert.Regexp(v.t, `^.+ · eventbus$`, titles[0].text, target)
	level, first := 0, 0
	for _, e := range d.elements {
		if len(e.name) == 2 && e.name[0] == 'h' && e.name[1] >= '1' && e.name[1] <= '6' {
			next := int(e.name[1] - '0')
			assert.LessOrEqual(v.t, next, level+1, "%s: heading %q skips a level", target, e.text)
			assert.NotEmpty(v.t, strings.TrimSpace(e.text), target)
			if level = next; level == 1 {
				first++
			}
		}
	}
	assert.Equal(v.t, 1, first, "%s: headings of level 1", target)
	assert.Len(v.t, d.all("caption"), len(d.all("table")), "%s: captions", target)
}

// crawl visits the pages that links lead to, up to a number, and returns their paths without queries.
func (v *visitor) crawl(start string, most int) map[string]bool {
	v.t.Helper()
	seen, paths := make(map[string]bool), make(map[string]bool)
	next := []string{start}
	for len(next) > 0 && len(seen) < most {
		target := next[0]
		next = next[1:]
		if seen[target] {
			continue
		}
		seen[target] = true
		u, err := url.Parse(target)
		require.NoError(v.t, err, target)
		require.True(v.t, strings.HasPrefix(u.Path, "/") && u.Host == "", "%s is not relative to the host", target)
		paths[u.Path] = true
		if strings.HasSuffix(u.Path, "/api/v1/live") {
			continue // a stream
		}
		w := serve(v.h, request(v.t, http.MethodGet, target, ""))
		require.Equal(v.t, http.StatusOK, w.Code, "GET %s: %s", target, w.Body)
		if strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			next = append(next, v.check(target, w).links()...)
		}
	}
	return paths
}
