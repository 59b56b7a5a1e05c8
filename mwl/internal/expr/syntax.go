package expr

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	mismatched   = regexp.MustCompile(`^mismatched input ('.*') expecting (.*)$`)
	extraneous   = regexp.MustCompile(`^extraneous input ('.*') expecting (.*)$`)
	missing      = regexp.MustCompile(`^missing (.*) at ('.*')$`)
	alternative  = regexp.MustCompile(`^no viable alternative at input ('.*')$`)
	unrecognized = regexp.MustCompile(`^token recognition error at: ('.*')$`)
)

// plainly says what the parser says in terms of its grammar so that authors of expressions understand it. What it does not know it leaves.
func plainly(message string) string {
	// The parser quotes what it read as it is, line breaks included.
	message = strings.Join(strings.Fields(message), " ")
	if m := mismatched.FindStringSubmatch(message); m != nil {
		return stands(m[1], m[2])
	}
	if m := extraneous.FindStringSubmatch(message); m != nil {
		return stands(m[1], m[2])
	}
	if m := missing.FindStringSubmatch(message); m != nil {
		if m[2] == end {
			return fmt.Sprintf("it ends without %s: add it", m[1])
		}
		return fmt.Sprintf("%s stands where %s should: add that before it", m[2], m[1])
	}
	if m := alternative.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("it cannot be read from %s on: something is missing or too much there", strings.ReplaceAll(m[1], "<EOF>", ""))
	}
	if m := unrecognized.FindStringSubmatch(message); m != nil {
		if strings.HasPrefix(m[1], "''") || strings.HasPrefix(m[1], `'"`) {
			return fmt.Sprintf("the string that begins with %s does not end: close it with its quote", m[1])
		}
		return fmt.Sprintf("%s is not part of CEL: delete it, or put it into a string", m[1])
	}
	return message
}

// end is how the parser names the end of an expression.
const end = "'<EOF>'"

// stands is for a token where the grammar wants another.
func stands(token, wanted string) string {
	values := strings.Contains(wanted, "IDENTIFIER")
	switch {
	case token == end && values:
		return "it ends where a value should follow: complete it"
	case token == end:
		return fmt.Sprintf("it ends where one of %s should follow: complete it", wanted)
	case values:
		return fmt.Sprintf("%s stands where a value should: write a value before it, or delete it", token)
	case wanted == "<EOF>":
		return fmt.Sprintf("it should end before %s: put an operator between the two, or delete what is too much", token)
	default:
		return fmt.Sprintf("%s stands where one of %s should: write that before it, or delete it", token, wanted)
	}
}
