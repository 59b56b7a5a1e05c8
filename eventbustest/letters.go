package eventbustest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/errchain"
)

// DeadLetter waits until the bus is settled, as WaitSettled does, and returns the only dead
// letter that matches the query. If the number of matching letters is not one, it ends the test
// and shows all letters with their failures.
//
// The empty query matches all letters. Limit, Before and ExactTotal must be zero. Call
// DeadLetter on the test's goroutine.
func DeadLetter(t testing.TB, bus *eventbus.Bus, query eventbus.LetterQuery) eventbus.DeadLetter {
	t.Helper()
	return deadLetters(t, bus, query, 1)[0]
}

// DeadLetters is DeadLetter for any number of letters. It returns the matching letters, oldest
// first, and ends the test if their number is not want.
func DeadLetters(t testing.TB, bus *eventbus.Bus, query eventbus.LetterQuery, want int) []eventbus.DeadLetter {
	t.Helper()
	return deadLetters(t, bus, query, want)
}

// NoDeadLetters waits until the bus is settled, as WaitSettled does, and fails the test if the
// queue has a dead letter. Letters that DeadLetter returned or AllowDeadLetters allows count too.
// The test continues.
func NoDeadLetters(t testing.TB, bus *eventbus.Bus) {
	t.Helper()
	WaitSettled(t, bus)
	if all := lettersOf(t, bus, eventbus.LetterQuery{}); len(all) > 0 {
		t.Errorf("eventbustest: want no dead letters, got %d:\n%s", len(all), stories(all))
	}
}

func deadLetters(t testing.TB, bus *eventbus.Bus, query eventbus.LetterQuery, want int) []eventbus.DeadLetter {
	t.Helper()
	WaitSettled(t, bus)
	found := lettersOf(t, bus, query)
	if len(found) == want {
		kitOf(bus).saw(found)
		return found
	}
	all := lettersOf(t, bus, eventbus.LetterQuery{})
	var b strings.Builder
	fmt.Fprintf(&b, "eventbustest: want %s for %s, got %d", count(want, "dead letter"), queryText(query), len(found))
	if len(all) == 0 {
		fmt.Fprintf(&b, "; the queue is empty, with the ledger %+v", bus.Metrics().Ledger)
	} else {
		fmt.Fprintf(&b, ", of %d:\n%s", len(all), stories(all))
	}
	t.Fatalf("%s", b.String())
	return nil
}

// lettersOf returns all letters that match, oldest first. An invalid query ends the test.
func lettersOf(t testing.TB, bus *eventbus.Bus, query eventbus.LetterQuery) []eventbus.DeadLetter {
	t.Helper()
	if query.Limit != 0 || !query.Before.IsZero() || query.ExactTotal {
		t.Fatalf("eventbustest: %s: Limit, Before and ExactTotal must be zero: the result has no pages", queryText(query))
	}
	all, err := listLetters(bus, query)
	if err != nil {
		t.Fatalf("eventbustest: %v", err)
	}
	return all
}

// listLetters returns all letters that match, oldest first.
func listLetters(bus *eventbus.Bus, query eventbus.LetterQuery) (all []eventbus.DeadLetter, err error) {
	for query.Limit = 10_000; ; {
		page, err := bus.DLQ().List(context.Background(), query)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Letters...)
		if page.Next.IsZero() {
			slices.Reverse(all)
			return all, nil
		}
		query.Before = page.Next
	}
}

// queryText formats the fields that are set.
func queryText(q eventbus.LetterQuery) string {
	var fields []string
	add := func(set bool, format string, args ...any) {
		if set {
			fields = append(fields, fmt.Sprintf(format, args...))
		}
	}
	add(q.Type != "", "Type: %q", q.Type)
	add(q.Subscription != "", "Subscription: %q", q.Subscription)
	add(q.Reason != "", "Reason: %q", q.Reason)
	add(q.Fingerprint != "", "Fingerprint: %q", q.Fingerprint)
	add(!q.Event.IsZero(), "Event: %s", q.Event)
	add(q.Key != "", "Key: %q", q.Key)
	add(q.IdempotencyKey != "", "IdempotencyKey: %q", q.IdempotencyKey)
	add(q.MetadataName != "", "MetadataName: %q", q.MetadataName)
	add(q.MetadataValue != "", "MetadataValue: %q", q.MetadataValue)
	add(q.Error != "", "Error: %q", q.Error)
	add(!q.Since.IsZero(), "Since: %s", q.Since)
	add(!q.Until.IsZero(), "Until: %s", q.Until)
	add(!q.PublishedSince.IsZero(), "PublishedSince: %s", q.PublishedSince)
	add(!q.PublishedUntil.IsZero(), "PublishedUntil: %s", q.PublishedUntil)
	add(q.Replayed, "Replayed: true")
	add(q.All, "All: true")
	add(q.Limit != 0, "Limit: %d", q.Limit)
	add(!q.Before.IsZero(), "Before: %s", q.Before)
	add(q.ExactTotal, "ExactTotal: true")
	return "LetterQuery{" + strings.Join(fields, ", ") + "}"
}

const (
	clockLayout   = "15:04:05.000"
	storiesShown  = 10
	failuresShown = 20
	stackShown    = 12  // lines
	payloadShown  = 200 // bytes
)

// stories formats letters for the output of a failed test.
func stories(letters []eventbus.DeadLetter) string {
	var b strings.Builder
	for i := range letters {
		if i == storiesShown {
			fmt.Fprintf(&b, "  and %d more\n", len(letters)-i)
			break
		}
		story(&b, &letters[i])
	}
	return b.String()
}

// payloadText formats a payload. A payload without JSON may contain itself: to format it would end
// the test binary.
func payloadText(payload any) (text string) {
	switch p := payload.(type) {
	case json.RawMessage:
		return string(p)
	case eventbus.EncodedPayload:
		return fmt.Sprintf("%q", []byte(p))
	}
	text = "(not shown: encoding/json cannot encode it)"
	defer func() { _ = recover() }() // from MarshalJSON
	if _, err := json.Marshal(payload); err == nil {
		text = fmt.Sprintf("%+v", payload)
	}
	return text
}

// story formats a letter with its failures.
func story(b *strings.Builder, l *eventbus.DeadLetter) {
	fmt.Fprintf(b, "  %s %s: %s at %s after %s", l.Event.Type, l.Event.ID, l.Reason, l.Subscription, count(l.Attempts, "attempt"))
	if l.Replays > 0 {
		fmt.Fprintf(b, ", replayed %s", count(l.Replays, "time"))
	}
	payload := payloadText(l.Event.Payload)
	if len(payload) > payloadShown {
		payload = strings.ToValidUTF8(payload[:payloadShown], "") + "…"
	}
	fmt.Fprintf(b, " (letter %s)\n    payload %T %s\n", l.ID, l.Event.Payload, payload)
	if len(l.Succeeded) > 0 {
		fmt.Fprintf(b, "    succeeded at %s\n", strings.Join(l.Succeeded, ", "))
	}
	if len(l.NotReached) > 0 {
		fmt.Fprintf(b, "    did not reach %s\n", strings.Join(l.NotReached, ", "))
	}
	shown := l.Failures
	if len(shown) > failuresShown {
		fmt.Fprintf(b, "    the last %d of %d failures:\n", failuresShown, len(shown)+l.FailuresOmitted)
		shown = shown[len(shown)-failuresShown:]
	}
	for _, f := range shown {
		fmt.Fprintf(b, "    attempt %d, %s, %s, after %s: %s\n", f.Attempt, f.Subscription,
			f.Time.Format(clockLayout), f.Duration.Round(time.Microsecond), indent(f.Error))
		if panicked, ok := errchain.As[*eventbus.PanicError](f.Err); ok {
			b.WriteString(stackText(panicked.Stack))
		}
	}
}

// stackText formats the part of a panic's stack that belongs to the handler.
func stackText(stack []byte) string {
	lines := bytes.Split(bytes.TrimSpace(stack), []byte("\n"))
	// The frames above the last panic belong to the recovery, or to a middleware that panicked
	// again. A frame has two lines.
	for i, line := range slices.Backward(lines) {
		if bytes.HasPrefix(line, []byte("panic(")) && i+2 < len(lines) {
			lines = lines[i+2:]
			break
		}
	}
	var b strings.Builder
	for _, line := range lines[:min(len(lines), stackShown)] {
		fmt.Fprintf(&b, "        %s\n", bytes.TrimSpace(line))
	}
	return b.String()
}

// indent aligns the lines of an error below its first line.
func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n        ") }

// count formats a number with its noun.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
