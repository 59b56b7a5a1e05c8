package retryspec

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Version is the version of the policy documents that Parse reads.
const Version = 1

// NoLimit means no limit.
const NoLimit = -1

// Document is a policy document: when to stop, how long to wait, and which errors to retry.
// Parse and Default return one. The zero Document is not valid. Its JSON has all members.
type Document struct {
	Stop  Stop  // when retries end
	Wait  Wait  // the delays
	Retry Retry // which errors to retry
	// Ignored lists the members at the top level that Parse does not know, in the order of
	// their names. The format ignores them, so that later versions can add some; one may be misspelt.
	// Go code need not set it: Policy and the JSON of the document leave it out. Nil is none.
	Ignored []string
}

// Stop has the limits of the attempts. No attempt follows after either limit is reached.
type Stop struct {
	// MaxAttempts is the number of attempts, including the first run: at least 1, or NoLimit,
	// which is null in JSON. The default is 5.
	MaxAttempts int64
	// MaxDelay is the number of seconds since the creation of the task after which no attempt
	// begins: at least 0, or NoLimit, which is null in JSON and the default.
	MaxDelay float64
}

// Wait has the delays before retries. All delays are in seconds, and at least 0.
type Wait struct {
	// Strategy is ExponentialJitter by default.
	Strategy Strategy
	// Delay is the delay of Fixed: 1 by default. Other strategies ignore it. MaxDelay does not
	// cap it.
	Delay float64
	// InitialDelay is the delay before the first retry: 1 by default.
	InitialDelay float64
	// Multiplier multiplies the delay with each further retry: at least 1, 2 by default.
	Multiplier float64
	// MaxDelay caps the delays of the exponential strategies: 300 by default.
	MaxDelay float64
}

// Strategy selects how delays are computed.
type Strategy string

// The strategies.
const (
	// Fixed is Delay before every retry.
	Fixed Strategy = "fixed"
	// Exponential is min(InitialDelay × Multiplier^(n−1), MaxDelay) before retry n.
	Exponential Strategy = "exponential"
	// ExponentialJitter is full jitter: a uniform random delay from 0 to the delay of
	// Exponential.
	ExponentialJitter Strategy = "exponential_jitter"
)

var strategies = []string{string(Fixed), string(Exponential), string(ExponentialJitter)}

// AllErrors in IncludeErrors means every error. In the orchestrator of these documents, it is the name of the type of
// every failed task. In ExcludeErrors it is a name like any other.
const AllErrors = "TaskError"

// Retry lists the errors to retry and the errors not to retry, by name (see Names of eventbus.ErrorTraits).
type Retry struct {
	// IncludeErrors lists the errors to retry. With AllErrors, all errors are retried except ExcludeErrors. An empty
	// list retries nothing. The default is ["ValueError"], a name that hardly any error in Go has, see
	// eventbus.WithErrorName.
	IncludeErrors []string
	// ExcludeErrors lists errors not to retry, even if IncludeErrors lists them. It is empty
	// by default.
	ExcludeErrors []string
}

// Default returns the policy of an empty document: 5 attempts, delays up to 1, 2, 4 and 8
// seconds, and retries of ValueError only.
func Default() Document {
	return Document{
		Stop:  Stop{MaxAttempts: 5, MaxDelay: NoLimit},
		Wait:  Wait{Strategy: ExponentialJitter, Delay: 1, InitialDelay: 1, Multiplier: 2, MaxDelay: 300},
		Retry: Retry{IncludeErrors: []string{"ValueError"}, ExcludeErrors: []string{}},
	}
}

// Parse parses a policy document. Each missing member has its default. The error is an
// *Error.
//
// Parse extends the format: an integer may be written as 5.0, and attempts above 2^63−1
// become that number. It rejects a repeated name in an object, null as a document, delays
// beyond a 64-bit float, invalid UTF-8, and nesting deeper than 100, also in ignored
// members.
func Parse(data []byte) (Document, error) {
	root, err := decode(data)
	if err != nil {
		return Document{}, err
	}
	d := Default()
	if err := d.read(reader{data}, root); err != nil {
		return Document{}, err
	}
	return d, nil
}

const (
	wantDelay = "a number of at least 0"
	wantNames = "an array of strings, the names of errors"
)

func (d *Document) read(r reader, root *node) *Error {
	ignored, err := r.members(root, []field{
		{"version", func(n *node) *Error {
			version, err := r.integer(n, Version, strconv.Itoa(Version))
			if err == nil && version != Version {
				err = r.refuse(n, strconv.Itoa(Version))
			}
			return err
		}},
		{"stop", func(n *node) *Error { return d.Stop.read(r, n) }},
		{"wait", func(n *node) *Error { return d.Wait.read(r, n) }},
		{"retry", func(n *node) *Error { return d.Retry.read(r, n) }},
	})
	slices.Sort(ignored) // the order of members means nothing
	d.Ignored = ignored
	return err
}

func (s *Stop) read(r reader, n *node) *Error {
	return r.object(n, []field{
		{"max_attempts", func(n *node) (err *Error) {
			if s.MaxAttempts = NoLimit; n.kind != isNull {
				s.MaxAttempts, err = r.integer(n, 1, "an integer of at least 1, or null")
			}
			return err
		}},
		{"max_delay", func(n *node) (err *Error) {
			if s.MaxDelay = NoLimit; n.kind != isNull {
				s.MaxDelay, err = r.number(n, 0, wantDelay+", or null")
			}
			return err
		}},
	})
}

func (w *Wait) read(r reader, n *node) *Error {
	seconds := func(into *float64) func(*node) *Error {
		return func(n *node) (err *Error) {
			*into, err = r.number(n, 0, wantDelay)
			return err
		}
	}
	return r.object(n, []field{
		{"strategy", func(n *node) *Error {
			if n.kind != isString || !slices.Contains(strategies, n.text) {
				return r.refuse(n, suggest(oneOf(quoted(strategies)), n.text, strategies))
			}
			w.Strategy = Strategy(n.text)
			return nil
		}},
		{"delay", seconds(&w.Delay)},
		{"initial_delay", seconds(&w.InitialDelay)},
		{"multiplier", func(n *node) (err *Error) {
			w.Multiplier, err = r.number(n, 1, "a number of at least 1")
			return err
		}},
		{"max_delay", seconds(&w.MaxDelay)},
	})
}

func (t *Retry) read(r reader, n *node) *Error {
	names := func(into *[]string) func(*node) *Error {
		return func(n *node) (err *Error) {
			*into, err = r.texts(n, 0, wantNames, nil)
			return err
		}
	}
	return r.object(n, []field{
		{"include_errors", names(&t.IncludeErrors)},
		{"exclude_errors", names(&t.ExcludeErrors)},
	})
}

// wireDocument is the JSON form of a Document.
type wireDocument struct {
	Version int `json:"version"`
	Stop    struct {
		MaxAttempts *int64   `json:"max_attempts"`
		MaxDelay    *float64 `json:"max_delay"`
	} `json:"stop"`
	Wait struct {
		Strategy     Strategy `json:"strategy"`
		Delay        float64  `json:"delay"`
		InitialDelay float64  `json:"initial_delay"`
		Multiplier   float64  `json:"multiplier"`
		MaxDelay     float64  `json:"max_delay"`
	} `json:"wait"`
	Retry struct {
		IncludeErrors []string `json:"include_errors"`
		ExcludeErrors []string `json:"exclude_errors"`
	} `json:"retry"`
}

// MarshalJSON returns the document with every member, in the order of the format and
// without white space: equal policies have equal texts. Its error is the error of Validate.
func (d Document) MarshalJSON() ([]byte, error) {
	text, err := d.encode()
	if err != nil {
		return nil, err
	}
	if _, err := Parse(text); err != nil {
		return nil, withoutPlace(err)
	}
	return text, nil
}

// Validate checks a document that was made or changed in Go. It returns the *Error that
// Parse would return for its JSON.
func (d Document) Validate() error {
	_, err := d.MarshalJSON()
	return err
}

// encode writes the document, even if it is invalid.
func (d Document) encode() ([]byte, error) {
	for _, f := range []struct {
		path  string
		value float64
	}{
		{"stop.max_delay", d.Stop.MaxDelay},
		{"wait.delay", d.Wait.Delay},
		{"wait.initial_delay", d.Wait.InitialDelay},
		{"wait.multiplier", d.Wait.Multiplier},
		{"wait.max_delay", d.Wait.MaxDelay},
	} {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) {
			return nil, &Error{Path: f.path, Value: fmt.Sprint(f.value), Expected: "a finite number"}
		}
	}
	// Adding 0 makes 0 of -0.
	w := wireDocument{Version: Version}
	if d.Stop.MaxAttempts != NoLimit {
		w.Stop.MaxAttempts = &d.Stop.MaxAttempts
	}
	if d.Stop.MaxDelay != NoLimit {
		bound := d.Stop.MaxDelay + 0
		w.Stop.MaxDelay = &bound
	}
	w.Wait.Strategy = d.Wait.Strategy
	w.Wait.Delay = d.Wait.Delay + 0
	w.Wait.InitialDelay = d.Wait.InitialDelay + 0
	w.Wait.Multiplier = d.Wait.Multiplier
	w.Wait.MaxDelay = d.Wait.MaxDelay + 0
	var err *Error
	if w.Retry.IncludeErrors, err = listed("retry.include_errors", d.Retry.IncludeErrors); err != nil {
		return nil, err
	}
	if w.Retry.ExcludeErrors, err = listed("retry.exclude_errors", d.Retry.ExcludeErrors); err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// ignored lets File report what a parsed text has that means nothing.
func (d Document) ignored() []string { return d.Ignored }

// UnmarshalJSON parses the document as Parse does.
func (d *Document) UnmarshalJSON(text []byte) error {
	parsed, err := Parse(text)
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// listed returns names as a non-nil slice, so that JSON has an array and not null.
func listed(path string, names []string) ([]string, *Error) {
	for i, name := range names {
		if !utf8.ValidString(name) {
			return nil, &Error{Path: path, Value: fmt.Sprintf("%q as item %d", name, i+1), Expected: wantNames + " in valid UTF-8"}
		}
	}
	return append([]string{}, names...), nil
}

func quoted(names []string) []string {
	q := make([]string, len(names))
	for i, name := range names {
		q[i] = strconv.Quote(name)
	}
	return q
}
