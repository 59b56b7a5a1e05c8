// Package browsertest tests the admin page in a real Chromium. It has only tests.
//
//	GOWORK=off go -C admin/browsertest test -count=1 -v . -args -require
//	GOWORK=off go -C admin/browsertest test -count=1 -run Appearance . -args -require -screenshots "$(mktemp -d)"
//
// The tests look for chromium, chromium-browser, google-chrome and chrome in PATH. Without -require they are skipped,
// because they take minutes.
// They need no network: testdata has axe-core, which checks accessibility.
package browsertest
