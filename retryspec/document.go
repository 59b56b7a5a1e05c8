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

// NoLimit, as a limit, is none.
const NoLimit = -1

// Document is a policy document: when to stop, how long to wait, and which errors
// to retry. Parse and Default make one; the zero Document is not valid. In JSON it
// is written with all its members.
type Document struct {
	Stop  Stop
	Wait  Wait
	Retry Retry
}

// Stop is when there is no further attempt: when either limit has been reached.
type Stop struct {
	// MaxAttempts is how often a task is tried, the first run included: at
	// least 1, or NoLimit, which is null in JSON. 5 by default.
	MaxAttempts int64
	// MaxDelay is how many seconds after the task was made no further attempt is
	// begun: at least 0, or NoLimit, which is null in JSON and the default.
	MaxDelay float64
}

// Wait is how long to wait before a retry. All delays are in seconds, and at
// least 0.
type Wait struct {
	// Strategy is ExponentialJitter by default.
	Strategy Strategy
	// Delay is that of Fixed, and of nothing else: 1 by default. MaxDelay does
	// not cap it.
	Delay float64
	// InitialDelay is that before the first retry: 1 by default.
	InitialDelay float64
	// Multiplier is what the delay grows by with each further retry: at least
	// 1, 2 by default.
	Multiplier float64
	// MaxDelay caps the delays of the exponential strategies: 300 by default.
	MaxDelay float64
}

// Strategy is how delays are computed.
type Strategy string

// The strategies.
const (
	// Fixed is Delay before every retry.
	Fixed Strategy = "fixed"
	// Exponential is min(InitialDelay × Multiplier^(n−1), MaxDelay) before retry n.
	Exponential Strategy = "exponential"
	// ExponentialJitter is a random delay from 0 to what Exponential would wait,
	// every one as likely.
	ExponentialJitter Strategy = "exponential_jitter"
)

var strategies = []string{string(Fixed), string(Exponential), string(ExponentialJitter)}

// Retry lists the errors that are retried and those that are not, by name (see Names of
// eventbus.ErrorTraits).
type Retry struct {
	// IncludeErrors are those that are: none of it is nothing. ["ValueError"] by
	// default, which hardly any error in Go is called: see eventbus.WithErrorName.
	IncludeErrors []string
	// ExcludeErrors are those that are not, though they be included. None by
	// default.
	ExcludeErrors []string
}

// Default is the policy of an empty document: 5 attempts, delays up to 1, 2, 4 and
// 8 seconds, and of the errors only ValueError.
func Default() Document {
	return Document{
		Stop:  Stop{MaxAttempts: 5, MaxDelay: NoLimit},
		Wait:  Wait{Strategy: ExponentialJitter, Delay: 1, InitialDelay: 1, Multiplier: 2, MaxDelay: 300},
		Retry: Retry{IncludeErrors: []string{"ValueError"}, ExcludeErrors: []string{}},
	}
}

// Parse reads a policy document. Members that are absent have their defaults,
// each for itself. The error is an *Error.
//
// Beyond what the format says: an integer may be written as 5.0, and more attempts
// than 2^63−1 are so many; a name that occurs twice in an object is refused, and so are
// null for a whole document, delays that a 64-bit float cannot hold, text that is not
// UTF-8, and objects in each other more than 100 deep, in members that are ignored too.
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
	return r.object(root, false, []field{
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
}

func (s *Stop) read(r reader, n *node) *Error {
	return r.object(n, true, []field{
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
	return r.object(n, true, []field{
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
	return r.object(n, true, []field{
		{"include_errors", names(&t.IncludeErrors)},
		{"exclude_errors", names(&t.ExcludeErrors)},
	})
}

// wireDocument is a Document as it is in JSON.
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

// MarshalJSON writes the document with every member, in the order of the format
// and without white space: equal policies are equal texts. The error is that of
// Validate.
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

// Validate returns the *Error that Parse would, if the document were written
// down: for documents that were made or changed in Go.
func (d Document) Validate() error {
	_, err := d.MarshalJSON()
	return err
}

// encode writes the document, right or wrong.
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

// UnmarshalJSON is Parse.
func (d *Document) UnmarshalJSON(text []byte) error {
	parsed, err := Parse(text)
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// listed are names as an array, never null.
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
