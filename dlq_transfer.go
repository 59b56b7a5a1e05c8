package eventbus

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/apart"
	"github.com/surebus/eventbus/internal/jsonline"
	"github.com/surebus/eventbus/internal/route"
	"github.com/surebus/eventbus/internal/texts"
)

// maxLetterLine bounds a line of an export, in bytes.
const maxLetterLine = 16 << 20

// ExportReport counts the letters of an Export by outcome. Letters that are in none of Exported,
// Gone and Unexported were not processed.
type ExportReport struct {
	// Matched is the number of matching letters when the operation began.
	Matched int `json:"matched"`
	// Exported is the number of letters written.
	Exported int `json:"exported"`
	// Gone counts the letters that another call replayed or purged meanwhile, or that were evicted.
	Gone int `json:"gone"`
	// Unexported lists the letters that could not be encoded.
	Unexported []UnexportedLetter `json:"-"`
}

// UnexportedLetter is a letter that could not be encoded.
type UnexportedLetter struct {
	ID  LetterID // the letter's id
	Err error    // why the letter could not be encoded
}

// Export writes the letters that match a query to w, oldest first. Each letter is one line: a DeadLetter as
// encoding/json encodes it. Import reads these lines. The letters stay in the queue. An empty query matches all
// letters. The set is fixed at the start; letters that leave the queue meanwhile are not written. From a store, Export
// reads up to 500 letters at a time, and writes these as they were read. For a query with Type, Error or MetadataName
// it reads them one by one.
//
// Export skips a letter whose payload cannot be encoded: a channel, a cycle, or a MarshalJSON that fails or panics. It
// also skips a letter whose line is longer than 16 MiB. The report lists these. MarshalJSON runs on its own goroutine;
// Export waits for it until ctx ends.
//
// Export calls Write once per line, without a lock, and stops at the first error. Pass a
// bufio.Writer and flush it afterwards. The report is valid with an error too.
//
// Errors: those of List; an *OptionError for Limit, Before, a nil writer, and options other than
// OnProgress; the writer's error.
func (q *DLQ) Export(ctx context.Context, w io.Writer, query LetterQuery, opts ...TransferOption) (ExportReport, error) {
	var report ExportReport
	f, err := q.wholeFilter(ctx, query)
	o, invalid := newBulk("Export", opts)
	switch {
	case err != nil:
	case invalid != nil:
		err = invalid
	case isNil(w):
		err = &OptionError{Option: "Export", Value: "nil", Reason: "the writer must not be nil"}
	case o.operator != operator{}:
		err = &OptionError{Option: "Export", Value: o.operator.by, Reason: "takes OnProgress only: an export is not in the audit"}
	default:
		err = q.export(ctx, w, f, o, &report)
	}
	if err != nil {
		return report, fmt.Errorf("Export: %w", err)
	}
	return report, nil
}

func (q *DLQ) export(ctx context.Context, w io.Writer, f *letterFilter, o *bulk, report *ExportReport) error {
	letters, err := q.bus.letters.snapshot(ctx, f)
	if err != nil {
		return err
	}
	report.Matched = len(letters)
	for done := 0; done < len(letters); {
		part := nextPart(letters[done:])
		get, err := q.bus.letters.read(ctx, f, part)
		if err == nil {
			err = q.exportPart(ctx, w, part, get, report)
		}
		if err != nil {
			return err
		}
		done += len(part)
		o.report(len(letters), done)
	}
	return nil
}

func (q *DLQ) exportPart(ctx context.Context, w io.Writer, part []letterRef, get func(LetterID) (keptLetter, bool), report *ExportReport) error {
	for _, id := range letterIDs(part) {
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		l, ok := get(id)
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

// encode returns the letter's line. A method of the payload may panic, exit its goroutine or block;
// encode waits for it until ctx ends.
func (l *DeadLetter) encode(ctx context.Context) ([]byte, error) {
	r := new(struct {
		line []byte
		err  error
	})
	_, done := apart.Run(ctx.Done(), nil, panicText, func() {
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
	case !json.Valid(r.line): // nested more deeply than encoding/json decodes
		return nil, errors.New("the line is nested too deeply for Import")
	case len(r.line) >= maxLetterLine:
		return nil, fmt.Errorf("the line has %d bytes, more than the limit of %d", len(r.line)+1, maxLetterLine)
	}
	return append(r.line, '\n'), nil
}

// ImportReport counts the letters of an Import by outcome.
type ImportReport struct {
	// Imported is the number of letters added.
	Imported int `json:"imported"`
	// Skipped counts the letters that were in the queue already, earlier in the input, or Resumed.
	Skipped int `json:"skipped"`
	// Resumed is the number of letters that an earlier Import of the same letters, which did not
	// complete, has added or skipped. Import continues behind them.
	Resumed int `json:"resumed,omitempty"`
	// Evicted counts the letters that were evicted to make room. They may be imported letters or older
	// ones.
	Evicted int `json:"evicted"`
}

// Import adds the letters that Export wrote, on this bus or another one. It reads r to the end first,
// and keeps the letters in memory: it adds none if a line is invalid.
//
// Import adds the letters in parts of up to 500 letters and 4 MiB, between which events are published. With a store,
// each part is one commit that notes how far the import is. After an error or a crash, the queue has the letters of
// complete parts, and the report counts them. Repeat the import with the same letters: it continues behind the last
// part. Letters of earlier parts that were replayed or purged meanwhile are not added again. The store keeps the note
// for 7 days, or until an import of these letters completes.
//
// A letter keeps its id, and so its position in the queue, and all fields that the JSON has. Its
// payload and its Original are a json.RawMessage with every digit, which Typed handlers decode. To
// change exported letters with encoding/json, decode them with UseNumber. Err of a failure has
// the text only. Import skips a letter whose id is in the queue, so an import can be repeated. A
// letter that was replayed or purged since a complete import is imported again.
//
// WithDeadLetterCapacity applies: the oldest letters are evicted, and each is reported to
// Observer.LetterEvicted and logged. Letters with the reason shutdown are not counted.
//
// Import ignores unknown fields and empty lines. Any other line that is not a letter is an
// *ImportError with the line number. A line may have up to 16 MiB; decoding it takes memory in
// proportion to its length.
//
// Errors: *ImportError; the reader's error; the context's error, checked between lines and between parts; the
// store's; an *OptionError for a nil reader or an invalid option.
func (q *DLQ) Import(ctx context.Context, r io.Reader, opts ...TransferOption) (ImportReport, error) {
	report, err := q.importLetters(ctx, r, opts)
	if err != nil && report.Imported > 0 {
		err = fmt.Errorf("after %d letters, behind which the same import continues: %w", report.Imported, err)
	}
	if err != nil {
		return report, fmt.Errorf("Import: %w", err)
	}
	return report, nil
}

func (q *DLQ) importLetters(ctx context.Context, r io.Reader, opts []TransferOption) (report ImportReport, err error) {
	if err := q.ready(ctx); err != nil {
		return report, err
	}
	o, err := newBulk("Import", opts)
	if err != nil {
		return report, err
	}
	if isNil(r) {
		return report, &OptionError{Option: "Import", Value: "nil", Reason: "the reader must not be nil"}
	}
	var letters []importedLetter
	known, digest := make(map[LetterID]bool), sha256.New()
	var buffer []byte
	in := bufio.NewReaderSize(r, 64<<10)
	for number := 1; ; number++ {
		if ctx.Err() != nil {
			return report, contextError(ctx)
		}
		line, err := jsonline.Read(in, buffer, maxLetterLine)
		last := err == io.EOF //nolint:errorlint // Read returns io.EOF unwrapped
		switch {
		case err == bufio.ErrTooLong: //nolint:errorlint // Read returns it unwrapped
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
			_, _ = fmt.Fprintf(digest, "%d ", len(line)) // the length separates the lines
			_, _ = digest.Write(line)
			if known[l.ID] {
				report.Skipped++
			} else {
				letters, known[l.ID] = append(letters, importedLetter{l, len(line)}), true
			}
		}
		if last {
			break
		}
	}
	if len(letters) == 0 {
		return report, nil
	}
	entry := q.bus.operators.entry(o.operator, AuditImport)
	entry.Count = len(letters)
	if err := q.bus.operators.auditBulk(ctx, entry); err != nil {
		return report, err
	}
	progress := func(done int) { o.report(len(letters), done) }
	m := &importing{letters: letters, digest: hex.EncodeToString(digest.Sum(nil))}
	if err = q.bus.operators.insertLetters(ctx, m, &report, progress); err != nil {
		m.note = nil // the next import needs it
	}
	unforgotten := q.bus.operators.auditOutcome(ctx, entry, AuditOutcome{Done: report.Imported}, err, m.note)
	if err == nil && m.note != nil {
		err = unforgotten
	}
	return report, err
}

// insertLetters adds the letters of an import in parts, behind those of an earlier one.
func (op *operators) insertLetters(ctx context.Context, m *importing, report *ImportReport, progress func(done int)) (err error) {
	if report.Resumed, err = op.letters.resume(ctx, m); err != nil {
		return err
	}
	report.Skipped += report.Resumed
	for done := report.Resumed; done < len(m.letters); progress(done) {
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		part := nextImported(m.letters[done:])
		done += len(part)
		inserted, evicted, err := op.letters.insert(ctx, m, part, done)
		if err != nil {
			return err
		}
		report.Imported += inserted
		report.Evicted += evicted
		report.Skipped += len(part) - inserted
	}
	return nil
}

// letterLine is the type that parseLetter decodes a line into. Its fields bound the memory that
// decoding takes: with a plain DeadLetter, millions of elements of three bytes each become Failures
// of 150 bytes before the limits apply, and a repeated field is decoded again.
type letterLine struct {
	*DeadLetter
	Event struct {
		Event
		Payload  jsonline.Raw  `json:"payload"`
		Metadata metadataField `json:"metadata"`
	} `json:"event"`
	Original   jsonline.Raw     `json:"original"`
	Succeeded  jsonline.Strings `json:"succeeded"`
	NotReached jsonline.Strings `json:"not_reached"`
	Failures   failureField     `json:"failures"`
	ReplayLog  replayField      `json:"replay_log"`
}

// parseLetter returns the letter of a line, or the reason why it is invalid. The letter does not
// reference the memory of the line.
func parseLetter(line []byte) (*DeadLetter, string) {
	l, reason := decodeLetterLine(line)
	if reason != "" {
		return nil, reason + "; Import reads the output of Export"
	}
	if reason := l.invalid(); reason != "" {
		return nil, reason
	}
	return l, ""
}

// decodeLetterLine is parseLetter for a line that the bus has written itself: it may be of an event that could not be taken in.
func decodeLetterLine(line []byte) (*DeadLetter, string) {
	l := &DeadLetter{}
	in := letterLine{DeadLetter: l}
	in.Failures = failureField{Name: "failures", First: firstFailures, Last: lastFailures, Normal: normalFailure}
	in.ReplayLog = replayField{Name: "replay_log", Last: keptReplays, Normal: normalReplay}
	if err := json.Unmarshal(line, &in); err != nil {
		return nil, texts.Shorten(err.Error(), 400)
	}
	l.Event = in.Event.Event
	l.Event.Payload, l.Event.Metadata = in.Event.Payload.Value(), in.Event.Metadata.metadata
	l.Original = in.Original.Value()
	l.Succeeded, l.NotReached = in.Succeeded.Values, in.NotReached.Values
	l.Failures = in.Failures.Kept()
	l.FailuresOmitted += in.Failures.Count - len(l.Failures)
	l.ReplayLog = in.ReplayLog.Kept()
	l.Fingerprint = l.Group().Fingerprint
	return l, ""
}

type metadataField struct {
	jsonline.Field
	metadata EventMetadata
}

func (f *metadataField) UnmarshalJSON(data []byte) error {
	if err := f.See("metadata"); err != nil {
		return err
	}
	return f.metadata.UnmarshalJSON(data)
}

type (
	failureField = jsonline.Ends[Failure]
	replayField  = jsonline.Ends[LetterReplay]
)

// normalReplay limits the text of an imported replay, and refuses a time that a store could not keep.
func normalReplay(r *LetterReplay) error {
	r.By, r.At, r.Bulk = texts.Shorten(r.By, maxName), r.At.UTC(), r.Bulk.UTC()
	if !driver.Storable(r.At) || !driver.Storable(r.Bulk) {
		return errors.New(badTime)
	}
	return nil
}

const emptyName = "a subscription name is empty"

// normalFailure limits the texts of an imported failure, and refuses one that a store could not keep.
func normalFailure(f *Failure) error {
	f.Error, f.Class = texts.Shorten(f.Error, maxFailureText), texts.Shorten(f.Class, maxFailureText)
	f.Details, f.Err = texts.Details(f.Details), errors.New(f.Error)
	if f.Time = f.Time.UTC(); !driver.Storable(f.Time) {
		return errors.New(badTime)
	}
	if f.Rule.invalid() {
		return errors.New(badRule)
	}
	return nil
}

// maxFailureText bounds the texts of imported failures, in bytes. It is above what textOf keeps, so
// that an export and an import change no text.
const maxFailureText = 4 * maxErrorText

// invalid returns the reason why a decoded letter is invalid, or "".
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
	case l.Subscription == "" || slices.Contains(l.Succeeded, "") || slices.Contains(l.NotReached, ""):
		return emptyName
	case !slices.Contains(reasons, l.Reason):
		return fmt.Sprintf("reason %q must be one of %v", shorten(string(l.Reason)), reasons)
	case min(l.Attempts, l.Replays, l.FailuresOmitted) < 0 || max(l.Attempts, l.Replays, l.FailuresOmitted) > maxCount:
		return fmt.Sprintf("attempts, replays and failures_omitted must be from 0 to %d", maxCount)
	case l.Rule.invalid():
		return badRule
	case !l.Edited && l.Edits != 0, l.Edits < 0, l.Edits > maxCount:
		return fmt.Sprintf("edits must be from 1 to %d if edited is set, and 0 or left out otherwise", maxCount)
	case !l.Edited && l.Original != nil:
		return "has an original payload without edited; set edited, or omit original"
	}
	if offence := route.CheckType(l.Event.Type); offence != nil {
		return fmt.Sprintf("event.type %q: %s", shorten(l.Event.Type), offence.Reason)
	}
	if reason := checkKey(l.Event.Key); reason != "" {
		return fmt.Sprintf("event.key %q: %s", shorten(l.Event.Key), reason)
	}
	if reason := checkKey(l.Event.IdempotencyKey); reason != "" {
		return fmt.Sprintf("event.idempotency_key %q: %s", shorten(l.Event.IdempotencyKey), reason)
	}
	for _, t := range []*time.Time{&l.Event.Time, &l.DiedAt, &l.Due} {
		if *t = t.UTC(); !driver.Storable(*t) {
			return badTime
		}
	}
	return ""
}

const (
	badTime = "a time is outside the years 0 to 9999 in UTC"
	badRule = "the position of a rule must be from 0 to 2147483647"
)
