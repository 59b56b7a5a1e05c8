// Command site makes a static site of the repository's documents, or checks them.
//
//	go run ./scripts/site            # writes the site into ./site
//	go run ./scripts/site -o dir     # elsewhere
//	go run ./scripts/site -check     # writes nothing: dead links, pages that are too long, words that the glossary forbids
//
// It is run in the root of the repository. The pages are its Markdown files; README.md is the first page, and the
// navigation is the list of links in docs/README.md.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 1 if a page has a problem, 2 for bad arguments.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("site", flag.ContinueOnError)
	flags.SetOutput(stderr)
	onlyCheck := flags.Bool("check", false, "check the pages and write nothing")
	out := flags.String("o", "site", "the `directory` of the site; it is made, and files in it are overwritten")
	root := flags.String("C", ".", "the root `directory` of the repository")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "site: unknown argument %q\n", flags.Arg(0))
		return 2
	}
	pages, err := readPages(*root)
	if err != nil {
		fmt.Fprintln(stderr, "site:", err)
		return 1
	}
	problems, blocks := check(pages)
	for _, problem := range problems {
		fmt.Fprintln(stderr, problem)
	}
	if !*onlyCheck {
		if err := write(pages, *root, *out); err != nil {
			fmt.Fprintln(stderr, "site:", err)
			return 1
		}
	}
	fmt.Fprintf(stdout, "%d pages, %d blocks of code\n", len(pages), blocks)
	if len(problems) > 0 {
		fmt.Fprintf(stderr, "site: problems: %d\n", len(problems))
		return 1
	}
	return 0
}
