package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

// timeText returns a time for people, in UTC.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// asOf returns a time and how long ago it was.
func asOf(t time.Time) string {
	age := time.Since(t)
	switch {
	case age < time.Minute:
		return timeText(t) + ", just now"
	case age < time.Hour:
		return timeText(t) + ", " + plural(int(age/time.Minute), "minute") + " ago"
	case age < 48*time.Hour:
		return timeText(t) + ", " + plural(int(age/time.Hour), "hour") + " ago"
	}
	return timeText(t) + ", " + plural(int(age/(24*time.Hour)), "day") + " ago"
}

// count returns a number with separators: 1,234,567.
func count[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural returns a number with its noun.
func plural[T int | int64](n T, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}

// checkLimit refuses the size of a page that the bus would refuse.
func checkLimit(n int) error {
	const most = 10_000
	if n < 1 || n > most {
		return usage("use several pages: the command prints how to get the next one", "--limit %d: must be from 1 to %d", n, most)
	}
	return nil
}

// payloadBytes returns the bytes of a payload. It is nil for none.
func payloadBytes(payload any) []byte {
	switch p := payload.(type) {
	case nil:
		return nil
	case json.RawMessage:
		return p
	case eventbus.EncodedPayload:
		return p
	}
	text, _ := json.Marshal(payload) // it was decoded from JSON
	return text
}

// hiddenPayload stands for a payload that is not shown. The API uses the same form.
type hiddenPayload struct {
	Hidden bool   `json:"hidden"` // true
	Size   int    `json:"size"`   // in bytes
	SHA256 string `json:"sha256,omitempty"`
}

// hide returns what stands for a payload, or nil for none.
func hide(payload any) any {
	if h, ok := payload.(hiddenPayload); ok {
		return h // the API has hidden it
	}
	b := payloadBytes(payload)
	if b == nil {
		return nil
	}
	sum := sha256.Sum256(b)
	return hiddenPayload{true, len(b), hex.EncodeToString(sum[:8])}
}

// payloadSize describes a payload without showing it.
func payloadSize(payload any) string {
	h, ok := hide(payload).(hiddenPayload)
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%s, sha256 %s", plural(h.Size, "byte"), h.SHA256)
}

// payloadText returns a payload for people: JSON indented, other text as it is, and other bytes in base64.
func payloadText(payload any) string {
	b := payloadBytes(payload)
	var indented bytes.Buffer
	switch {
	case b == nil:
		return "none"
	case json.Indent(&indented, b, "", "  ") == nil:
		return term.EscapeLines(indented.String())
	case utf8.Valid(b):
		return term.EscapeLines(string(b))
	}
	return "base64 " + base64.StdEncoding.EncodeToString(b)
}

// cutName shortens a text of the user for a message.
func cutName(s string) string { return term.Cut(s, 80) }

// indent puts a prefix before each line of a text.
func indent(text, prefix string) string {
	return prefix + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+prefix)
}

// withoutPayload returns a letter whose payloads are hidden.
func withoutPayload(l eventbus.DeadLetter) eventbus.DeadLetter {
	l.Event.Payload, l.Original = hide(l.Event.Payload), hide(l.Original)
	return l
}

// lastError returns the text of the last failure.
func lastError(l *eventbus.DeadLetter) string {
	if n := len(l.Failures); n > 0 {
		return l.Failures[n-1].Error
	}
	return ""
}
