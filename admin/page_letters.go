package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/surebus/eventbus"
)

// rowsOnPage is how many rows a list has unless the query has a limit: a page has at most 100 KB.
const rowsOnPage = 25

// groupRow is a group with links to its letters and to bulk operations.
type groupRow struct {
	eventbus.LetterGroup
	Letters, Replay, Purge string
}

func (c *call) groupsPage() (any, error) {
	var q eventbus.LetterQuery
	w := window{limit: rowsOnPage}
	query, err := c.filters(append(filterParameters(&q), windowParameters(&w)...)...)
	body := struct {
		Groups      []groupRow
		Filters     []field
		List, Count string
		Pager       pager
	}{Filters: append(onlySet(filled(mainLetterFields, query)), onlySet(filled(moreLetterFields[:len(moreLetterFields)-1], query))...)}
	filter := without(query, "limit", "offset")
	body.List = linkTo(c.path("letters"), filter)
	if err == nil {
		var found GroupPage
		if found, err = c.groups(q, w); err == nil {
			body.Groups = c.groupRows(found.Groups, filter)
			body.Count = plural(int64(found.Total), "group", "groups")
			next := ""
			if found.Next > 0 {
				next = strconv.Itoa(found.Next)
			}
			body.Pager = c.nextPage(query, "offset", next, "groups")
		}
	}
	return c.show("groups", &page{Title: "Dead letters", Section: sectionLetters, Body: body}, err)
}

func (c *call) groupRows(groups []eventbus.LetterGroup, filter url.Values) []groupRow {
	rows := make([]groupRow, len(groups))
	for i, g := range groups {
		rows[i] = groupRow{LetterGroup: g, Letters: linkTo(c.path("letters"), filter)}
		if g.Fingerprint != "" {
			own := without(filter, "fingerprint")
			own.Set("fingerprint", g.Fingerprint)
			rows[i].Letters = linkTo(c.path("letters"), own)
			rows[i].Replay, rows[i].Purge = c.bulkLink("replay_matching", own), c.bulkLink("purge_matching", own)
		}
	}
	return rows
}

// bulkLink links to the preview of a bulk operation.
func (c *call) bulkLink(action string, filter url.Values) string {
	query := without(filter, "limit", "before", "exact_total", "all")
	query.Set("action", action)
	return linkTo(c.path("bulk"), query)
}

// recent are the links of the list to the letters of the last minutes and hours.
var recent = []struct {
	name string
	span time.Duration
}{{"15 min", 15 * time.Minute}, {"hour", time.Hour}, {"day", 24 * time.Hour}}

type link struct{ Name, Link string }

func (c *call) lettersPage() (any, error) {
	q := eventbus.LetterQuery{Limit: rowsOnPage}
	query, err := c.filters(letterParameters(&q)...)
	filter := without(query, "before", "limit", "exact_total", "all")
	body := struct {
		Main, More                               []field
		MoreSet, Filtered                        bool
		Recent                                   []link
		Letters                                  []eventbus.DeadLetter
		Count, Replay, Purge, Export, GroupsLink string
		Pager                                    pager
	}{
		Main: filled(mainLetterFields, query), More: filled(moreLetterFields, query), Filtered: len(filter) > 0,
		Replay: c.bulkLink("replay_matching", filter), Purge: c.bulkLink("purge_matching", filter),
		GroupsLink: linkTo(c.path("groups"), filter),
	}
	if c.redact == nil && c.may(ActionViewPayload) {
		body.Export = linkTo(c.path("api", "v1", "letters", "export"), filter)
	}
	body.MoreSet = anySet(body.More)
	for _, r := range recent {
		since := without(query, "since", "until", "before")
		since.Set("since", rfc3339(time.Now().Add(-r.span)))
		body.Recent = append(body.Recent, link{r.name, linkTo(c.path("letters"), since)})
	}
	if err == nil {
		var found eventbus.LetterPage
		if found, err = c.bus.DLQ().List(c.ctx, q); err == nil {
			found = c.letters(found)
			body.Letters = found.Letters
			body.Count = plural(int64(found.Total), "letter", "letters")
			if found.TotalIsMore {
				body.Count = "more than " + body.Count
			}
			next := ""
			if !found.Next.IsZero() {
				next = found.Next.String()
			}
			body.Pager = c.nextPage(query, "before", next, "letters")
		}
	}
	return c.show("letters", &page{Title: "Letters", Section: sectionLetters, Body: body}, err)
}

// either returns the first error of two.
func either(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// payloadView is a payload as the operator may see it.
type payloadView struct {
	Shown   bool
	Text    string // if Shown
	Summary string // otherwise
	editor  string // the text from which an edit starts; empty if it cannot be edited here
}

// maxPayloadText bounds a payload on a page, in bytes.
const maxPayloadText = 64 << 10

// payload returns the view of a payload. hidden is what stands for it.
func (c *call) payload(eventType string, payload, hidden any) payloadView {
	if payload == nil {
		return payloadView{Summary: "None: the payload is nil."}
	}
	if c.may(ActionViewPayload) {
		text, changed, err := c.payloadText(eventType, payload)
		if err != nil {
			return payloadView{Summary: errorOf(err).Message + "."}
		}
		pretty := indented(text)
		v := payloadView{Shown: true, Text: shownLines(pretty, maxPayloadText)}
		if _, encoded := payload.(eventbus.EncodedPayload); !encoded && !changed && fitsForm(pretty) {
			v.editor = pretty
		}
		return v
	}
	v := payloadView{Summary: "Hidden. To see it, you need the permission view_payload."}
	if h, ok := hidden.(HiddenPayload); ok && h.SHA256 != "" {
		v.Summary = "Hidden: " + count(h.Size) + " bytes, SHA-256 " + h.SHA256 + "…. To see it, you need the permission view_payload."
	}
	return v
}

// fitsForm reports whether a payload fits into the body of the edit form, with the other fields.
func fitsForm(text string) bool { return len(url.QueryEscape(text)) < maxBody-(4<<10) }

// indented returns a JSON text with one member a line, and another text unchanged.
func indented(text string) string {
	var b bytes.Buffer
	if json.Indent(&b, bytes.TrimSpace([]byte(text)), "", "  ") != nil {
		return text
	}
	return visibleJSON(b.String())
}

// visibleJSON escapes the characters of a JSON text that cannot be seen. Its value stays the same: such characters
// occur in strings only.
func visibleJSON(text string) string {
	if strings.IndexFunc(text, isInvisible) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch high, low := utf16.EncodeRune(r); {
		case !isInvisible(r):
			b.WriteRune(r)
		case high != unicode.ReplacementChar:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func isInvisible(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// pair is a name with a value.
type pair struct{ Name, Value string }

// letterBody is the data of a letter's page.
type letterBody struct {
	Letter       eventbus.DeadLetter
	Story        []moment
	Payload      payloadView
	Original     *payloadView
	Metadata     []pair
	Replays      []replayRow
	Group, Audit string
	CanEdit      bool
	Warning      string // about a replay
	Why          why
}

func (c *call) letterPage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	return c.showLetter("", nil)
}

// showLetter shows the letter in the path. err is the error of a form, and reason what was typed.
func (c *call) showLetter(reason string, err error) (any, error) {
	l, missing := c.findLetter()
	if missing != nil {
		return c.showGone(err, missing)
	}
	shown := c.letter(l)
	body := letterBody{
		Letter: shown, Story: storyOf(&shown), Payload: c.payload(l.Event.Type, l.Event.Payload, shown.Event.Payload),
		Audit: linkTo(c.path("audit"), url.Values{"event_id": {l.Event.ID.String()}}),
		Why:   why{"why", reason}, Replays: c.replayRows(l.ReplayLog, []eventbus.DeadLetter{l}),
	}
	if l.Edited {
		original := c.payload(l.Event.Type, l.Original, shown.Original)
		body.Original = &original
	}
	for name, value := range shown.Event.Metadata.All() {
		body.Metadata = append(body.Metadata, pair{name, value})
	}
	if l.Fingerprint != "" {
		body.Group = linkTo(c.path("letters"), url.Values{"fingerprint": {l.Fingerprint}})
	}
	body.CanEdit = body.Payload.editor != "" && c.may(ActionEdit)
	if !c.bus.Subscription(l.Subscription).Exists() {
		body.Warning = "The subscription " + l.Subscription + " does not exist on this bus: a replay fails until it does."
	}
	return c.show("letter", &page{Title: l.Event.Type, Section: sectionLetters, Body: body}, err)
}

func (c *call) replayForm() (any, error) {
	var reason string
	_, err := c.form(textParameter("why", &reason))
	if err != nil {
		return c.showLetter(reason, err)
	}
	l, err := c.findLetter()
	if err == nil {
		err = c.replayLetter(l.ID, reason)
	} else if id, bad := c.letterID(); bad == nil {
		err = c.gone(id, err)
	}
	if err != nil {
		return c.showLetter(reason, err)
	}
	return c.redirect("replayed", "events", l.Event.ID.String())
}

func (c *call) purgePage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	return c.showPurge("", nil)
}

func (c *call) showPurge(reason string, err error) (any, error) {
	l, missing := c.findLetter()
	if missing != nil {
		return nil, either(err, missing)
	}
	body := letterBody{Letter: c.letter(l), Why: why{"why", reason}}
	return c.show("purge", &page{Title: "Purge " + l.Event.Type, Section: sectionLetters, Body: body}, err)
}

func (c *call) purgeForm() (any, error) {
	var reason string
	if _, err := c.form(textParameter("why", &reason)); err != nil {
		return c.showPurge(reason, err)
	}
	id, err := c.letterID()
	if err == nil {
		err = c.purgeLetter(id, reason)
	}
	if errors.Is(err, eventbus.ErrNotErased) { // the letter is gone, so its page cannot show the error
		return nil, err
	}
	if err != nil {
		return c.showPurge(reason, err)
	}
	return c.redirect("purged", "groups")
}
