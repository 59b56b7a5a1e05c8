package admin

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/surebus/eventbus"
)

// GroupPage is a page of the groups of dead letters, largest first.
type GroupPage struct {
	Groups []eventbus.LetterGroup `json:"groups"`         // largest first
	Total  int                    `json:"total"`          // groups on all pages
	Next   int                    `json:"next,omitempty"` // the offset of the next page; 0 on the last one
}

// EditRequest is the body of a replay with another payload.
type EditRequest struct {
	Payload json.RawMessage `json:"payload"`       // the new payload, as JSON
	Why     string          `json:"why,omitempty"` // for the audit: up to 255 bytes without control characters
}

// Done is the answer to a change that has no other result.
type Done struct{}

func (c *call) listLetters() (any, error) {
	var q eventbus.LetterQuery
	if err := c.parameters(letterParameters(&q)); err != nil {
		return nil, err
	}
	page, err := c.bus.DLQ().List(c.ctx, q)
	if err != nil {
		return nil, err
	}
	return c.letters(page), nil
}

func (c *call) getLetter() (any, error) {
	l, err := c.findLetter()
	if err != nil {
		return nil, err
	}
	return c.letter(l), nil
}

// findLetter returns the letter in the path, with its payload.
func (c *call) findLetter() (l eventbus.DeadLetter, err error) {
	id, err := c.letterID()
	if err != nil {
		return l, err
	}
	return c.bus.DLQ().Get(c.ctx, id)
}

// payloadText returns a payload as an operator with ActionViewPayload may see it. changed is set if the redactor changed
// it: an editor must not start from such a text.
func (c *call) payloadText(eventType string, payload any) (text string, changed bool, err error) {
	data, err := encodePayload(c.ctx, payload)
	if err != nil {
		return "", false, &Error{Code: CodeUnprocessable, Message: "the payload cannot be encoded", Remedy: "look at it in the process", err: err}
	}
	text = c.text(Text{Kind: TextPayload, EventType: eventType, Value: string(data)})
	return text, text != string(data), nil
}

func (c *call) getPayload() (any, error) {
	l, err := c.findLetter()
	if err != nil {
		return nil, err
	}
	text, _, err := c.payloadText(l.Event.Type, l.Event.Payload)
	if err != nil {
		return nil, err
	}
	c.attach(l.ID.String()+".payload", "application/octet-stream")
	c.setWriteDeadline(answerTimeout)
	_, _ = io.WriteString(c.w, text) // the peer may have gone
	return nil, nil
}

// attach sets the headers of a download. name must be safe in a header.
func (c *call) attach(name, media string) {
	c.w.Header().Set("Content-Type", media)
	c.w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
}

func (c *call) exportLetters() (any, error) {
	var q eventbus.LetterQuery
	if err := c.parameters(filterParameters(&q)); err != nil {
		return nil, err
	}
	if c.redact != nil {
		return nil, forbidden("the export of complete letters is off, because the handler has a redactor", "export beside the store, with DLQ.Export")
	}
	out := &exportWriter{call: c}
	buffered := bufio.NewWriterSize(out, 64<<10)
	_, err := c.bus.DLQ().Export(c.ctx, buffered, q)
	if err == nil {
		err = buffered.Flush()
	}
	switch {
	case err == nil && !out.begun: // no letter matches
		out.begin()
		return nil, nil
	case err != nil && out.begun:
		// A complete answer would look like a complete export.
		c.log.Error("admin export failed", c.attributes("error", cut(err.Error(), 4096))...)
		panic(http.ErrAbortHandler)
	}
	return nil, err
}

// writeTimeout bounds a write of a stream to a slow peer, and a read of one from it.
const writeTimeout = 10 * time.Second

// exportWriter writes the headers before the first line, so that an earlier error has an answer.
type exportWriter struct {
	*call
	begun bool
}

func (w *exportWriter) begin() {
	w.begun = true
	w.attach("dead-letters.jsonl", "application/jsonl")
}

func (w *exportWriter) Write(data []byte) (int, error) {
	if !w.begun {
		w.begin()
	}
	w.setWriteDeadline(writeTimeout)
	return w.w.Write(data)
}

// setWriteDeadline bounds the next writes. A ResponseWriter without deadlines, as in tests, has none.
func (c *call) setWriteDeadline(timeout time.Duration) {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(timeout))
}

// importParameters has the reason, because the body has the letters.
func importParameters(why *string) []parameter {
	return []parameter{textParameter("why", why)}
}

func (c *call) importLetters() (any, error) {
	var why string
	if err := c.parameters(importParameters(&why)); err != nil {
		return nil, err
	}
	from, err := c.reader()
	if err != nil {
		return nil, err
	}
	var opts []eventbus.TransferOption
	for _, o := range c.operator(why) {
		opts = append(opts, o)
	}
	report, err := c.bus.DLQ().Import(c.ctx, from, opts...)
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, bodyError(err)
	}
	if err != nil {
		return nil, err
	}
	return report, nil
}

func (c *call) replay() (any, error) {
	var body ChangeRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	id, err := c.letterID()
	if err != nil {
		return nil, err
	}
	return Done{}, c.replayLetter(id, body.Why)
}

// replayLetter replays a letter. It returns a conflict if another operator was faster.
func (c *call) replayLetter(id eventbus.LetterID, why string) error {
	return c.gone(id, c.bus.DLQ().Replay(c.ctx, id, c.operator(why)...))
}

func (c *call) purge() (any, error) {
	var body ChangeRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	id, err := c.letterID()
	if err != nil {
		return nil, err
	}
	return Done{}, c.purgeLetter(id, body.Why)
}

func (c *call) purgeLetter(id eventbus.LetterID, why string) error {
	return c.gone(id, c.bus.DLQ().Purge(c.ctx, id, c.operator(why)...))
}

func (c *call) edit() (any, error) {
	var body EditRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if body.Payload == nil {
		return nil, badRequest("the payload is missing", "send the field payload; null is a payload, too")
	}
	id, err := c.letterID()
	if err != nil {
		return nil, err
	}
	return Done{}, c.editLetter(id, body.Payload, body.Why)
}

// editLetter replays a letter with another payload.
func (c *call) editLetter(id eventbus.LetterID, payload json.RawMessage, why string) error {
	l, err := c.bus.DLQ().Get(c.ctx, id)
	if err != nil {
		return c.gone(id, err)
	}
	if _, ok := l.Event.Payload.(eventbus.EncodedPayload); ok {
		return &Error{Code: CodeUnprocessable, Message: "the payload is not JSON, but in the encoding of the bus's codec", Remedy: "edit it in Go, with DLQ.ReplayEdited"}
	}
	return c.gone(id, c.bus.DLQ().ReplayEdited(c.ctx, id, payload, c.operator(why)...))
}

// gone returns the error of a change to a letter. If the audit knows who has replayed or purged the letter before,
// it is a conflict.
func (c *call) gone(id eventbus.LetterID, err error) error {
	if errors.Is(err, eventbus.ErrNoSubscription) {
		return &Error{
			Code: CodeNoSubscription, Message: "a subscription of the dead letter does not exist on this bus; the letter stays",
			Remedy: "deploy the handler, or subscribe with the option Formerly; or purge the letter", err: err,
		}
	}
	if !errors.Is(err, eventbus.ErrNotFound) {
		return err
	}
	if e, known := c.goneBy(id); known {
		return conflict(fmt.Sprintf("the letter is gone: %s by %q at %s", e.Action, e.By, e.At.Format(time.RFC3339)), "look at its event")
	}
	return err
}

// goneBy returns the entry of who has replayed or purged a letter.
func (c *call) goneBy(id eventbus.LetterID) (e eventbus.AuditEntry, known bool) {
	page, err := c.bus.Audit(c.ctx, eventbus.AuditQuery{Letter: id, Limit: 100})
	if err != nil {
		return e, false
	}
	for _, e := range page.Entries {
		if e.Denied != "" { // this operator did not do it
			continue
		}
		switch e.Action { //nolint:exhaustive // the actions that take one letter
		case eventbus.AuditReplay, eventbus.AuditReplayEdited, eventbus.AuditPurge:
			return e, true
		}
	}
	return e, false
}

func (c *call) listGroups() (any, error) {
	var q eventbus.LetterQuery
	var w window
	if err := c.parameters(append(filterParameters(&q), windowParameters(&w)...)); err != nil {
		return nil, err
	}
	return c.groups(q, w)
}

func (c *call) groups(q eventbus.LetterQuery, w window) (GroupPage, error) {
	all, err := c.bus.DLQ().Groups(c.ctx, q)
	if err != nil {
		return GroupPage{}, err
	}
	page := GroupPage{Total: len(all)}
	page.Groups, page.Next = windowOf(w, all)
	for i := range page.Groups {
		page.Groups[i] = c.group(page.Groups[i])
	}
	return page, nil
}

func (c *call) getPreview() (any, error) {
	var q eventbus.LetterQuery
	if err := c.parameters(filterParameters(&q)); err != nil {
		return nil, err
	}
	return c.preview(q)
}

func (c *call) preview(q eventbus.LetterQuery) (eventbus.ReplayPreview, error) {
	p, err := c.bus.DLQ().PreviewReplay(c.ctx, q)
	p.Sample = c.letterList(p.Sample)
	return p, err
}
