package admin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/linediff"
)

// diffLine is a line of the difference between the payload and its edit.
type diffLine struct{ Class, Sign, Text string }

// editBody is the data of the edit page.
type editBody struct {
	Letter  eventbus.DeadLetter
	Payload string // what was typed, or the payload
	Lines   []diffLine
	Same    bool
	Ready   bool   // the difference is shown, and can be replayed
	Seen    string // identifies the payload whose difference is shown
	Why     why
}

// edit has the fields of the edit form.
type edit struct{ payload, reason, step, seen string }

func (c *call) editPage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	return c.showEdit(nil, nil)
}

// editable returns the letter in the path, and its payload as the text from which an edit starts.
func (c *call) editable() (l eventbus.DeadLetter, text string, err error) {
	if l, err = c.findLetter(); err == nil {
		err = c.authorizeOne(ActionViewPayload)
	}
	if err != nil {
		return l, "", err
	}
	if l.Event.Payload == nil {
		return l, "null", nil
	}
	view := c.payload(l.Event.Type, l.Event.Payload, nil)
	if view.editor == "" {
		return l, "", &Error{
			Code: CodeUnprocessable, Message: "the payload cannot be edited on a page: it is large, redacted, or not JSON",
			Remedy: "edit it with the API, or in Go with DLQ.ReplayEdited",
		}
	}
	return l, view.editor, nil
}

// showEdit shows the form. typed is nil before the first submission.
func (c *call) showEdit(typed *edit, err error) (any, error) {
	l, text, missing := c.editable()
	if missing != nil {
		return nil, either(err, missing)
	}
	body := editBody{Letter: c.letter(l), Payload: text, Why: why{"why", ""}}
	if typed != nil {
		body.Payload, body.Why.Value = typed.payload, typed.reason
		var compact bytes.Buffer
		if json.Compact(&compact, []byte(typed.payload)) == nil {
			body.Lines, body.Same = differenceOf(text, indented(typed.payload))
			body.Seen, body.Ready = fingerprintOf(compact.Bytes()), !body.Same
		}
	}
	return c.show("edit", &page{Title: "Edit " + l.Event.Type, Section: sectionLetters, Body: body}, err)
}

// editForm shows the difference, or replays the payload whose difference was shown.
func (c *call) editForm() (any, error) {
	var e edit
	_, err := c.form(textParameter("payload", &e.payload), textParameter("why", &e.reason),
		textParameter("step", &e.step), textParameter("seen", &e.seen))
	if err != nil {
		return c.showEdit(&e, err)
	}
	e.payload = strings.ReplaceAll(e.payload, "\r\n", "\n") // as browsers send lines
	var payload bytes.Buffer
	if err := json.Compact(&payload, []byte(e.payload)); err != nil {
		return c.showEdit(&e, badRequest("the payload is not valid JSON: "+err.Error(), "correct it below"))
	}
	if e.step != "replay" || e.seen != fingerprintOf(payload.Bytes()) { // the operator has not seen this difference
		return c.showEdit(&e, nil)
	}
	if err := c.authorizeOne(ActionViewPayload); err != nil {
		return nil, err
	}
	l, err := c.findLetter()
	if err == nil {
		err = c.editLetter(l.ID, payload.Bytes(), e.reason)
	}
	if err != nil {
		return c.showEdit(&e, err)
	}
	return c.redirect("edited", "events", l.Event.ID.String())
}

// fingerprintOf identifies a payload without white space: browsers change line ends.
func fingerprintOf(compact []byte) string {
	sum := sha256.Sum256(compact)
	return hex.EncodeToString(sum[:])
}

// maxDiffLines bounds the lines of a difference on a page.
const maxDiffLines = 2000

// differenceOf returns the lines that show what an edit changes. same is set if it changes nothing.
func differenceOf(before, after string) (lines []diffLine, same bool) {
	signs := map[linediff.Op]diffLine{
		linediff.Kept: {"", " ", ""}, linediff.Removed: {"removed", "-", ""}, linediff.Added: {"added", "+", ""},
	}
	same = true
	for i, l := range linediff.Lines(before, after) {
		line := signs[l.Op]
		line.Text = l.Text
		same = same && l.Op == linediff.Kept
		if i < maxDiffLines {
			lines = append(lines, line)
		}
	}
	return lines, same
}
