package admin

import (
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/texts"
)

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed static/*
var staticFiles embed.FS

// sharedTemplates are the files that every page uses.
var sharedTemplates = []string{"pages/layout.html", "pages/parts.html"}

// parsePages returns the template of each page, by the name of its file. Links begin with prefix.
func parsePages(prefix string) (map[string]*template.Template, error) {
	shared, err := template.New("").Funcs(pageFuncs(prefix)).ParseFS(pageFiles, sharedTemplates...)
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		return nil, err
	}
	pages := make(map[string]*template.Template, len(names))
	for _, name := range names {
		page, err := shared.Clone()
		if err == nil {
			page, err = page.ParseFS(pageFiles, name)
		}
		if err != nil {
			return nil, err
		}
		pages[strings.TrimSuffix(strings.TrimPrefix(name, "pages/"), ".html")] = page
	}
	return pages, nil
}

// pageFuncs returns what templates can call. Every text of an event, an error or an operator goes through
// visible, cut or their variants for several lines.
func pageFuncs(prefix string) template.FuncMap {
	return template.FuncMap{
		"path":       func(segments ...string) string { return pagePath(prefix, segments...) },
		"visible":    func(text any) string { return texts.Visible(fmt.Sprint(text)) },
		"lines":      texts.VisibleLines,
		"indent":     indented,
		"cut":        func(most int, text any) string { return shown(fmt.Sprint(text), most) },
		"cutLines":   func(most int, text string) string { return shownLines(text, most) },
		"rfc3339":    rfc3339,
		"age":        func(t time.Time) string { return age(time.Since(t)) },
		"duration":   duration,
		"count":      count,
		"limit":      limit,
		"percent":    percent,
		"latency":    latency,
		"lastError":  lastError,
		"actionName": actionName,
		"queryText":  queryText,
	}
}

// shown returns a text without invisible characters, cut to a number of bytes with what was left out.
func shown(text string, most int) string { return texts.Visible(texts.Cut(text, most)) }

// shownLines is shown for a text of several lines.
func shownLines(text string, most int) string { return texts.VisibleLines(texts.Cut(text, most)) }

// pagePath returns the path of a page below a prefix, with escaped segments.
func pagePath(prefix string, segments ...string) string {
	var b strings.Builder
	b.WriteString(prefix)
	if len(segments) == 0 {
		b.WriteByte('/')
	}
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

// linkTo returns a path with a query.
func linkTo(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// rfc3339 returns a time with seconds. Filters take it, too.
func rfc3339(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// age returns how long ago something was, or in what time it will be, in one unit.
func age(d time.Duration) string {
	form := "%s ago"
	if d < 0 {
		d, form = -d, "in %s"
	}
	switch {
	case d < time.Second:
		return "now"
	case d < 2*time.Minute:
		return fmt.Sprintf(form, fmt.Sprintf("%d s", d/time.Second))
	case d < 2*time.Hour:
		return fmt.Sprintf(form, fmt.Sprintf("%d min", d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf(form, fmt.Sprintf("%d h", d/time.Hour))
	default:
		return fmt.Sprintf(form, fmt.Sprintf("%d days", d/(24*time.Hour)))
	}
}

// duration returns a duration with three digits.
func duration(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d >= unit.size {
			return strconv.FormatFloat(float64(d)/float64(unit.size), 'g', 3, 64) + " " + unit.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + " ns"
}

// latency returns a quantile, or a dash if no call was timed.
func latency(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return duration(d)
}

// count returns an integer of any type with commas between thousands.
func count(n any) string {
	text := fmt.Sprint(reflect.ValueOf(n).Int())
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// limit returns a limit that may be eventbus.Unlimited.
func limit(n int) string {
	if n == eventbus.Unlimited {
		return "unlimited"
	}
	return count(n)
}

func lastError(l eventbus.DeadLetter) string {
	if n := len(l.Failures); n > 0 {
		return l.Failures[n-1].Error
	}
	return ""
}

// actionName returns the name of an action as words.
func actionName(action any) string {
	name := strings.ReplaceAll(fmt.Sprint(action), "_", " ")
	if name == "" {
		return "–"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

// queryText returns the filter of a bulk operation as one line.
func queryText(q any) string {
	values := queryValues(q)
	parts := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, name+"="+values.Get(name))
	}
	return strings.Join(parts, ", ")
}
