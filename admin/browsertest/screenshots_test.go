package browsertest_test

import (
	"strings"
	"testing"
)

// pictured are the main pages of examples/admin. %s is the path of the newest letter.
var pictured = []struct{ name, path string }{
	{"overview", "/"},
	{"groups", "/groups"},
	{"letters", "/letters"},
	{"letter", "%s"},
	{"bulk", "/bulk?action=replay_matching&subscription=billing"},
	{"operations", "/operations"},
	{"subscriptions", "/subscriptions"},
	{"subscription", "/subscriptions/billing"},
	{"events", "/events"},
	{"audit", "/audit"},
}

// scripts/screenshots runs this against examples/admin, and gives -link and -screenshots.
func TestScreenshots(t *testing.T) {
	if *example == "" || *screenshots == "" {
		t.Skip("scripts/screenshots takes the pictures")
	}
	b := open(t, &shop{t: t, url: strings.TrimSuffix(*example, "/")}, "operator")
	b.visit("/letters")
	letter := eval[string](b, `document.querySelector("main tbody th a")?.pathname ?? ""`)
	if letter == "" {
		t.Fatal("the shop has no dead letter yet")
	}
	letter = strings.TrimPrefix(letter, prefix)
	for _, look := range looks {
		b.look(look)
		for _, p := range pictured {
			b.visit(strings.ReplaceAll(p.path, "%s", letter))
			b.picture(p.name, look)
		}
	}
}
