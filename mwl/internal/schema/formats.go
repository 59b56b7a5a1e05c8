package schema

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// formats are those that take the place of the library's, or that it lacks. Its own duration is that of RFC 3339, which knows no fraction, no minus, and no week beside a day.
var formats = []*jsonschema.Format{
	{Name: "duration", Validate: ofString(func(s string) error {
		_, err := temporal.ParseDuration(s)
		return err
	})},
	{Name: "date-time", Validate: ofString(func(s string) error {
		_, err := temporal.ParseInstant(s)
		return err
	})},
	{Name: "idn-email", Validate: ofString(idnEmail)},
	{Name: "idn-hostname", Validate: ofString(idnHostname)},
}

// pattern is a regular expression that is compiled when it is first matched. The format "regex" is about texts
// that never are, and compiling one may take 8 MB.
type pattern struct {
	text     string
	once     sync.Once
	compiled *regexp.Regexp
}

func newPattern(text string) (jsonschema.Regexp, error) {
	if _, err := syntax.Parse(text, syntax.Perl); err != nil {
		return nil, err
	}
	return &pattern{text: text}, nil
}

func (p *pattern) String() string { return p.text }

func (p *pattern) MatchString(text string) bool {
	p.once.Do(func() { p.compiled = regexp.MustCompile(p.text) }) // it was parsed
	return p.compiled.MatchString(text)
}

// known are the formats of 2020-12, and what the library has beside them.
var known = []string{
	"date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri", "iri-reference", "json-pointer", "period", "regex",
	"relative-json-pointer", "semver", "time", "uri", "uri-reference", "uri-template", "uuid",
}

func isKnown(format string) bool {
	_, ok := slices.BinarySearch(known, format)
	return ok
}

// ofString applies a format to strings only: it says nothing about another type.
func ofString(check func(string) error) func(any) error {
	return func(v any) error {
		if s, ok := v.(string); ok {
			return check(s)
		}
		return nil
	}
}

func idnEmail(s string) error {
	at := strings.LastIndexByte(s, '@')
	if at <= 0 || strings.ContainsFunc(s[:at], func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return errors.New("it needs a local part, @ and a domain")
	}
	return idnHostname(s[at+1:])
}

func idnHostname(s string) error {
	if len(s) > 253 {
		return errors.New("it is longer than 253 bytes")
	}
	for _, label := range strings.Split(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len([]rune(label)) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return errors.New("a label needs 1 to 63 characters, and no hyphen at its ends")
		}
		if strings.ContainsFunc(label, func(r rune) bool {
			return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r)
		}) {
			return errors.New("a label has letters, digits and hyphens only")
		}
	}
	return nil
}
