// Check validates files of retry policies, and prints their meaning and their first ten
// delays:
//
//	go run github.com/surebus/eventbus/retryspec/check [-policy | -rules] [-strict] FILE...
//
// The file "-" is the standard input. Without -policy and -rules, the members of a file
// determine its format. At the first invalid file, it prints the reason and exits with status 1.
// With -strict, a policy document with unknown members is invalid.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"

	"github.com/surebus/eventbus/retryspec"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// The exit statuses.
const (
	good = iota
	bad
	misused
)

func run(args []string, in io.Reader, out, errs io.Writer) int {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(errs)
	policy := flags.Bool("policy", false, "the files are policy documents")
	rules := flags.Bool("rules", false, "the files are ordered rules")
	strict := flags.Bool("strict", false, "fail on ignored members of policy documents")
	say := log.New(errs, "", 0)
	flags.Usage = func() {
		say.Print("usage: check [-policy | -rules] [-strict] FILE...\nFILE may be -, the standard input.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return good
		}
		return misused
	}
	if flags.NArg() == 0 || *policy && *rules {
		flags.Usage()
		return misused
	}
	for i, name := range flags.Args() {
		text, err := read(name, in)
		shown := ""
		if err == nil {
			shown, err = check(name, text, *rules || !*policy && hasRules(text), *strict)
		}
		if err != nil {
			say.Printf("%s: %v", name, err)
			return bad
		}
		if i > 0 {
			shown = "\n" + shown
		}
		if _, err := io.WriteString(out, shown); err != nil {
			say.Print(err)
			return bad
		}
	}
	return good
}

func read(name string, in io.Reader) ([]byte, error) {
	if name == "-" {
		text, err := io.ReadAll(io.LimitReader(in, retryspec.MaxFileSize+1))
		if len(text) > retryspec.MaxFileSize {
			return nil, fmt.Errorf("the input has more than %d bytes: write a smaller document", retryspec.MaxFileSize)
		}
		return text, err
	}
	file, err := retryspec.Open(name, func(text []byte) ([]byte, error) { return text, nil })
	if path := new(os.PathError); errors.As(err, &path) {
		return nil, path.Err // the name is told anyway
	}
	if err != nil {
		return nil, err
	}
	return file.Current(), nil
}

// sections are the members of a policy document that mean something.
var sections = []string{"version", "stop", "wait", "retry"}

// hasRules reports whether a text is ordered rules rather than a policy document: it
// has a member that only they have, and none that only the other one has.
func hasRules(text []byte) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return false
	}
	has := func(name string) bool { return members[name] != nil }
	return has("policies") && !slices.ContainsFunc(sections, has)
}

// check is what there is to show of a file.
func check(name string, text []byte, isRules, strict bool) (string, error) {
	if isRules {
		rules, err := retryspec.ParseRules(text)
		if err != nil {
			return "", err
		}
		return showRules(name, rules)
	}
	document, err := retryspec.Parse(text)
	if err != nil {
		return "", err
	}
	if strict && len(document.Ignored) > 0 {
		return "", &retryspec.IgnoredError{Path: name, Members: document.Ignored}
	}
	return showPolicy(name, document)
}
