package eventbus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/route"
)

// maxLetterLine bounds a line of an export, in bytes.
const maxLetterLine = 16 << 20

// ExportReport tells what became of the letters of an Export. The letters that are in
// none of Exported, Gone and Unexported have not been tried.
type ExportReport struct {
	// Matched is the size of the set, fixed when the operation began.
	Matched  int
	Exported int
	// Gone were replayed or purged by somebody else meanwhile, or fell out.
	Gone int
	// Unexported are the letters that could not be encoded, and why.
	Unexported []UnexportedLetter
}

// UnexportedLetter is a letter that could not be exported.
type UnexportedLetter struct {
	ID  LetterID
	Err error
}

// Export writes the letters that match a query to w, oldest first: each is a line, a
// DeadLetter as encoding/json encodes it, which Import reads. It leaves them in the
// queue. An empty query exports all. The set is fixed when it begins; letters that
// leave meanwhile are not written.
//
// A letter whose payload cannot be encoded (a channel, a cycle, a MarshalJSON that
// fails or panics), or is longer than 16 MiB as a line, is left out and named in the
// report. MarshalJSON runs on a goroutine of its own, and is waited for until ctx
// ends.
//
// It calls Write once a line, without a lock, and stops at its first error: give it a
// bufio.Writer, and flush that. Errors: those of List; Limit and Before are an
// *OptionError; the writer's. The report counts what was written also with an error.
func (q *DLQ) Export(ctx context.Context, w io.Writer, query LetterQuery) (ExportReport, error) {
	var report ExportReport
	f, err := q.wholeFilter(ctx, query)
	if err == nil && isNil(w) {
		err = &OptionError{Option: "Export", Value: "nil", Reason: "the writer must not be nil"}
	}
	if err == nil {
		err = q.export(ctx, w, f, &report)
	}
	if err != nil {
		return report, fmt.Errorf("Export: %w", err)
	}
	return report, nil
}

func (q *DLQ) export(ctx context.Context, w io.Writer, f *letterFilter, report *ExportReport) error {
	ids := q.bus.letters.match(f)
	report.Matched = len(ids)
	for _, id := range ids {
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		l, ok := q.bus.letters.get(id)
		if !ok {
			report.Gone++
			continue
		}
		line, err := l.encode(ctx)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("letter %s: %w", id, contextError(ctx))
		}
		if err != nil {
			report.Unexported = append(report.Unexported, UnexportedLetter{id, err})
			continue
		}
		n, err := w.Write(line)
		if err == nil && n < len(line) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return err
		}
		report.Exported++
	}
	return nil
}

// encode is the letter's line. Methods of the payload may do anything, until ctx ends.
func (l *DeadLetter) encode(ctx context.Context) ([]byte, error) {
	r := new(struct {
		line []byte
		err  error
	})
	_, done := guarded(ctx.Done(), nil, func() {
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("a method of the payload panicked: %s", panicText(p))
			}
		}()
		r.line, r.err = json.Marshal(l)
	})
	switch {
	case !done:
		return nil, contextError(ctx)
	case r.err != nil:
		return nil, r.err
	case r.line == nil:
		return nil, errors.New("a method of the payload exited its goroutine")
	case len(r.line) >= maxLetterLine:
		return nil, fmt.Errorf("it takes %d bytes, more than the %d of a line", len(r.line)+1, maxLetterLine)
	}
	return append(r.line, '\n'), nil
}

// ImportReport tells what became of the letters of an Import.
type ImportReport struct {
	Imported int
	// Skipped are in the queue already, or came twice.
	Skipped int
	// Evicted are the letters, of those imported or from before, that fell out to
	// make room.
	Evicted int
}

// Import adds letters that Export has written, on this bus or another one: all of
// them, or none. It reads r to its end before, and keeps what it reads in memory.
//
// A letter keeps its id, and so its place among the others, and everything that JSON
// has of it. Its payload is a json.RawMessage, which Typed handlers decode, and so is
// its Original; its failures have an Err with the text, and nothing else. A letter
// whose id is in the queue is skipped, so that an import can be repeated; one that has
// been replayed or purged since is imported again.
//
// WithDeadLetterCapacity holds: the oldest letters fall out, and each goes to
// Observer.LetterEvicted and the log. Letters of a shutdown are not counted.
//
// Fields that are not known are left out, and so are empty lines. Anything else that
// is no letter is an *ImportError, which names the line; it may be up to 16 MiB long.
// Errors: *ImportError, the context's, which is asked between lines, the reader's; an
// *OptionError for a nil reader. It may be called before Start and after Shutdown.
func (q *DLQ) Import(ctx context.Context, r io.Reader) (ImportReport, error) {
	report, err := q.importLetters(ctx, r)
	if err != nil {
		return report, fmt.Errorf("Import: %w", err)
	}
	return report, nil
}

func (q *DLQ) importLetters(ctx context.Context, r io.Reader) (ImportReport, error) {
	var report ImportReport
	if err := q.ready(ctx); err != nil {
		return report, err
	}
	if isNil(r) {
		return report, &OptionError{Option: "Import", Value: "nil", Reason: "the reader must not be nil"}
	}
	var letters []*DeadLetter
	var buffer []byte
	in := bufio.NewReaderSize(r, 64<<10)
	for number := 1; ; number++ {
		if ctx.Err() != nil {
			return report, contextError(ctx)
		}
		line, err := readLine(in, buffer)
		last := err == io.EOF //nolint:errorlint // io.Reader returns the very same
		switch {
		case errors.Is(err, bufio.ErrTooLong):
			return report, &ImportError{Line: number, Reason: fmt.Sprintf("is longer than %d bytes", maxLetterLine)}
		case err != nil && !last:
			return report, fmt.Errorf("line %d: %w", number, err)
		}
		buffer = line
		if len(bytes.TrimSpace(line)) > 0 {
			l, reason := parseLetter(line)
			if reason != "" {
				return report, &ImportError{Line: number, Reason: reason}
			}
			letters = append(letters, l)
		}
		if last {
			break
		}
	}
	report.Imported, report.Evicted = q.bus.letters.insert(letters)
	report.Skipped = len(letters) - report.Imported
	return report, nil
}

// readLine reads the next line into the memory of buffer, with io.EOF if it is the last one.
func readLine(r *bufio.Reader, buffer []byte) ([]byte, error) {
	line := buffer[:0]
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLetterLine {
			return nil, bufio.ErrTooLong
		}
		if len(line)+len(part) > cap(line) { // append alone would grow it by a quarter
			line = slices.Grow(line, len(line)+len(part))
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// letterLine is a DeadLetter as parseLetter decodes it. Decoding needs memory in proportion to
// the line: an element of three bytes must not become a Failure of 150 before it is dropped,
// and a field that occurs again must not be decoded again.
type letterLine struct {
	*DeadLetter
	Event struct {
		Event
		Payload  rawField      `json:"payload"`
		Metadata metadataField `json:"metadata"`
	} `json:"event"`
	Original   rawField     `json:"original"`
	Succeeded  namesField   `json:"succeeded"`
	NotReached namesField   `json:"not_reached"`
	Failures   failureField `json:"failures"`
}

// parseLetter returns the letter of a line, or what is wrong with it. The letter does not
// refer to the line.
func parseLetter(line []byte) (*DeadLetter, string) {
	l := &DeadLetter{}
	in := letterLine{DeadLetter: l}
	if err := json.Unmarshal(line, &in); err != nil {
		return nil, shortenTo(err.Error(), 400) + "; give Import what Export has written"
	}
	l.Event = in.Event.Event
	l.Event.Payload, l.Event.Metadata = in.Event.Payload.value(), in.Event.Metadata.metadata
	l.Original = in.Original.value()
	l.Succeeded, l.NotReached = in.Succeeded.names, in.NotReached.names
	l.Failures = in.Failures.kept()
	omitted := in.Failures.count - len(l.Failures)
	if reason := l.invalid(); reason != "" {
		return nil, reason
	}
	l.FailuresOmitted += omitted
	l.Fingerprint = l.group().Fingerprint
	return l, ""
}

// field is a field of a line that may occur once.
type field struct{ seen bool }

func (f *field) see(name string) error {
	if f.seen {
		return fmt.Errorf("names %s twice; leave one out", name)
	}
	f.seen = true
	return nil
}

// rawField is a payload, as its JSON.
type rawField struct {
	field
	raw json.RawMessage
}

func (f *rawField) UnmarshalJSON(data []byte) error {
	if string(data) != "null" {
		f.raw = bytes.Clone(data)
	}
	return f.see("a payload")
}

func (f *rawField) value() any {
	if f.raw == nil {
		return nil
	}
	return f.raw
}

type metadataField struct {
	field
	metadata EventMetadata
}

func (f *metadataField) UnmarshalJSON(data []byte) error {
	if err := f.see("metadata"); err != nil {
		return err
	}
	return f.metadata.UnmarshalJSON(data)
}

// namesField is a list of subscriptions' names.
type namesField struct {
	field
	names []string
}

func (f *namesField) UnmarshalJSON(data []byte) error {
	if err := f.see("a list of subscriptions"); err != nil {
		return err
	}
	n, only := countStrings(data)
	if !only && string(data) != "null" {
		return errors.New("a list of subscriptions has something else than strings")
	}
	f.names = make([]string, 0, n)
	if err := json.Unmarshal(data, &f.names); err != nil {
		return err
	}
	if slices.Contains(f.names, "") {
		return errors.New(emptyName)
	}
	return nil
}

// countStrings counts the strings in an array, or in an object, and reports whether it has
// nothing else. It stops at the first value of another kind.
func countStrings(data []byte) (n int, only bool) {
	for i := 1; i < len(data)-1; i++ {
		switch data[i] {
		case '"':
			n++
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case ',', ':', ' ', '\t', '\r', '\n':
		default:
			return n, false
		}
	}
	return n, true
}

const emptyName = "a subscription's name is empty"

// failureField is the first failures of a list, and the last ones in a ring.
type failureField struct {
	field
	count       int
	first, last []Failure
}

func (f *failureField) UnmarshalJSON(data []byte) error {
	if err := f.see("failures"); err != nil {
		return err
	}
	if data[0] != '[' {
		return json.Unmarshal(data, new([]Failure)) // null is no failure, anything else the error
	}
	in := json.NewDecoder(bytes.NewReader(data))
	if _, err := in.Token(); err != nil {
		return err
	}
	var next Failure
	for ; in.More(); f.count++ {
		next = Failure{}
		if err := in.Decode(&next); err != nil {
			return err
		}
		next.Error, next.Class = shortenTo(next.Error, maxFailureText), shortenTo(next.Class, maxFailureText)
		if next.Time = next.Time.UTC(); !storable(next.Time) {
			return errors.New(badTime)
		}
		switch {
		case next.Rule.invalid():
			return errors.New(badRule)
		case len(f.first) < firstFailures:
			f.first = append(f.first, next)
		case len(f.last) < lastFailures:
			f.last = append(f.last, next)
		default:
			f.last[(f.count-firstFailures)%lastFailures] = next
		}
	}
	return nil
}

// kept are the failures that remain, in order, with errors of their texts.
func (f *failureField) kept() []Failure {
	oldest := 0
	if f.count > firstFailures+lastFailures {
		oldest = (f.count - firstFailures) % lastFailures
	}
	all := slices.Concat(f.first, f.last[oldest:], f.last[:oldest])
	for i := range all {
		all[i].Err = errors.New(all[i].Error)
	}
	return all
}

// maxFailureText is more than textOf keeps, in bytes.
const maxFailureText = 4 * maxErrorText

// invalid is why a letter that has been decoded is none, "" if it is one.
func (l *DeadLetter) invalid() string {
	const maxCount = math.MaxInt32
	switch {
	case l.ID.IsZero():
		return "has no id"
	case l.Event.ID.IsZero():
		return "has no event.id"
	case l.Event.Time.IsZero():
		return "has no event.time"
	case l.DiedAt.IsZero():
		return "has no died_at"
	case l.Subscription == "":
		return emptyName
	case !slices.Contains(reasons, l.Reason):
		return fmt.Sprintf("reason %q is none of %v", shorten(string(l.Reason)), reasons)
	case min(l.Attempts, l.Replays, l.FailuresOmitted) < 0 || max(l.Attempts, l.Replays, l.FailuresOmitted) > maxCount:
		return fmt.Sprintf("attempts, replays and failures_omitted must be from 0 to %d", maxCount)
	case l.Rule.invalid():
		return badRule
	case !l.Edited && l.Original != nil:
		return "has an original payload, and edited is not set; set it, or leave original out"
	}
	if offence := route.CheckType(l.Event.Type); offence != nil {
		return fmt.Sprintf("event.type %q: %s", shorten(l.Event.Type), offence.Reason)
	}
	if reason := checkKey(l.Event.Key); reason != "" {
		return fmt.Sprintf("event.key %q: %s", shorten(l.Event.Key), reason)
	}
	for _, t := range []*time.Time{&l.Event.Time, &l.DiedAt, &l.Due} {
		if *t = t.UTC(); !storable(*t) {
			return badTime
		}
	}
	return ""
}

const (
	badTime = "a time is not between the years 0 and 9999 in UTC"
	badRule = "the position of a rule must be from 0 to 2147483647"
)

// storable reports whether encoding/json can encode a time in UTC.
func storable(t time.Time) bool { return t.Year() >= 0 && t.Year() <= 9999 }
