package eventbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/pace"
)

// A bus without the lease asks the one that has it for what only that one may do. The request is a row of the store. The
// bus with the lease commits the answer together with what it does, so that it is done once or not at all. If no process
// has the lease, the bus that asks holds it until it has answered.

// request is the JSON of driver.Request.Body.
type request struct {
	id       driver.RequestID // 0: none
	acquires bool             // see answerRequests

	Action       AuditAction `json:"action"`
	Subscription string      `json:"subscription,omitempty"` // of a directive
	Destination  string      `json:"destination,omitempty"`
	Until        time.Time   `json:"until,omitzero"`   // of AuditHoldUntil
	Events       []EventID   `json:"events,omitempty"` // of an action
	Probe        bool        `json:"probe,omitempty"`
	Bulk         bool        `json:"bulk,omitempty"` // it is a part of a bulk action
	Drop         bool        `json:"drop,omitempty"` // of AuditRetire
	By           string      `json:"by,omitempty"`
	Why          string      `json:"why,omitempty"`
	Remote       string      `json:"remote,omitempty"`
	RequestID    string      `json:"request_id,omitempty"`
}

func (r *request) operator() operator {
	return operator{by: r.By, why: r.Why, remote: r.Remote, requestID: r.RequestID}
}

// reply is the JSON of driver.Answer.Body.
type reply struct {
	Retired   *RetireReport   `json:"retired,omitempty"`
	InUse     *NameInUseError `json:"in_use,omitempty"`
	Directive *Directive      `json:"directive,omitempty"`
	Actions   []ActionReport  `json:"actions,omitempty"`
	Error     string          `json:"error,omitempty"` // empty if it was done
	Is        string          `json:"is,omitempty"`    // the name of the error in answerErrors; empty for another one
}

// answerErrors are the errors that an answer keeps.
var answerErrors = map[string]error{
	"circuit_disabled": ErrCircuitDisabled,
	"no_subscription":  ErrNoSubscription,
	"shutdown":         ErrShutdown,
}

// replyTo returns the reply that says how a request ended.
func replyTo(directive *Directive, err error) *reply {
	r := &reply{Directive: directive}
	if err == nil {
		return r
	}
	r.Error = err.Error()
	_ = errors.As(err, &r.InUse)
	for name, is := range answerErrors {
		if errors.Is(err, is) {
			r.Is = name
		}
	}
	return r
}

// err returns the error that the process with the lease met.
func (r *reply) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.InUse != nil:
		return r.InUse
	case answerErrors[r.Is] != nil:
		return answeredError{r.Error, answerErrors[r.Is]}
	}
	return errors.New(r.Error)
}

// answeredError is the error of another process.
type answeredError struct {
	text string
	is   error
}

func (e answeredError) Error() string { return e.text }
func (e answeredError) Unwrap() error { return e.is }

// answer adds the answer of a request, if there is one.
func (w *batch) answer(to driver.RequestID, with *reply) {
	if to == 0 {
		return
	}
	if with == nil {
		with = &reply{}
	}
	w.Answer = append(w.Answer, driver.Answer{Request: to, Body: w.encode(with)})
}

const (
	// answerPatience is how long a bus waits for an answer. A process that has the lease answers within 250 ms.
	answerPatience = 10 * time.Second
	// answerPoll is how often it looks for the answer, and whether the lease is free. Watch makes it look earlier.
	answerPoll = 250 * time.Millisecond
	answerPage = 100 // requests that are read at once
)

func (j *durable) ask(ctx context.Context, r request) (answer *reply, asked bool, err error) {
	if j.store.leads() {
		return nil, false, nil
	}
	answer, err = j.askOther(ctx, r)
	return answer, true, err
}

// askOther waits for the answer. If there is none, the request is taken back: otherwise a bus would carry it out later.
func (j *durable) askOther(ctx context.Context, r request) (*reply, error) {
	w := newBatch(j.time)
	asked := &driver.Request{Body: w.encode(&r)}
	w.Ask = []*driver.Request{asked}
	if err := j.store.commit(ctx, w); err != nil {
		return nil, err
	}
	changed := make(chan struct{}, 1)
	stop := j.store.Watch(func(driver.Change) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer j.time.AfterFunc(answerPatience, cancel).Stop()
	for {
		err := j.answerInstead(waiting)
		if err == nil {
			var answer *reply
			if answer, err = j.readAnswer(waiting, asked.ID); answer != nil {
				return answer, nil
			}
		}
		if err != nil && waiting.Err() == nil {
			return j.takeBack(asked.ID, err)
		}
		look, done := context.WithCancel(waiting)
		timer := j.time.AfterFunc(answerPoll, done)
		select {
		case <-changed:
		case <-look.Done():
		}
		timer.Stop()
		done()
		if waiting.Err() != nil {
			why := fmt.Errorf("%w within %v", ErrNoAnswer, answerPatience)
			if ctx.Err() != nil {
				why = contextError(ctx)
			}
			return j.takeBack(asked.ID, why)
		}
	}
}

// readAnswer returns nil while there is no answer.
func (j *durable) readAnswer(ctx context.Context, id driver.RequestID) (*reply, error) {
	body, answered, err := j.store.Answer(ctx, id)
	if err != nil || !answered {
		return nil, err
	}
	answer := new(reply)
	if err := json.Unmarshal(body, answer); err != nil {
		return nil, &DecodeError{What: fmt.Sprintf("answer of request %d", id), Err: err}
	}
	return answer, nil
}

// takeBack removes a request and returns why as the error. If the request was answered meanwhile, it returns the answer.
func (j *durable) takeBack(id driver.RequestID, why error) (*reply, error) {
	taken := new(reply)
	answer, err := pace.Within(storeGrace, func(ctx context.Context) (*reply, error) {
		w := newBatch(j.time)
		w.Unask = []driver.RequestID{id}
		err := j.store.commit(ctx, w)
		if refused := (*driver.RefusedError)(nil); errors.As(err, &refused) {
			return j.readAnswer(ctx, id)
		}
		return taken, err
	})
	if err != nil && !errors.Is(why, ErrNoAnswer) { // that says that nothing was done
		err = fmt.Errorf("%w; the request could not be taken back: %v", why, err) //nolint:errorlint // why is the cause
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the outcome is unknown: %w", err)
	case answer == taken:
		return nil, why
	}
	return answer, nil
}

// answerInstead answers the requests if no process has the lease. A bus whose Start waits for the lease, or has had it,
// answers them when it gets the lease.
func (j *durable) answerInstead(ctx context.Context) error {
	if !j.feeder.starting.TryLock() {
		return nil
	}
	if j.feeder.stopped != nil || j.halts.Any() {
		j.feeder.starting.Unlock()
		return nil
	}
	err := j.acquire(ctx, false)
	released := make(chan struct{})
	go func() { // it waits for the lock of another program; stop waits for it
		defer j.feeder.starting.Unlock()
		defer close(released)
		j.giveUpLease()
	}()
	select {
	case <-released:
	case <-ctx.Done():
	}
	return noFailure(err)
}

// answerRequests answers the requests of other processes, in their order. acquires is set until this process orders anything itself.
func (j *durable) answerRequests(acquires bool) {
	j.answering.Lock()
	defer j.answering.Unlock()
	for q := (driver.RequestQuery{Limit: answerPage}); j.store.leads(); {
		claims := j.feeder.claimsContext()
		page, err := j.store.Requests(claims, q)
		if err != nil {
			j.feeder.failed(claims, err)
			return
		}
		for i := range page {
			q.After = page[i].ID
			j.answerRequest(claims, &page[i], acquires)
		}
		if len(page) < q.Limit {
			return
		}
	}
}

// answerRequest does what is asked. If that fails, the answer says why.
func (j *durable) answerRequest(ctx context.Context, asked *driver.Request, acquires bool) {
	r := request{}
	err := json.Unmarshal(asked.Body, &r)
	r.id, r.acquires = asked.ID, acquires
	if err != nil {
		err = &DecodeError{What: fmt.Sprintf("request %d", asked.ID), Err: err}
	} else {
		err = j.operators.carryOut(ctx, r)
	}
	if err == nil || errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrStoreFailed) || ctx.Err() != nil {
		return // it is answered after the restart, or by the next process
	}
	w := newBatch(j.time)
	w.answer(r.id, replyTo(nil, err))
	_ = j.store.commit(ctx, w) // a refusal: it was taken back. A failure of the store: it is answered after the restart
}

// retiredPrefix begins the names under which a store keeps retirements among the directives. No name of a subscription has it.
const retiredPrefix = "\x1fretired\x1f"

// catalogTries bounds the attempts at a commit that fails because another bus records its catalog at the same time.
const catalogTries = 10

func (j *durable) retire(ctx context.Context, r request, s *Subscription) (report RetireReport, err error) {
	names := []string{r.Subscription}
	if s != nil {
		names = s.names()
	}
	parked, known, err := j.parkedAt(ctx, names)
	if report.Parked = parked; err == nil && !known && s == nil {
		err = fmt.Errorf("%w: %s", ErrNoSubscription, j.operators.noneNamed(r.Subscription))
	}
	if err != nil {
		return report, err
	}
	report.Left = j.config.tool
	last, err := j.lastPosition(ctx, names)
	if err != nil {
		return report, err
	}
	entry := j.operators.retireEntry(r, report.Parked)
	all := make([]*retirement, len(names))
	for i, name := range names {
		all[i] = &retirement{Retired: name, At: entry.At, Last: last, By: r.By, Why: r.Why, Drop: r.Drop, Parked: report.Parked, Quiet: name != r.Subscription}
	}
	orders := j.operators.endedOrders(names, entry)
	err = driver.ErrCatalogsChanged
	for tries := 0; errors.Is(err, driver.ErrCatalogsChanged) && tries < catalogTries; tries++ {
		w := &batch{Batch: driver.Batch{Now: entry.At}}
		w.audit(entry)
		w.answer(r.id, &reply{Retired: &report})
		w.retire(all...)
		w.direct(orders...)
		if w.IfCatalogs, err = j.catalogsWithout(ctx, names); err == nil {
			err = j.store.commitOr(context.Background(), w, func() { j.feeder.lookLater(j.retireAgain) })
		}
	}
	if err != nil {
		return report, err
	}
	j.report.action(entry)
	j.operators.keepDirectives(orders)
	if !j.config.tool {
		j.beginRetired(all, s)
	}
	return report, nil
}

// parkedAt returns the number of deliveries that the store has parked under names, and whether it has any of them.
func (j *durable) parkedAt(ctx context.Context, names []string) (parked int, known bool, err error) {
	counts, err := j.store.Parked(ctx, nil)
	if err != nil {
		return 0, false, err
	}
	for _, name := range names {
		parked += int(counts[name])
	}
	if parked > 0 {
		return parked, true, nil
	}
	page, err := j.store.Records(ctx, driver.RecordQuery{Targets: names, Limit: 1})
	return 0, len(page.Records) > 0, err
}

// lastPosition returns the largest position of the store's deliveries under names, or 0 without any.
func (j *durable) lastPosition(ctx context.Context, names []string) (last int64, err error) {
	for q := (driver.RecordQuery{Targets: names, Limit: feederPage}); ; {
		page, err := j.store.Records(ctx, q)
		if err != nil {
			return 0, err
		}
		for _, r := range page.Records {
			last = max(last, r.Position)
		}
		if page.Next == 0 {
			return last, nil
		}
		q.After = page.Next
	}
}

// catalogsWithout returns the catalogs of the store, or a *NameInUseError if the catalog of a live bus has one of the names. This bus
// has the lease, so the former holder of the lease is not live, or will soon notice.
func (j *durable) catalogsWithout(ctx context.Context, names []string) (catalogs []driver.Catalog, err error) {
	all, err := j.instances(ctx)
	if err != nil {
		return nil, err
	}
	now := j.time.Now().UTC
	catalogs = []driver.Catalog{}
	for i := range all {
		in := &all[i]
		catalogs = append(catalogs, driver.Catalog{Instance: in.Instance, Body: in.body})
		if in.Instance == j.instance || in.Active || in.idle > standbyLives || now.Sub(in.seen) > standbyForgotten {
			continue
		}
		if in.unreadable != nil {
			return nil, in.unreadable
		}
		for _, name := range names {
			if of, has := in.Find(name); has && !of.Detached {
				return nil, &NameInUseError{Subscription: name, Instance: in.Instance}
			}
		}
	}
	return catalogs, nil
}

// beginRetired starts the end of all deliveries under retired names. s is the detached subscription that has the names, or nil.
func (j *durable) beginRetired(all []*retirement, s *Subscription) {
	if s != nil {
		s.retires(all[slices.IndexFunc(all, func(in *retirement) bool { return !in.Quiet })], j.machine.requeue)
	}
	epoch := j.store.epoch.Load()
	for _, in := range all {
		if s == nil {
			j.registry.retire(in.Retired, j.newRetired(in))
		}
		j.feeder.askNames(in.Retired)
		j.feeder.lookLater(func() { j.finishRetired(in, epoch) })
	}
}

// retireAgain continues retirements whose commit was confirmed late.
func (j *durable) retireAgain() {
	ctx := j.feeder.claimsContext()
	j.feeder.failed(ctx, j.resumeRetired(ctx))
}

// resumeRetired continues the retirements of earlier leases.
func (j *durable) resumeRetired(ctx context.Context) error {
	if j.config.tool {
		return nil
	}
	all, err := j.readRetired(ctx)
	for _, in := range all {
		if in.Done {
			continue
		}
		if in.Last < 0 { // an earlier version has not recorded it
			last, failed := j.lastPosition(ctx, []string{in.Retired})
			if failed != nil {
				return failed
			}
			in.Last = last
		}
		j.beginRetired([]*retirement{in}, nil)
	}
	return err
}

// readRetired returns the retirements of the store.
func (j *durable) readRetired(ctx context.Context) (all []*retirement, err error) {
	read, err := j.store.Directives(ctx)
	for _, d := range read {
		if !strings.HasPrefix(d.Subscription, retiredPrefix) {
			continue
		}
		in := &retirement{Last: -1}
		if offence := json.Unmarshal(d.Body, in); offence != nil {
			return all, &DecodeError{What: "end of a name", Err: offence}
		}
		all = append(all, in)
	}
	return all, err
}

// Pauses between two reads of the records of a retired name.
const (
	firstRetiredPause = 50 * time.Millisecond
	lastRetiredPause  = 10 * time.Second
)

// finishRetired waits until the store has no delivery of a retired name, and records that.
func (j *durable) finishRetired(in *retirement, epoch int64) {
	for pause := firstRetiredPause; j.feeder.sleep(pause); pause = min(2*pause, lastRetiredPause) {
		if j.store.epoch.Load() != epoch || j.halts.Any() {
			return // the next lease goes on
		}
		now, later, err := j.leftOf(j.feeder.claimsContext(), in)
		if err != nil {
			j.log.Warn("deliveries of a retired subscription cannot be read; retrying", zap.String("subscription_id", in.Retired), zap.Error(err))
		}
		if now || err != nil {
			continue
		}
		w := newBatch(j.time)
		ended := retirement{Retired: in.Retired, At: in.At, Last: in.Last, By: in.By, Why: in.Why, Drop: in.Drop, Parked: in.Parked, Ended: in.ended.Load(), Settled: true, Done: !later, Quiet: in.Quiet}
		w.retire(&ended)
		if !in.Settled && !in.Quiet {
			entry := j.operators.retireEntry(request{Subscription: in.Retired, By: in.By, Why: in.Why, Drop: in.Drop}, in.Parked)
			entry.Outcome = &AuditOutcome{BeganAt: in.At, Done: int(ended.Ended)}
			w.audit(entry)
		}
		if j.store.commit(j.feeder.ctx, w) == nil {
			return
		}
	}
}

// awaitRetired waits until the deliveries of a retired name have ended, also by another process.
func (j *durable) awaitRetired(ctx context.Context, name string, report RetireReport) (RetireReport, error) {
	waiting, done := j.untilStop(ctx)
	defer done()
	for pause := firstRetiredPause; ; pause = min(2*pause, time.Second) {
		all, err := j.readRetired(waiting)
		switch {
		case ctx.Err() != nil:
			return report, contextError(ctx)
		case waiting.Err() != nil:
			return report, ErrShutdown
		case err != nil:
			return report, err
		}
		for _, in := range all {
			if in.Retired == name && in.Settled {
				report.Ended = int(in.Ended)
				return report, nil
			}
		}
		j.time.Sleep(waiting, pause)
	}
}
