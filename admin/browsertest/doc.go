// Package browsertest tests the admin page in a real Chromium. It has only tests.
//
//	go test -count=1 -v ./admin/browsertest -args -require
//	go test -count=1 -run Appearance ./admin/browsertest -args -require -screenshots "$(mktemp -d)"
//
// The tests look for chromium, chromium-browser, google-chrome and chrome in PATH. Without -require they are skipped,
// because they take minutes.
// They need no network: testdata has axe-core, which checks accessibility.
package browsertest
