package mwl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// defaultTraceSpans is how many spans a Trace keeps if nothing else is set.
const defaultTraceSpans = 10_000

// Trace records the spans of executions. The zero Trace is ready to use:
//
//	var trace mwl.Trace
//	definition.Execute(ctx, input, mwl.WithObserver(trace.Observer()))
//	fmt.Print(&trace)
//
// Its methods may be called concurrently, also while executions run. A Trace may record several executions. Concurrent
// executions need different ids: otherwise their spans get mixed up, and some never end.
type Trace struct {
	// MaxSpans is how many spans the trace keeps. Zero is 10,000; a negative number is
	// no limit. Further spans are dropped and counted. The first ones stay, so a span
	// that is kept has its parent. Set it before Observer.
	MaxSpans int
	// ValueBytes is [Observer.ValueBytes]: zero keeps no values. Set it before Observer.
	ValueBytes int

	mu sync.Mutex // guards the following
	// spans are in the order of begin.
	spans   []tracedSpan
	open    map[spanID]int
	dropped int
}

// tracedSpan is a span and the places of its children in the list.
type tracedSpan struct {
	EndedSpan
	root     bool
	children []int
}

type spanID struct {
	execution string
	id        uint64
}

// Observer returns an observer that records in the trace.
func (t *Trace) Observer() Observer {
	limit := t.MaxSpans
	if limit == 0 {
		limit = defaultTraceSpans
	}
	return Observer{
		ValueBytes: t.ValueBytes,
		SpanBegun:  func(_ context.Context, s Span) { t.begun(s, limit) },
		SpanEnded:  func(_ context.Context, s EndedSpan) { t.ended(s) },
	}
}

func (t *Trace) begun(s Span, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	parent, found := t.open[spanID{s.ExecutionID, s.ParentID}]
	root := s.ParentID == 0
	if limit >= 0 && len(t.spans) >= limit || !root && !found {
		t.dropped++
		return
	}
	if t.open == nil {
		t.open = map[spanID]int{}
	}
	at := len(t.spans)
	t.open[spanID{s.ExecutionID, s.ID}] = at
	t.spans = append(t.spans, tracedSpan{EndedSpan: EndedSpan{Span: s}, root: root})
	if !root {
		t.spans[parent].children = append(t.spans[parent].children, at)
	}
}

func (t *Trace) ended(s EndedSpan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := spanID{s.ExecutionID, s.ID}
	if at, found := t.open[id]; found {
		t.spans[at].EndedSpan = s
		delete(t.open, id)
	}
}

// Spans returns the spans in the order of begin, so parents come before their children.
// A span that still runs has no End.
func (t *Trace) Spans() []EndedSpan {
	spans, _ := t.snapshot()
	return spans
}

func (t *Trace) snapshot() (spans []EndedSpan, dropped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	spans = make([]EndedSpan, len(t.spans))
	for i := range t.spans {
		spans[i] = t.spans[i].EndedSpan
		spans[i].Span = spans[i].copied()
	}
	return spans, t.dropped
}

// Dropped returns how many spans the trace did not keep.
func (t *Trace) Dropped() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

// MarshalJSON returns {"spans": […], "dropped": n}, with the spans of [Trace.Spans].
func (t *Trace) MarshalJSON() ([]byte, error) {
	spans, dropped := t.snapshot()
	return json.Marshal(struct {
		Spans   []EndedSpan `json:"spans"`
		Dropped int         `json:"dropped"`
	}{spans, dropped})
}

// String returns the text that WriteTo writes.
func (t *Trace) String() string {
	var b strings.Builder
	_, _ = t.WriteTo(&b) // a Builder accepts all
	return b.String()
}

// WriteTo writes the executions as trees, with one span per line: its duration, kind and name, and its failure. The
// dispatches of a Gather are in the order of their index.
//
// The text is safe on a terminal. Names, types and codes with other characters than letters, digits and ._-/[]: are
// quoted, and control characters are escaped everywhere.
func (t *Trace) WriteTo(w io.Writer) (int64, error) {
	var text bytes.Buffer
	t.copied().write(&text)
	return text.WriteTo(w)
}

// spanTrees is what a Trace has recorded so far.
type spanTrees struct {
	spans   []tracedSpan
	dropped int
}

// copied returns what the trace has. Formatting it takes long, and would block the
// executions that are observed if it ran under the lock.
func (t *Trace) copied() spanTrees {
	t.mu.Lock()
	defer t.mu.Unlock()
	return spanTrees{slices.Clone(t.spans), t.dropped}
}

// write writes all trees.
func (t spanTrees) write(text *bytes.Buffer) {
	width := len("running")
	for i := range t.spans {
		width = max(width, len(t.spans[i].took()))
	}
	for i := range t.spans {
		if s := &t.spans[i]; s.root {
			outcome := s.outcome()
			if outcome == "" && !s.End.IsZero() {
				outcome = ": " + TypeSuccess
			}
			fmt.Fprintf(text, "execution %s%s\n", named(s.ExecutionID), outcome)
			t.writeSpan(text, s, width, 0, false)
		}
	}
	if t.dropped > 0 {
		fmt.Fprintf(text, "%d further spans were dropped\n", t.dropped)
	}
}

// writeSpan writes a span and those inside. again is whether the middleware around has run
// its scope more than once.
func (t spanTrees) writeSpan(text *bytes.Buffer, s *tracedSpan, width, depth int, again bool) {
	indent := strings.Repeat("  ", depth)
	fmt.Fprintf(text, "%*s  %s%s", width+2, s.took(), indent, s.title())
	if again && s.Run > 0 {
		fmt.Fprintf(text, " run %d", s.Run)
	}
	text.WriteString(s.outcome())
	if s.Next != "" {
		if s.Outcome != TypeSuccess {
			text.WriteString(", caught")
		}
		fmt.Fprintf(text, " → %s", named(s.Next))
	}
	text.WriteByte('\n')
	for _, v := range []struct{ name, text string }{
		{"input", s.Input}, {"arguments", s.Arguments}, {"output", s.Output}, {"message", s.Message},
	} {
		if v.text != "" {
			fmt.Fprintf(text, "%*s  %s    %s: %s\n", width+2, "", indent, v.name, escaped(v.text))
		}
	}
	children := slices.Clone(s.children)
	slices.SortStableFunc(children, func(a, b int) int {
		if x, y := t.spans[a].Index, t.spans[b].Index; x != nil && y != nil {
			return *x - *y
		}
		return a - b
	})
	runs := 0
	for _, i := range children {
		runs = max(runs, t.spans[i].Run)
	}
	for _, i := range children {
		t.writeSpan(text, &t.spans[i], width, depth+1, runs > 1)
	}
}

// took is how long the span took, to three digits or more.
func (s *tracedSpan) took() string {
	if s.End.IsZero() {
		return "running"
	}
	d := s.End.Sub(s.Start)
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 1000).String()
		}
	}
	return d.String()
}

// title is what the span is.
func (s *tracedSpan) title() string {
	title := string(s.Kind)
	if s.Index != nil {
		title += " [" + strconv.Itoa(*s.Index) + "]"
	}
	name := s.Name
	for _, prefix := range []string{"mwl:provider.call/", "mwl:provider.middleware/"} {
		name = strings.TrimPrefix(name, prefix)
	}
	if name != "" {
		title += " " + named(name)
	}
	if s.Action != "" {
		title += " (" + s.Action + ")"
	}
	return title
}

// outcome is the failure of a span that failed.
func (s *tracedSpan) outcome() string {
	if s.Code == "" && (s.Outcome == "" || s.Outcome == TypeSuccess) {
		return ""
	}
	text := ": "
	if s.Interrupted {
		text += "interrupted by "
	}
	return text + named(s.Outcome) + " " + named(s.Code)
}

// named quotes a name, unless it is plain: its end would be hard to see, and it could
// look like an outcome.
func named(name string) string {
	quoted := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-/[]:", r)
	}
	if name == "" || strings.ContainsFunc(name, quoted) {
		return strconv.Quote(strings.ToValidUTF8(name, "\uFFFD"))
	}
	return name
}

// escaped has escapes in place of what is not printable. A byte that is no UTF-8 may be
// a control character to a terminal.
func escaped(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}
