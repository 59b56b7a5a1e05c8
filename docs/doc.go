// Package docs runs the code of the pages in this directory and of the README.
//
// A page has a test TestDocs_Page in a file of its name, with a function for each of its blocks of Go code. Such a
// function has the lines of the block, what they need to run, and checks of what the page says about them. See
// internal/docpage/docpagetest. Pages that need nothing but the root module have their test in the root: docs_test.go.
package docs
