package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// tree is a span and its children.
type tree struct {
	number   int // from the root on, from top to bottom
	span     sdktrace.ReadOnlySpan
	children []*tree
	all      map[trace.SpanID]*tree
}

// newTree returns the root of the trace that all spans belong to.
//
// Errors: another number of roots than one, or of traces.
func newTree(spans []sdktrace.ReadOnlySpan) (root *tree, err error) {
	all := make(map[trace.SpanID]*tree)
	for _, s := range spans {
		all[s.SpanContext().SpanID()] = &tree{span: s, all: all}
	}
	var roots []string
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	for _, s := range spans {
		t, parent := all[s.SpanContext().SpanID()], all[s.Parent().SpanID()]
		if parent == nil || s.Parent().TraceID() != s.SpanContext().TraceID() {
			root, roots = t, append(roots, s.Name())
			continue
		}
		parent.children = append(parent.children, t)
	}
	if len(roots) != 1 {
		return nil, fmt.Errorf("the trace is not connected: it has %d roots: %q", len(roots), roots)
	}
	number := 0
	root.walk(func(t *tree) { number++; t.number = number })
	return root, nil
}

func (t *tree) walk(f func(*tree)) {
	f(t)
	for _, c := range t.children {
		c.walk(f)
	}
}

// print prints a line for each span: its number, its name, what its attributes and its status say, and its links.
func (t *tree) print(out io.Writer, indent string) {
	fmt.Fprintf(out, "%s#%d %s%s\n", indent, t.number, t.describe(), t.links())
	for _, c := range t.children {
		c.print(out, indent+"   ")
	}
}

func (t *tree) describe() string {
	text := t.span.Name()
	if name := t.get("messaging.destination.subscription.name"); name != "" {
		text += " at " + name
	}
	if n := t.get("eventbus.attempt"); n != "" && t.get("eventbus.reason") == "" {
		text += ", attempt " + n
	}
	if n := t.get("eventbus.replays"); n != "" && n != "0" {
		text += " of replay " + n
	}
	if t.span.Status().Code == codes.Error {
		text += ", error: " + t.span.Status().Description
	}
	return text
}

// links returns the links of the span, such as " [origin #2, failed_attempt #3]".
func (t *tree) links() string {
	var texts []string
	for _, l := range t.span.Links() {
		to := "of another trace"
		if found := t.all[l.SpanContext.SpanID()]; found != nil {
			to = fmt.Sprint("#", found.number)
		}
		texts = append(texts, find(l.Attributes, "eventbus.link")+" "+to)
	}
	if texts == nil {
		return ""
	}
	return " [" + strings.Join(texts, ", ") + "]"
}

func (t *tree) get(name attribute.Key) string { return find(t.span.Attributes(), name) }

func find(all []attribute.KeyValue, name attribute.Key) string {
	for _, a := range all {
		if a.Key == name {
			return a.Value.String()
		}
	}
	return ""
}

// want is the trace that the program shows.
const want = `#1 POST /orders
   #2 publish order.placed
      #3 process order.placed at billing, attempt 1, error: the bank does not answer [origin #2]
      #4 process order.placed at billing, attempt 2, error: the bank does not answer [origin #2, failed_attempt #3]
      #5 dead_letter order.placed at billing, error: dead letter: exhausted [origin #2, failed_attempt #4]
      #6 process order.placed at billing, attempt 1 of replay 1 [origin #2]
         #7 emit invoice.created [origin #2]
            #8 process invoice.created at mail, attempt 1 [origin #7]
`

// check requires that the trace is the one that the program shows, and that the log names it at each call of a handler.
func (t *tree) check(log string) error {
	var got strings.Builder
	t.print(&got, "")
	if got.String() != want {
		return fmt.Errorf("the trace is not the one that the program shows:\n%s", want)
	}
	if n := strings.Count(log, "trace_id="+t.span.SpanContext().TraceID().String()); n != 4 {
		return fmt.Errorf("the log names the trace %d times, want 4", n)
	}
	return nil
}

// scrape requires that /metrics has the lines, and prints them. The counts of the store may be some milliseconds old.
func (p *shop) scrape(ctx context.Context, lines ...string) error {
	var missing []string
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		_, page, err := p.request(ctx, http.MethodGet, "/metrics")
		if err != nil {
			return err
		}
		missing = nil
		for _, line := range lines {
			if !strings.Contains("\n"+page, "\n"+line+"\n") {
				missing = append(missing, line)
			}
		}
		if missing == nil {
			p.say("%s", strings.Join(lines, "\n"))
			return nil
		}
	}
	return fmt.Errorf("/metrics lacks\n%s", strings.Join(missing, "\n"))
}

func (p *shop) request(ctx context.Context, method, path string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, p.url+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := new(http.Client).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// export requires that OpenTelemetry exports the lines, and prints them: the calls of handlers, and events that were dead-lettered.
func (s *setup) export(ctx context.Context, want ...string) error {
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(ctx, &all); err != nil {
		return err
	}
	var lines []string
	line := func(name string, labels attribute.Set, value string) {
		for _, label := range []attribute.Key{"messaging.destination.name", "messaging.destination.subscription.name", "error.type"} {
			if value := find(labels.ToSlice(), label); value != "" {
				name += " " + value
			}
		}
		lines = append(lines, name+": "+value)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					line(m.Name, p.Attributes, fmt.Sprint(p.Count, " calls"))
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					line(m.Name, p.Attributes, fmt.Sprint(p.Value))
				}
			}
		}
	}
	for _, w := range want {
		if !slices.Contains(lines, w) {
			return fmt.Errorf("OpenTelemetry does not export %q: %q", w, lines)
		}
	}
	s.say("%s", strings.Join(want, "\n"))
	return nil
}

// output is what the program has printed. The log of the bus is written by a goroutine of its own.
type output struct {
	to io.Writer

	mu  sync.Mutex // guards the following, and writes to to
	all strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all.Write(p)
	return o.to.Write(p)
}

// withoutTimes leaves the times out of log entries, so that two runs of the program differ in their ids only.
func withoutTimes(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindTime {
		return slog.Attr{}
	}
	return a
}
