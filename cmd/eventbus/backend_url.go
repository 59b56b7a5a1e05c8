package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
)

// urlBackend works on a running bus by its admin API.
type urlBackend struct {
	*client
}

func openURL(base string, with connection) (*urlBackend, error) {
	c, err := newClient(base, with)
	if err != nil {
		return nil, err
	}
	return &urlBackend{c}, nil
}

func (b *urlBackend) Where() string { return b.base }
func (b *urlBackend) Flag() string  { return "--url " + shellQuote(b.base) }

// Close closes the connections.
func (b *urlBackend) Close(context.Context) error {
	b.http.CloseIdleConnections()
	return nil
}

// pageLimit is the largest page of the API.
const pageLimit = 500

func letterParameters(q eventbus.LetterQuery) parameters {
	p := parameters{}
	p.text("type", q.Type).text("subscription", q.Subscription).text("reason", string(q.Reason)).text("fingerprint", q.Fingerprint)
	if !q.Event.IsZero() {
		p.text("event", q.Event.String())
	}
	p.text("key", q.Key).text("idempotency_key", q.IdempotencyKey).text("metadata_name", q.MetadataName).text("metadata_value", q.MetadataValue).text("error", q.Error)
	p.time("since", q.Since).time("until", q.Until).time("published_since", q.PublishedSince).time("published_until", q.PublishedUntil)
	p.flag("replayed", q.Replayed)
	return p
}

// letters is a LetterPage whose letters are not decoded.
type letters struct {
	eventbus.LetterPage
	Letters []json.RawMessage `json:"letters"`
}

func (l *letters) decode() (page eventbus.LetterPage, err error) {
	page = l.LetterPage
	for _, text := range l.Letters {
		letter, err := decodeHidden(text)
		if err != nil {
			return page, err
		}
		page.Letters = append(page.Letters, letter)
	}
	return page, nil
}

// decodeHidden decodes a letter whose payloads the API has hidden.
func decodeHidden(text []byte) (eventbus.DeadLetter, error) {
	l, err := decodeLetter(text)
	for _, payload := range []*any{&l.Event.Payload, &l.Original} {
		var h hiddenPayload
		if raw, ok := (*payload).(json.RawMessage); ok && json.Unmarshal(raw, &h) == nil {
			*payload = h
		}
	}
	return l, err
}

func (b *urlBackend) Letters(ctx context.Context, q eventbus.LetterQuery) (all eventbus.LetterPage, err error) {
	for left := q.Limit; ; {
		p := letterParameters(q).number("limit", int64(min(left, pageLimit))).flag("exact_total", q.ExactTotal)
		if !q.Before.IsZero() {
			p.text("before", q.Before.String())
		}
		var in letters
		if err := b.get(ctx, "/letters", url.Values(p), &in); err != nil {
			return all, err
		}
		page, err := in.decode()
		if err != nil {
			return all, err
		}
		page.Letters = append(all.Letters, page.Letters...)
		all = page
		left -= len(in.Letters)
		if q.Before = all.Next; q.Before.IsZero() || left <= 0 || len(in.Letters) == 0 {
			return all, nil
		}
	}
}

func (b *urlBackend) Letter(ctx context.Context, id eventbus.LetterID, payload bool) (l eventbus.DeadLetter, err error) {
	var text []byte
	if err := b.get(ctx, "/letters/"+id.String(), nil, &text); err != nil {
		return l, err
	}
	if l, err = decodeHidden(text); err != nil || !payload || l.Event.Payload == nil {
		return l, err
	}
	if err := b.get(ctx, "/letters/"+id.String()+"/payload", nil, &text); err != nil {
		return l, err
	}
	l.Event.Payload = eventbus.EncodedPayload(text)
	if json.Valid(text) {
		l.Event.Payload = json.RawMessage(text)
	}
	return l, nil
}

func (b *urlBackend) Groups(ctx context.Context, q eventbus.LetterQuery) (groups []eventbus.LetterGroup, err error) {
	for next := 0; ; {
		var page struct {
			Groups []eventbus.LetterGroup `json:"groups"`
			Next   int                    `json:"next"`
		}
		p := letterParameters(q).number("limit", pageLimit).number("offset", int64(next))
		if err := b.get(ctx, "/groups", url.Values(p), &page); err != nil {
			return nil, err
		}
		groups = append(groups, page.Groups...)
		if next = page.Next; next == 0 {
			return groups, nil
		}
	}
}

func (b *urlBackend) Preview(ctx context.Context, q eventbus.LetterQuery) (eventbus.ReplayPreview, error) {
	var p eventbus.ReplayPreview
	err := b.get(ctx, "/preview", url.Values(letterParameters(q)), &p)
	return p, err
}

// reason is the body of most changes. The server knows who makes them.
type reason struct {
	Why string `json:"why,omitempty"`
}

func (b *urlBackend) Replay(ctx context.Context, id eventbus.LetterID, o operator) error {
	return b.post(ctx, "/letters/"+id.String()+"/replay", reason{o.why}, &struct{}{})
}

func (b *urlBackend) ReplayEdited(ctx context.Context, id eventbus.LetterID, payload []byte, o operator) error {
	if !json.Valid(payload) {
		return failed("edit it beside the store: --store FILE", "the API takes JSON payloads only")
	}
	return b.post(ctx, "/letters/"+id.String()+"/edit", struct {
		reason
		Payload json.RawMessage `json:"payload"`
	}{reason{o.why}, payload}, &struct{}{})
}

func (b *urlBackend) Purge(ctx context.Context, id eventbus.LetterID, o operator) error {
	return b.post(ctx, "/letters/"+id.String()+"/purge", reason{o.why}, &struct{}{})
}

// pollInterval is how often the command asks how far an operation is.
const pollInterval = 200 * time.Millisecond

// operate begins a bulk operation and waits for its end. When ctx ends, it cancels the operation.
func (b *urlBackend) operate(ctx context.Context, r admin.OperationRequest, o bulk) (op operation, err error) {
	asking := context.WithoutCancel(ctx) // to learn of an operation that has begun, and how far an interrupted one got
	r.Expect, r.Rate, r.StopAfter, r.Why = &o.expect, o.rate, o.stopAfter, o.why
	err = b.post(asking, "/operations", r, &op)
	switch {
	case errors.As(err, new(*apiError)):
		return op, err
	case err != nil:
		return op, failed("look before you begin it again: eventbus operations list "+b.Flag(), "begin an operation, which may have begun: %w", err)
	}
	if op, err = b.followed(ctx, op, o); err != nil {
		return op, err
	}
	switch {
	case op.Error != nil:
		return op, &failure{op.Error.exitCode(), op.Error, op.Error.Remedy}
	case op.State == stateCancelled && ctx.Err() == nil: // by another operator
		return op, failed("'eventbus operations show "+shellQuote(op.ID)+"' shows how far it got, and how to go on", "operation %s was cancelled by %q", op.ID, op.CancelledBy)
	case op.State == stateCancelled:
		return op, context.Canceled
	}
	return op, nil
}

// followed waits for the end of an operation. When ctx ends, it cancels the operation.
func (b *urlBackend) followed(ctx context.Context, op operation, o bulk) (operation, error) {
	asking := context.WithoutCancel(ctx)
	path := "/operations/" + url.PathEscape(op.ID)
	lost := func(what string, err error) (operation, error) {
		return op, failed(fmt.Sprintf("to stop it: eventbus operations cancel %s %s", shellQuote(op.ID), b.Flag()), "%s operation %s, which may go on: %w", what, op.ID, err)
	}
	interrupted := ctx.Done()
	for looks := 0; op.State == stateRunning; looks++ {
		if o.running != nil && looks == 1 {
			o.running(op.ID)
		}
		if o.progress != nil {
			o.progress(eventbus.BulkProgress{Matched: op.Total, Done: op.Done, Failures: op.Failed})
		}
		select {
		case <-interrupted:
			interrupted = nil
			err := b.post(asking, path+"/cancel", reason{"interrupted"}, &op)
			if refused := (*apiError)(nil); errors.As(err, &refused) && refused.Code == "conflict" { // it has ended
				err = b.get(asking, path, nil, &op)
			}
			if err != nil {
				return lost("cancel", err)
			}
			continue
		case <-time.After(pollInterval):
		}
		if err := b.get(asking, path, nil, &op); err != nil {
			return lost("follow", err)
		}
	}
	return op, nil
}

func (b *urlBackend) Operations(ctx context.Context) (all []operation, err error) {
	for next := 0; ; {
		var page struct {
			Operations []operation `json:"operations"`
			Next       int         `json:"next"`
		}
		p := parameters{}.number("limit", pageLimit).number("offset", int64(next))
		if err := b.get(ctx, "/operations", url.Values(p), &page); err != nil {
			return all, err
		}
		all = append(all, page.Operations...)
		if next = page.Next; next == 0 {
			return all, nil
		}
	}
}

func (b *urlBackend) Operation(ctx context.Context, id string) (op operation, err error) {
	err = b.get(ctx, "/operations/"+url.PathEscape(id), nil, &op)
	return op, err
}

func (b *urlBackend) CancelOperation(ctx context.Context, id string, o operator) (op operation, err error) {
	if err := b.post(ctx, "/operations/"+url.PathEscape(id)+"/cancel", reason{o.why}, &op); err != nil {
		return op, err
	}
	return b.followed(ctx, op, bulk{})
}

func (b *urlBackend) ReplayMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (report eventbus.ReplayReport, err error) {
	op, err := b.operate(ctx, admin.OperationRequest{Action: admin.ReplayMatching, Query: q}, o)
	if op.ReplayReport != nil {
		report = *op.ReplayReport
	}
	return report, err
}

func (b *urlBackend) PurgeMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (report eventbus.PurgeReport, err error) {
	op, err := b.operate(ctx, admin.OperationRequest{Action: admin.PurgeMatching, Query: q}, o)
	if op.PurgeReport != nil {
		report = *op.PurgeReport
	}
	return report, err
}

// Export writes each line with a call of Write, as DLQ.Export does.
func (b *urlBackend) Export(ctx context.Context, w io.Writer, q eventbus.LetterQuery, progress func(eventbus.BulkProgress)) (report eventbus.ExportReport, err error) {
	answer, err := b.do(ctx, http.MethodGet, "/letters/export", url.Values(letterParameters(q)), "", nil)
	if err != nil {
		return report, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	cutOff := func(err error) error {
		if ctx.Err() != nil { // an interrupt
			return ctx.Err()
		}
		return failed("run the command again", "the export was cut off after %s: %w", plural(report.Exported, "letter"), err)
	}
	in := bufio.NewReaderSize(answer.Body, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			if err != nil {
				return report, cutOff(err)
			}
			if _, err := w.Write(line); err != nil {
				return report, err
			}
			report.Matched++
			report.Exported++
			if progress != nil {
				progress(eventbus.BulkProgress{Done: report.Exported})
			}
		}
		if errors.Is(err, io.EOF) {
			return report, nil
		}
		if err != nil {
			return report, cutOff(err)
		}
	}
}

// Import reports no progress: the bus adds the letters after it has received all of them.
func (b *urlBackend) Import(ctx context.Context, r io.Reader, o operator, _ func(eventbus.BulkProgress)) (report eventbus.ImportReport, err error) {
	answer, err := b.do(ctx, http.MethodPost, "/letters/import", url.Values(parameters{}.text("why", o.why)), "application/jsonl", r)
	if err != nil {
		return report, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	err = json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&report)
	return report, err
}

func (b *urlBackend) Event(ctx context.Context, id eventbus.EventID) (eventbus.EventStatus, error) {
	return b.status(ctx, "/events/"+id.String(), nil)
}

func (b *urlBackend) EventByIdempotencyKey(ctx context.Context, eventType, key string) (eventbus.EventStatus, error) {
	return b.status(ctx, "/events", url.Values(parameters{}.text("type", eventType).text("idempotency_key", key)))
}

// status returns what a path says became of an event.
func (b *urlBackend) status(ctx context.Context, path string, query url.Values) (s eventbus.EventStatus, err error) {
	in := struct {
		*eventbus.EventStatus
		Letters letters `json:"letters"`
	}{EventStatus: &s}
	if err := b.get(ctx, path, query, &in); err != nil {
		return s, err
	}
	s.Letters, err = in.Letters.decode()
	return s, err
}

func dispatchParameters(q eventbus.DispatchQuery) parameters {
	p := parameters{}
	return p.text("state", string(q.State)).text("type", q.Type).text("subscription", q.Subscription).text("key", q.Key).text("idempotency_key", q.IdempotencyKey).
		text("destination", q.Destination).text("error", q.Error).time("published_until", q.PublishedUntil)
}

func (b *urlBackend) Dispatches(ctx context.Context, q eventbus.DispatchQuery) (all eventbus.DispatchPage, err error) {
	for left := q.Limit; ; {
		p := dispatchParameters(q).text("after", q.After).number("limit", int64(min(left, pageLimit)))
		var page eventbus.DispatchPage
		if err := b.get(ctx, "/dispatches", url.Values(p), &page); err != nil {
			return all, err
		}
		left -= len(page.Dispatches)
		all.Dispatches, all.Next = append(all.Dispatches, page.Dispatches...), page.Next
		if q.After = page.Next; q.After == "" || left <= 0 {
			return all, nil
		}
	}
}

func (b *urlBackend) Act(ctx context.Context, id eventbus.EventID, act action, o operator) (report eventbus.ActionReport, err error) {
	path := map[eventbus.AuditAction]string{eventbus.AuditCancel: "/cancel", eventbus.AuditRetryNow: "/retry", eventbus.AuditGiveUp: "/give-up"}[act.verb]
	err = b.post(ctx, "/events/"+id.String()+path, admin.EventRequest{Why: o.why, Subscription: act.subscription, Probe: act.probe}, &report)
	if refused := (*apiError)(nil); errors.As(err, &refused) && refused.Report != nil {
		report = *refused.Report
	}
	report.Event = id // a server of an earlier version has no report
	return report, err
}

func (b *urlBackend) PreviewMatching(ctx context.Context, q eventbus.DispatchQuery) (p eventbus.ActionPreview, err error) {
	err = b.get(ctx, "/dispatches/preview", url.Values(dispatchParameters(q)), &p)
	return p, err
}

func (b *urlBackend) ActMatching(ctx context.Context, q eventbus.DispatchQuery, act action, o bulk) (report eventbus.ActionsReport, err error) {
	op, err := b.operate(ctx, admin.OperationRequest{Action: bulkActionOf(act.verb), Dispatches: &q, Probe: act.probe}, o)
	report.Matched = op.Total
	if op.ActionsReport != nil {
		report = *op.ActionsReport
	}
	return report, err
}

func (b *urlBackend) Subscriptions(ctx context.Context) (all subscriptions, err error) {
	for next := 0; ; {
		var page struct {
			Subscriptions []eventbus.SubscriptionMetrics `json:"subscriptions"`
			Next          int                            `json:"next"`
			CatalogAt     time.Time                      `json:"catalog_at"` // of a bus without handlers
		}
		p := parameters{}.number("limit", pageLimit).number("offset", int64(next))
		if err := b.get(ctx, "/subscriptions", url.Values(p), &page); err != nil {
			return all, err
		}
		all.Known, all.Live = page.CatalogAt, page.CatalogAt.IsZero()
		for _, m := range page.Subscriptions {
			s := subscription{Subscription: m.Subscription, Pattern: m.Pattern, DeadLetters: m.DeadLetters, Directive: m.Directive, KnownAt: all.Known}
			if all.Live {
				s.Metrics, s.Parked = &m, int64(m.Parked())
			}
			all.List = append(all.List, s)
		}
		if next = page.Next; next == 0 {
			break
		}
	}
	orphans, err := b.orphans(ctx)
	for _, o := range orphans {
		all.List = append(all.List, subscription{Subscription: o.Subscription, Parked: o.Parked, Orphan: true})
	}
	return all, err
}

// orphans returns the names without a subscription. A server of an earlier version does not know them.
func (b *urlBackend) orphans(ctx context.Context) (all []admin.Orphan, err error) {
	const most = 10_000 // the largest page of this list
	for next := 0; ; {
		var page admin.OrphanPage
		p := parameters{}.number("limit", most).number("offset", int64(next))
		err := b.get(ctx, "/orphans", url.Values(p), &page)
		if unknown := (*apiError)(nil); errors.As(err, &unknown) && unknown.Code == "not_found" {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, page.Orphans...)
		if next = page.Next; next == 0 {
			return all, nil
		}
	}
}

func (b *urlBackend) Direct(ctx context.Context, name string, d directive, o operator) error {
	path := "/subscriptions/" + url.PathEscape(name) + "/" + strings.ReplaceAll(string(d.action), "_", "-")
	return b.post(ctx, path, struct {
		reason
		Until       time.Time `json:"until,omitzero"`
		Destination string    `json:"destination,omitempty"`
	}{reason{o.why}, d.until, d.destination}, &struct{}{})
}

func (b *urlBackend) Retire(ctx context.Context, name string, drop bool, o operator) (report eventbus.RetireReport, err error) {
	err = b.post(ctx, "/subscriptions/"+url.PathEscape(name)+"/retire", admin.RetireRequest{Drop: drop, Why: o.why}, &report)
	return report, err
}

func (b *urlBackend) Audit(ctx context.Context, q eventbus.AuditQuery) (all eventbus.AuditPage, err error) {
	for left := q.Limit; ; {
		p := parameters{}
		p.text("action", string(q.Action)).text("by", q.By).text("subscription", q.Subscription).
			time("since", q.Since).time("until", q.Until).number("before", q.Before).number("limit", int64(min(left, pageLimit)))
		if !q.Letter.IsZero() {
			p.text("letter_id", q.Letter.String())
		}
		if !q.Event.IsZero() {
			p.text("event_id", q.Event.String())
		}
		var page eventbus.AuditPage
		if err := b.get(ctx, "/audit", url.Values(p), &page); err != nil {
			return all, err
		}
		left -= len(page.Entries)
		all.Entries, all.Next = append(all.Entries, page.Entries...), page.Next
		if q.Before = page.Next; q.Before == 0 || left <= 0 {
			return all, nil
		}
	}
}

func (b *urlBackend) Explain(ctx context.Context, eventType string) (plan eventbus.Plan, err error) {
	err = b.get(ctx, "/explain", url.Values(parameters{}.text("type", eventType)), &plan)
	return plan, err
}

func (b *urlBackend) Stats(ctx context.Context) (stats, error) {
	var o struct {
		Metrics   eventbus.Metrics `json:"metrics"`
		Balanced  bool             `json:"balanced"`
		Imbalance string           `json:"imbalance"`
	}
	err := b.get(ctx, "/overview", nil, &o)
	return stats{Store: o.Metrics.Store, Metrics: &o.Metrics, Balanced: &o.Balanced, Imbalance: o.Imbalance}, err
}
