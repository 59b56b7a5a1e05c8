package postgres

import (
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
)

// plan is what a commit writes. decide makes it in memory. It assumes that the database has what the batches expect of it, or
// knows it from facts. The statements check that, and undo the whole commit if it is not so: then another plan is made.
type plan struct {
	c       *committer
	facts   *facts
	sentAt  int64
	sent    bool
	release bool // it ends the lease
	weight  int  // of the jobs

	// What it changes in the committer.
	had     []hadRecord // for undo, newest last
	nextRef int64       // for undo

	changes driver.Change
	now     time.Time // the latest Batch.Aged
	claimed *claim
	written bool // a batch was not refused, or records are claimed
	refused bool // a batch was refused
	guessed bool // a batch was refused whose ids and events are assumed to be right: they may be wrong before

	states  [4]int64 // changes of the numbers of records, by state
	letters int64    // taken

	ids       map[dedupeKey]*remembering
	take      []driver.ID
	withdraw  []driver.ID
	accept    []int64
	inserts   []insertion
	updates   map[driver.Ref]*driver.Record
	updated   []driver.Ref // of updates
	deletes   []int64
	settled   []settling
	forgotten []driver.Dedupe // of ForgetSettled
	bury      []*driver.Letter
	left      []*driver.Incoming
	asked     []*driver.Request
	unask     []int64
	answers   []answering
	directive map[string][]byte
	audit     []driver.AuditEntry
	outcomes  []driver.Outcome
	catalogs  map[string]*cataloging
	// ifCatalogs, if it is not nil, has the catalogs before the commit.
	ifCatalogs []driver.Catalog
}

// hadRecord is what the committer knew of a record before the plan.
type hadRecord struct {
	ref   driver.Ref
	held  held
	known bool
}

// insertion is a new record.
type insertion struct {
	ref      driver.Ref
	position int64
	leased   bool
	record   *driver.Record
}

type dedupeKey struct{ scope, key string }

// remembering is what the batches of a plan do with a remembered id.
type remembering struct {
	forgetFirst bool
	remember    *driver.Dedupe
	aged        time.Time // of the first batch that remembers it
	forgetLast  bool
}

// settling is a row of the history.
type settling struct {
	ref  driver.Ref
	of   about
	dead bool
	at   time.Time
}

type answering struct {
	id   driver.RequestID
	body []byte
	at   time.Time
}

// cataloging replaces the catalog of an instance, or removes it first.
type cataloging struct {
	remove bool
	body   []byte // nil for none
	seen   time.Time
}

// decide applies the jobs to the plan, or refuses them.
func (p *plan) decide(group []*job, outcomes []error) {
	p.nextRef = p.c.row.nextRef
	for i, j := range group {
		p.weight += j.Weight()
		if j.Batch == nil {
			outcomes[i] = p.claim(j.Work)
			continue
		}
		if refusal := p.check(j.Batch); refusal != nil {
			outcomes[i], p.refused = refusal, true
			p.guessed = p.guessed || !p.facts.complete && len(j.Batch.Remember)+len(j.Batch.Accept) > 0
			continue
		}
		p.apply(j.Batch)
	}
}

// isEmpty reports whether there is nothing to commit. With the lease, a refusal is committed, too: if the lease is lost, the
// batch must be refused for that.
func (p *plan) isEmpty() bool { return !p.written && (!p.refused || p.c.row.epoch == 0) }

// refs returns the records that the plan needs to be there.
func (p *plan) refs() []driver.Ref {
	refs := slices.Clone(p.updated)
	for _, ref := range p.deletes {
		refs = append(refs, driver.Ref(ref))
	}
	return refs
}

// set notes that the lease has a record in a state.
func (p *plan) set(ref driver.Ref, h held) {
	was, known := p.c.leased[ref]
	p.had = append(p.had, hadRecord{ref, was, known})
	p.c.leased[ref] = h
}

// drop notes that the lease does not have a record any more.
func (p *plan) drop(ref driver.Ref) {
	was, known := p.c.leased[ref]
	p.had = append(p.had, hadRecord{ref, was, known})
	delete(p.c.leased, ref)
}

// undo takes back what decide has changed in the committer. It does nothing for nil, and the second time.
func (p *plan) undo() {
	if p == nil || p.had == nil && p.nextRef == p.c.row.nextRef {
		return
	}
	for _, was := range slices.Backward(p.had) {
		if was.known {
			p.c.leased[was.ref] = was.held
		} else {
			delete(p.c.leased, was.ref)
		}
	}
	p.had, p.c.row.nextRef = nil, p.nextRef
}

// finish notes that the plan was committed, and assigns what a store assigns.
func (p *plan) finish() {
	c := p.c
	c.row.batch++
	if c.row.epoch != 0 {
		c.store.confirmed.Store(p.sentAt)
	}
	for _, i := range p.inserts {
		i.record.Ref, i.record.Position, i.record.Leased = i.ref, i.position, i.leased
	}
	for i, in := range p.left {
		in.ID = driver.IncomingID(p.facts.incomingIDs[i])
	}
	for i, r := range p.asked {
		r.ID = driver.RequestID(p.facts.requestIDs[i])
	}
	if p.prunes() {
		c.pruned = p.now
	}
	c.store.own.accepted(p.accept)
	if p.release {
		c.setLease(driver.Lease{})
	}
	if p.claimed != nil {
		p.claimed.finish(c.row.epoch)
	}
}

// check returns the refusal of a batch, or nil.
func (p *plan) check(b *driver.Batch) error {
	if b.Epoch != 0 && b.Epoch != p.c.row.epoch || b.Epoch == 0 && b.NeedsLease() {
		return &driver.RefusedError{Err: driver.ErrLeaseLost}
	}
	if refusal := b.CheckTimes(); refusal != nil {
		return refusal
	}
	if b.IfCatalogs != nil && (p.catalogs != nil || !b.HasCatalogs(p.facts.catalogs)) { // one of this group is another one
		return &driver.RefusedError{Err: driver.ErrCatalogsChanged}
	}
	for i := range b.Remember {
		if known := p.knownID(b, i); known != nil {
			return &driver.RefusedError{Known: known, Err: driver.ErrDuplicateID}
		}
	}
	for i, id := range b.Take {
		if !p.facts.letters[id] || slices.Contains(b.Take[:i], id) {
			return &driver.RefusedError{Letter: id, Err: driver.ErrNotFound}
		}
	}
	for i, id := range b.Withdraw {
		if !p.facts.withdrawable[id] || slices.Contains(b.Withdraw[:i], id) {
			return &driver.RefusedError{Event: id, Err: driver.ErrNotFound}
		}
	}
	if id, unknown := p.notIncoming(b); unknown {
		return &driver.RefusedError{Incoming: id, Err: driver.ErrNotFound}
	}
	if ref := p.notLeased(b); ref != 0 {
		return &driver.RefusedError{Ref: ref, Err: driver.ErrNotLeased}
	}
	return p.checkRequests(b)
}

// knownID returns the entry that refuses b.Remember[i], or nil.
func (p *plan) knownID(b *driver.Batch, i int) *driver.Dedupe {
	d := &b.Remember[i]
	refuses := func(known *driver.Dedupe) *driver.Dedupe {
		if known == nil || !known.Expires.After(b.Aged()) {
			return nil
		}
		k := *known
		k.Expires = k.Expires.Round(0).UTC()
		return &k
	}
	for j := range b.Remember[:i] {
		if earlier := &b.Remember[j]; earlier.Scope == d.Scope && earlier.Key == d.Key {
			if known := refuses(earlier); known != nil {
				return known
			}
		}
	}
	key := dedupeKey{d.Scope, d.Key}
	if r := p.ids[key]; r != nil {
		if r.forgetLast {
			return nil
		}
		return refuses(r.remember)
	}
	return refuses(p.facts.known[key])
}

// notIncoming returns the first incoming event of Accept that is unknown, or twice there.
func (p *plan) notIncoming(b *driver.Batch) (id driver.IncomingID, unknown bool) {
	seen := make(map[driver.IncomingID]bool, len(b.Accept))
	for _, id := range b.Accept {
		known := !slices.Contains(p.accept, int64(id))
		if p.facts.incoming != nil {
			event, found := p.facts.incoming[id]
			known = known && found && !slices.Contains(b.Withdraw, event)
		}
		if !known || seen[id] {
			return id, true
		}
		seen[id] = true
	}
	return 0, false
}

// notLeased returns the first record of Update or Delete that the lease does not have when its turn comes, or 0.
func (p *plan) notLeased(b *driver.Batch) driver.Ref {
	gone := make(map[driver.Ref]bool, len(b.Delete)) // freed or deleted earlier in the batch
	has := func(ref driver.Ref) bool {
		_, ok := p.c.leased[ref]
		return ok && !gone[ref]
	}
	for _, r := range b.Update {
		if !has(r.Ref) {
			return r.Ref
		}
		gone[r.Ref] = !r.Leased
	}
	for _, ref := range b.Delete {
		if !has(ref) {
			return ref
		}
		gone[ref] = true
	}
	return 0
}

// checkRequests returns the refusal of a batch that removes or answers a request that is unknown or has an answer.
func (p *plan) checkRequests(b *driver.Batch) error {
	ids := endedRequests(b)
	for i, id := range ids {
		if !p.facts.open[id] || slices.Contains(ids[:i], id) {
			return &driver.RefusedError{Request: driver.RequestID(id), Err: driver.ErrNotFound}
		}
	}
	return nil
}

// apply adds a batch that is not refused.
func (p *plan) apply(b *driver.Batch) {
	p.written = true
	p.changes |= b.Changes()
	if b.Aged().After(p.now) {
		p.now = b.Aged()
	}
	p.remember(b)
	p.take = append(p.take, b.Take...)
	p.letters += int64(len(b.Take))
	p.withdraw = append(p.withdraw, b.Withdraw...)
	for _, id := range b.Accept {
		p.accept = append(p.accept, int64(id))
	}
	p.open(b)
	p.update(b)
	for _, ref := range b.Delete {
		was := p.c.leased[ref]
		p.states[was.state]--
		p.drop(ref)
		delete(p.updates, ref)
		p.deletes = append(p.deletes, int64(ref))
		p.settle(b, ref, was.about)
	}
	p.forgotten = append(p.forgotten, b.ForgetSettled...)
	p.bury = append(p.bury, b.Bury...)
	p.left = append(p.left, b.Leave...)
	p.asked = append(p.asked, b.Ask...)
	for _, id := range b.Unask {
		p.unask = append(p.unask, int64(id))
	}
	for _, a := range b.Answer {
		p.answers = append(p.answers, answering{a.Request, a.Body, b.Aged()})
	}
	for _, d := range b.Directives {
		if p.directive == nil {
			p.directive = make(map[string][]byte)
		}
		p.directive[d.Subscription] = d.Body
	}
	p.audit = append(p.audit, b.Audit...)
	p.outcomes = append(p.outcomes, b.Outcomes...)
	p.catalog(b)
}

func (p *plan) remember(b *driver.Batch) {
	entry := func(scope, key string) *remembering {
		if p.ids == nil {
			p.ids = make(map[dedupeKey]*remembering)
		}
		k := dedupeKey{scope, key}
		if p.ids[k] == nil {
			p.ids[k] = new(remembering)
		}
		return p.ids[k]
	}
	for i := range b.Remember {
		d := &b.Remember[i]
		r := entry(d.Scope, d.Key)
		if r.remember == nil {
			r.aged = b.Aged()
		}
		r.remember, r.forgetLast = d, false
	}
	for _, d := range b.Forget {
		if r := entry(d.Scope, d.Key); r.remember == nil {
			r.forgetFirst = true
		} else {
			r.forgetLast = true
		}
	}
}

// open adds the new records of a batch and numbers them.
func (p *plan) open(b *driver.Batch) {
	denied := p.c.faults.deny && len(b.Update)+len(b.Delete) == 0 && len(b.New) > 0
	var previous int64
	for _, r := range b.New {
		ref := driver.Ref(p.c.row.nextRef)
		p.c.row.nextRef++
		position := r.Position
		switch position {
		case 0:
			position = int64(ref)
		case driver.BesidePrevious:
			position = previous
		}
		previous = position
		leased := r.Leased && !denied
		p.inserts = append(p.inserts, insertion{ref, position, leased, r})
		p.states[r.State]++
		if leased {
			p.set(ref, held{r.State, p.about(r)})
		}
	}
}

// about returns what the history will say of a record. It is zero without WithHistory.
func (p *plan) about(r *driver.Record) about {
	if p.c.store.cfg.history == 0 {
		return about{}
	}
	return about{r.ID, r.Type, r.Key, true}
}

func (p *plan) update(b *driver.Batch) {
	for _, r := range b.Update {
		was := p.c.leased[r.Ref]
		if p.updates == nil {
			p.updates = make(map[driver.Ref]*driver.Record)
		}
		if p.updates[r.Ref] == nil {
			p.updated = append(p.updated, r.Ref)
		}
		p.updates[r.Ref] = r
		p.states[was.state]--
		p.states[r.State]++
		if r.Leased {
			p.set(r.Ref, held{r.State, was.about})
		} else {
			p.drop(r.Ref)
		}
	}
}

// settle adds a record that a batch removes to the history, unless the batch replaces it because a scheduled event is due.
func (p *plan) settle(b *driver.Batch, ref driver.Ref, of about) {
	if !of.hasHistory || slices.ContainsFunc(b.New, func(r *driver.Record) bool { return r.ID == of.event }) {
		return
	}
	dead := slices.ContainsFunc(b.Bury, func(l *driver.Letter) bool { return l.Event == of.event })
	p.settled = append(p.settled, settling{ref, of, dead, b.Now})
}

func (p *plan) catalog(b *driver.Batch) {
	if b.IfCatalogs != nil {
		p.ifCatalogs = b.IfCatalogs
	}
	if b.Catalog == nil {
		return
	}
	if p.catalogs == nil {
		p.catalogs = make(map[string]*cataloging)
	}
	c := p.catalogs[b.Catalog.Instance]
	if c == nil {
		c = new(cataloging)
		p.catalogs[b.Catalog.Instance] = c
	}
	c.body, c.seen = b.Catalog.Body, b.Now
	if c.body == nil {
		c.remove = true
	}
}

// prunes reports whether the plan removes expired rows: with the lease, about once a second.
func (p *plan) prunes() bool {
	return p.c.row.epoch != 0 && p.written && p.now.Sub(p.c.pruned).Abs() >= time.Second // a clock may go back
}
