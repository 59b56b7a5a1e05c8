package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/surebus/eventbus"
)

// TextKind is the source of a Text.
type TextKind string

// The kinds of texts that pass through a redactor.
const (
	TextPayload  TextKind = "payload"  // encoded, for operators with ActionViewPayload
	TextError    TextKind = "error"    // of a failure, a panic or a group of letters; also the JSON of Failure.Details
	TextMetadata TextKind = "metadata" // the value of a name
	TextKey      TextKind = "key"

	TextIdempotencyKey TextKind = "idempotency_key"
)

// Text is a text of an event or a handler that is about to be shown.
type Text struct {
	Kind      TextKind // where the text comes from
	EventType string   // the type of the event; empty if the text concerns several events
	Name      string   // the name of the metadata; empty for other kinds
	Value     string   // the text
}

// HiddenPayload replaces a payload in every answer except on the payload and export routes.
type HiddenPayload struct {
	Hidden bool `json:"hidden"` // always true
	// Size is the length of the encoded payload in bytes, and SHA256 the first 8 bytes of its hash, in hexadecimal
	// digits. They are missing if the payload cannot be encoded.
	Size   int    `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
}

// hide returns what stands for a payload.
func hide(ctx context.Context, payload any) HiddenPayload {
	data, err := encodePayload(ctx, payload)
	if err != nil {
		return HiddenPayload{Hidden: true}
	}
	sum := sha256.Sum256(data)
	return HiddenPayload{Hidden: true, Size: len(data), SHA256: hex.EncodeToString(sum[:8])}
}

// encodePayload returns the bytes of a payload: as its store has them, or as JSON. The methods of a payload in memory
// are user code: they run on their own goroutine, and may panic, exit it or block until ctx ends.
func encodePayload(ctx context.Context, payload any) ([]byte, error) {
	switch p := payload.(type) {
	case eventbus.EncodedPayload:
		return p, nil
	case json.RawMessage:
		return p, nil
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: errors.New("a method of the payload exited its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				r = result{err: errors.New("a method of the payload panicked")}
			}
			done <- r
		}()
		r.data, r.err = json.Marshal(payload)
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// redacted is a text that the redactor did not return, or that does not fit.
const redacted = "(redacted)"

// text passes a text through the redactor.
func (c *config) text(t Text) (value string) {
	if c.redact == nil || t.Value == "" {
		return t.Value
	}
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("admin redactor panicked", "panic_type", fmt.Sprintf("%T", p))
			value = redacted
		}
	}()
	return c.redact(t)
}

// letter returns a letter as answers show it: its payloads hidden, and its texts redacted.
func (c *call) letter(l eventbus.DeadLetter) eventbus.DeadLetter {
	if l.Event.Payload != nil {
		l.Event.Payload = hide(c.ctx, l.Event.Payload)
	}
	if l.Original != nil {
		l.Original = hide(c.ctx, l.Original)
	}
	if c.redact == nil {
		return l
	}
	l.Event.Key = c.text(Text{Kind: TextKey, EventType: l.Event.Type, Value: l.Event.Key})
	l.Event.IdempotencyKey = c.text(Text{Kind: TextIdempotencyKey, EventType: l.Event.Type, Value: l.Event.IdempotencyKey})
	l.Event.Metadata = c.metadata(l.Event.Type, l.Event.Metadata)
	l.Failures = slices.Clone(l.Failures)
	for i := range l.Failures {
		l.Failures[i].Error = c.text(Text{Kind: TextError, EventType: l.Event.Type, Value: l.Failures[i].Error})
		l.Failures[i].Details = c.details(l.Event.Type, l.Failures[i].Details)
		l.Failures[i].Err = nil // pages show no other text than Error
	}
	return l
}

// details returns the details of a failure through the redactor, as JSON: what the redactor returns, or else a string
// of it.
func (c *config) details(eventType string, details json.RawMessage) json.RawMessage {
	if len(details) == 0 {
		return nil
	}
	shown := c.text(Text{Kind: TextError, EventType: eventType, Value: string(details)})
	if json.Valid([]byte(shown)) {
		return json.RawMessage(shown)
	}
	text, _ := json.Marshal(shown) // a string always encodes
	return text
}

// metadata returns redacted metadata.
func (c *config) metadata(eventType string, m eventbus.EventMetadata) eventbus.EventMetadata {
	values := make(map[string]string, m.Len())
	for name, value := range m.All() {
		values[name] = c.text(Text{Kind: TextMetadata, EventType: eventType, Name: name, Value: value})
	}
	for range 2 {
		var shown eventbus.EventMetadata
		data, err := json.Marshal(values)
		if err == nil && json.Unmarshal(data, &shown) == nil {
			return shown
		}
		for name := range values { // a value of the redactor is too long for metadata
			values[name] = redacted
		}
	}
	return eventbus.EventMetadata{}
}

// letters redacts the letters of a page.
func (c *call) letters(page eventbus.LetterPage) eventbus.LetterPage {
	page.Letters = c.letterList(page.Letters)
	return page
}

func (c *call) letterList(all []eventbus.DeadLetter) []eventbus.DeadLetter {
	shown := make([]eventbus.DeadLetter, len(all))
	for i := range all {
		shown[i] = c.letter(all[i])
	}
	return shown
}

// group redacts a group of letters.
func (c *config) group(g eventbus.LetterGroup) eventbus.LetterGroup {
	g.Message = c.text(Text{Kind: TextError, Value: g.Message})
	return g
}

// dispatch redacts a dispatch.
func (c *config) dispatch(d eventbus.DispatchInfo) eventbus.DispatchInfo {
	d.Key = c.text(Text{Kind: TextKey, EventType: d.Type, Value: d.Key})
	d.IdempotencyKey = c.text(Text{Kind: TextIdempotencyKey, EventType: d.Type, Value: d.IdempotencyKey})
	d.LastError = c.text(Text{Kind: TextError, EventType: d.Type, Value: d.LastError})
	return d
}

func (c *config) dispatchList(all []eventbus.DispatchInfo) []eventbus.DispatchInfo {
	shown := make([]eventbus.DispatchInfo, len(all))
	for i := range all {
		shown[i] = c.dispatch(all[i])
	}
	return shown
}

// metrics redacts metrics, and hides the texts of the store's errors.
func (c *config) metrics(m eventbus.Metrics) eventbus.Metrics {
	if m.StoreError != "" {
		m.StoreError = "the store does not answer; search the log of the process"
	}
	m.Subscriptions = slices.Clone(m.Subscriptions)
	for i := range m.Subscriptions {
		m.Subscriptions[i].LastError = c.text(Text{Kind: TextError, Value: m.Subscriptions[i].LastError})
	}
	return m
}

// selectors redacts the texts by which a query selects events of a type.
func (c *config) selectors(eventType string, key, idempotencyKey, failure *string) {
	*key = c.text(Text{Kind: TextKey, EventType: eventType, Value: *key})
	*idempotencyKey = c.text(Text{Kind: TextIdempotencyKey, EventType: eventType, Value: *idempotencyKey})
	*failure = c.text(Text{Kind: TextError, EventType: eventType, Value: *failure})
}

// dispatchQuery redacts the texts of events in the query of a bulk action.
func (c *config) dispatchQuery(q *eventbus.DispatchQuery) *eventbus.DispatchQuery {
	if q == nil {
		return nil
	}
	shown := *q
	c.selectors(q.Type, &shown.Key, &shown.IdempotencyKey, &shown.Error)
	return &shown
}

// query redacts the texts of events in a query that the audit has.
func (c *config) query(q *eventbus.LetterQuery) *eventbus.LetterQuery {
	if q == nil {
		return nil
	}
	shown := *q
	c.selectors(q.Type, &shown.Key, &shown.IdempotencyKey, &shown.Error)
	shown.MetadataValue = c.text(Text{Kind: TextMetadata, EventType: q.Type, Name: q.MetadataName, Value: q.MetadataValue})
	return &shown
}
