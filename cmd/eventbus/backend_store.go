package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

// storeBackend works on a store, beside the bus that has the lease or without one.
type storeBackend struct {
	place place
	store driver.Store
	bus   *eventbus.Bus
}

func openStore(ctx context.Context, at place) (*storeBackend, error) {
	store, err := at.open(ctx)
	if err != nil {
		return nil, err
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithoutHandlers(), eventbus.WithSlog(slog.DiscardHandler))
	if err != nil {
		return nil, errors.Join(err, store.Close(ctx))
	}
	return &storeBackend{at, store, bus}, nil
}

func openFile(ctx context.Context, at place) (*sqlite.Store, error) {
	if err := checkFile(at.file); err != nil {
		return nil, err
	}
	return sqlite.Open(ctx, at.file, sqlite.MustExist())
}

// checkFile refuses a path that cannot be the store of the user. It does not open the file.
func checkFile(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return notFound("check the path: the program that runs the bus creates the store", "store %s does not exist", path)
	case err != nil:
		return fmt.Errorf("store: %w", err)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			return failed("give the path of the store itself", "store %s is a symbolic link without a target", path)
		}
		return failed("give the path of its target: --store "+shellQuote(target), "store %s is a symbolic link", path)
	case info.IsDir():
		return failed("give the path of the database file in it", "store %s is a directory", path)
	case !info.Mode().IsRegular():
		return failed("give the path of the database file", "store %s is not a regular file", path)
	case info.Size() == 0:
		return failed("start the program that runs the bus: it makes the tables; or check the path", "store %s is empty", path)
	}
	if owner, other := foreignOwner(info); other {
		return failed(fmt.Sprintf("run the command as that user: sudo -u '#%d' eventbus ...", owner),
			"store %s belongs to the user %d: files that this command makes beside it would keep that user's program out", path, owner)
	}
	return nil
}

func (b *storeBackend) Where() string { return b.place.String() }
func (b *storeBackend) Flag() string  { return b.place.flags() }

func (b *storeBackend) Letters(ctx context.Context, q eventbus.LetterQuery) (eventbus.LetterPage, error) {
	return b.bus.DLQ().List(ctx, q)
}

func (b *storeBackend) Letter(ctx context.Context, id eventbus.LetterID, _ bool) (eventbus.DeadLetter, error) {
	return b.bus.DLQ().Get(ctx, id)
}

func (b *storeBackend) Groups(ctx context.Context, q eventbus.LetterQuery) ([]eventbus.LetterGroup, error) {
	return b.bus.DLQ().Groups(ctx, q)
}

func (b *storeBackend) Preview(ctx context.Context, q eventbus.LetterQuery) (eventbus.ReplayPreview, error) {
	return b.bus.DLQ().PreviewReplay(ctx, q)
}

func (b *storeBackend) Replay(ctx context.Context, id eventbus.LetterID, o operator) error {
	return b.bus.DLQ().Replay(ctx, id, o.options()...)
}

// ReplayEdited keeps the kind of the letter's payload: JSON, or the bytes of another codec.
func (b *storeBackend) ReplayEdited(ctx context.Context, id eventbus.LetterID, payload []byte, o operator) error {
	l, err := b.bus.DLQ().Get(ctx, id)
	if err != nil {
		return err
	}
	var edited any = json.RawMessage(payload)
	if _, encoded := l.Event.Payload.(eventbus.EncodedPayload); encoded {
		edited = eventbus.EncodedPayload(payload)
	}
	return b.bus.DLQ().ReplayEdited(ctx, id, edited, o.options()...)
}

func (b *storeBackend) Purge(ctx context.Context, id eventbus.LetterID, o operator) error {
	return b.bus.DLQ().Purge(ctx, id, o.options()...)
}

// bulkOptions returns the options of the Go API.
func (o *bulk) bulkOptions() (opts []eventbus.BulkOption) {
	for _, opt := range o.options() {
		opts = append(opts, opt)
	}
	if o.rate != 0 {
		opts = append(opts, eventbus.Rate(o.rate))
	}
	if o.stopAfter != 0 {
		opts = append(opts, eventbus.StopAfter(o.stopAfter))
	}
	if o.progress != nil {
		opts = append(opts, eventbus.OnProgress(o.progress))
	}
	return opts
}

func (b *storeBackend) ReplayMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (eventbus.ReplayReport, error) {
	if err := b.checkCount(ctx, q, o.expect); err != nil {
		return eventbus.ReplayReport{}, err
	}
	return b.bus.DLQ().ReplayMatching(ctx, q, o.bulkOptions()...)
}

func (b *storeBackend) PurgeMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (eventbus.PurgeReport, error) {
	if err := b.checkCount(ctx, q, o.expect); err != nil {
		return eventbus.PurgeReport{}, err
	}
	return b.bus.DLQ().PurgeMatching(ctx, q, o.bulkOptions()...)
}

// checkCount refuses a bulk operation if other letters match than the operator has confirmed.
func (b *storeBackend) checkCount(ctx context.Context, q eventbus.LetterQuery, expect int) error {
	q.ExactTotal, q.Limit = true, 1
	page, err := b.bus.DLQ().List(ctx, q)
	if err == nil && page.Total != expect {
		err = staleCount(expect, page.Total)
	}
	return err
}

// auditPages bounds the pages of the audit that Operations reads.
const auditPages = 10

// Operations reads the audit: an operation runs in the process that has begun it.
func (b *storeBackend) Operations(ctx context.Context) ([]operation, error) {
	var entries []eventbus.AuditEntry
	for _, action := range []eventbus.AuditAction{
		eventbus.AuditReplayMatching, eventbus.AuditPurgeMatching, eventbus.AuditImport, eventbus.AuditCancel, eventbus.AuditRetryNow, eventbus.AuditGiveUp,
	} {
		q := eventbus.AuditQuery{Action: action, Limit: 1000}
		for range auditPages {
			page, err := b.bus.Audit(ctx, q)
			if err != nil {
				return nil, err
			}
			for i := range page.Entries {
				if e := &page.Entries[i]; e.Denied == "" && isBulk(e) {
					entries = append(entries, page.Entries[i])
				}
			}
			if q.Before = page.Next; q.Before == 0 {
				break
			}
		}
	}
	slices.SortFunc(entries, func(x, y eventbus.AuditEntry) int { return cmp.Compare(y.Number, x.Number) })
	return auditedOperations(entries), nil
}

// isBulk reports whether an entry is of an operation, and not of an action on one event.
func isBulk(e *eventbus.AuditEntry) bool {
	return e.Dispatches != nil || e.Action != eventbus.AuditCancel && e.Action != eventbus.AuditRetryNow && e.Action != eventbus.AuditGiveUp
}

func (b *storeBackend) Operation(ctx context.Context, id string) (operation, error) {
	all, err := b.Operations(ctx)
	if err != nil {
		return operation{}, err
	}
	for i := range all {
		if all[i].ID == id {
			return all[i], nil
		}
	}
	return operation{}, notFound("'eventbus operations list' shows the ids", "no bulk operation %q in the audit of %s", cutName(id), b.place)
}

func (b *storeBackend) CancelOperation(context.Context, string, operator) (operation, error) {
	return operation{}, usage("interrupt that command with Ctrl-C, or with kill -INT; for one that a server runs, give the --url of its admin page",
		"operations cancel does not work with --store: the operation runs in the command that has begun it")
}

func staleCount(expect, now int) error {
	return conflict("run the command again and confirm the new number", "the number of matching letters changed from %d to %d: nothing was done", expect, now)
}

func (b *storeBackend) Export(ctx context.Context, w io.Writer, q eventbus.LetterQuery, progress func(eventbus.BulkProgress)) (eventbus.ExportReport, error) {
	return b.bus.DLQ().Export(ctx, w, q, transferOptions(operator{}, progress)...)
}

func (b *storeBackend) Import(ctx context.Context, r io.Reader, o operator, progress func(eventbus.BulkProgress)) (eventbus.ImportReport, error) {
	return b.bus.DLQ().Import(ctx, r, transferOptions(o, progress)...)
}

// transferOptions returns the options of the Go API. progress may be nil.
func transferOptions(o operator, progress func(eventbus.BulkProgress)) (opts []eventbus.TransferOption) {
	for _, opt := range o.options() {
		opts = append(opts, opt)
	}
	if progress != nil {
		opts = append(opts, eventbus.OnProgress(progress))
	}
	return opts
}

func (b *storeBackend) Event(ctx context.Context, id eventbus.EventID) (eventbus.EventStatus, error) {
	return b.bus.Event(ctx, id)
}

func (b *storeBackend) EventByIdempotencyKey(ctx context.Context, eventType, key string) (eventbus.EventStatus, error) {
	return b.bus.EventByIdempotencyKey(ctx, eventType, key)
}

func (b *storeBackend) Dispatches(ctx context.Context, q eventbus.DispatchQuery) (eventbus.DispatchPage, error) {
	return b.bus.Dispatches(ctx, q)
}

func (b *storeBackend) Act(ctx context.Context, id eventbus.EventID, act action, o operator) (eventbus.ActionReport, error) {
	var opts []eventbus.ActionOption
	for _, opt := range o.options() {
		opts = append(opts, opt)
	}
	if act.subscription != "" {
		opts = append(opts, eventbus.OfSubscription(act.subscription))
	}
	if act.probe {
		opts = append(opts, eventbus.Probe())
	}
	switch act.verb {
	case eventbus.AuditRetryNow:
		return b.bus.RetryNow(ctx, id, opts...)
	case eventbus.AuditGiveUp:
		return b.bus.GiveUp(ctx, id, opts...)
	default:
		return b.bus.Cancel(ctx, id, opts...)
	}
}

func (b *storeBackend) PreviewMatching(ctx context.Context, q eventbus.DispatchQuery) (eventbus.ActionPreview, error) {
	return b.bus.PreviewMatching(ctx, q)
}

func (b *storeBackend) ActMatching(ctx context.Context, q eventbus.DispatchQuery, act action, o bulk) (eventbus.ActionsReport, error) {
	matching := map[eventbus.AuditAction]func(context.Context, eventbus.DispatchQuery, ...eventbus.BulkOption) (eventbus.ActionsReport, error){
		eventbus.AuditCancel: b.bus.CancelMatching, eventbus.AuditRetryNow: b.bus.RetryNowMatching, eventbus.AuditGiveUp: b.bus.GiveUpMatching,
	}[act.verb]
	opts := o.bulkOptions()
	if act.probe {
		opts = append(opts, eventbus.Probe())
	}
	report, err := matching(ctx, q, append(opts, eventbus.DryRun())...)
	if err == nil && report.Matched > o.expect {
		err = staleEvents(o.expect, report.Matched)
	}
	if err != nil {
		return eventbus.ActionsReport{}, err
	}
	return matching(ctx, q, opts...)
}

func staleEvents(expect, now int) error {
	return conflict("run the command again and confirm the new number", "%s match now, more than %s: nothing was done", plural(now, "event"), count(expect))
}

// Subscriptions returns the subscriptions of the last catalog in the store, in their order, and then others that
// directives and parked dispatches name.
func (b *storeBackend) Subscriptions(ctx context.Context) (all subscriptions, err error) {
	index := make(map[string]int)
	of := func(name string) *subscription {
		i, known := index[name]
		if !known {
			i = len(all.List)
			index[name] = i
			all.List = append(all.List, subscription{Subscription: name})
		}
		return &all.List[i]
	}
	catalog, err := b.bus.Catalog(ctx)
	if err != nil && !errors.Is(err, eventbus.ErrNoCatalog) {
		return all, err
	}
	all.Known, all.Standby = catalog.At, err == nil && !catalog.Active
	for i := range catalog.Subscriptions {
		s := of(catalog.Subscriptions[i].Subscription)
		in := &catalog.Subscriptions[i]
		s.Pattern, s.DeadLetters, s.Options, s.KnownAt = in.Pattern, in.DeadLetters, in, catalog.At
	}
	for _, o := range catalog.Directives {
		switch {
		case !o.Pause && !o.Trip:
		case o.Destination != "":
			s := of(o.Subscription)
			s.Destinations = append(s.Destinations, o)
		default:
			of(o.Subscription).Directive = &o
		}
	}
	parked, err := b.store.Parked(ctx, nil)
	if err != nil {
		return all, err
	}
	for _, name := range slices.Sorted(maps.Keys(parked)) {
		s := of(name)
		s.Parked = parked[name]
		if _, has := catalog.Find(name); !has && !all.Known.IsZero() {
			s.Orphan = true
		}
	}
	return all, nil
}

// checkKnown refuses a directive to a name that the store does not have: it would have no effect. Without a catalog,
// each name may be one.
func (b *storeBackend) checkKnown(ctx context.Context, name string) error {
	all, err := b.Subscriptions(ctx)
	if err != nil || all.Known.IsZero() {
		return err
	}
	for i := range all.List {
		s := &all.List[i]
		if s.Subscription == name || s.Options != nil && slices.Contains(s.Options.Formerly, name) {
			return nil
		}
	}
	return notFound("'eventbus subs list' shows the names", "no subscription %q in %s as of %s", name, b.place, timeText(all.Known))
}

func (b *storeBackend) Direct(ctx context.Context, name string, d directive, o operator) error {
	if err := b.checkKnown(ctx, name); err != nil {
		return err
	}
	var s interface {
		Pause(opts ...eventbus.DirectiveOption) error
		Resume(opts ...eventbus.DirectiveOption) error
		HoldUntil(t time.Time, opts ...eventbus.DirectiveOption) error
		Trip(opts ...eventbus.DirectiveOption) error
		Reset(opts ...eventbus.DirectiveOption) error
	} = b.bus.Subscription(name)
	if d.destination != "" {
		s = b.bus.Subscription(name).Destination(d.destination)
	}
	switch d.action { //nolint:exhaustive // the others are no directives
	case eventbus.AuditPause:
		return s.Pause(o.options()...)
	case eventbus.AuditHoldUntil:
		return s.HoldUntil(d.until, o.options()...)
	case eventbus.AuditResume:
		return s.Resume(o.options()...)
	case eventbus.AuditTrip:
		return s.Trip(o.options()...)
	case eventbus.AuditReset:
		return s.Reset(o.options()...)
	}
	panic("unknown directive " + d.action)
}

func (b *storeBackend) Retire(ctx context.Context, name string, drop bool, o operator) (eventbus.RetireReport, error) {
	var opts []eventbus.RetireOption
	for _, opt := range o.options() {
		opts = append(opts, opt)
	}
	if drop {
		opts = append(opts, eventbus.DropRetired())
	}
	return b.bus.Retire(ctx, name, opts...)
}

func (b *storeBackend) Audit(ctx context.Context, q eventbus.AuditQuery) (eventbus.AuditPage, error) {
	return b.bus.Audit(ctx, q)
}

func (b *storeBackend) Explain(ctx context.Context, eventType string) (eventbus.Plan, error) {
	catalog, err := b.bus.Catalog(ctx)
	if err != nil {
		return eventbus.Plan{}, err
	}
	plan := catalog.Explain(eventType)
	return plan, plan.Err
}

func (b *storeBackend) Stats(ctx context.Context) (stats, error) {
	s, err := b.store.Stats(ctx)
	return stats{Store: &s}, err
}

// Close closes the store.
func (b *storeBackend) Close(ctx context.Context) error { return b.bus.Shutdown(ctx) }
