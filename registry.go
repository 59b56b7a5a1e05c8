package eventbus

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/capped"
	"github.com/surebus/eventbus/internal/roster"
	"github.com/surebus/eventbus/internal/route"
)

// registry has the subscriptions of a bus by name, number and pattern, and the retry settings of the bus. It makes the
// targets of dispatches.
type registry struct {
	config  *config
	absent  func(name string) *Subscription // makes a stand-in, which receives nothing
	stored  bool                            // a store has deliveries by the names of subscriptions
	changed func()                          // is called when the subscriptions or their settings have changed, without a lock
	routes  route.Router[*Subscription, *targets]
	letters letterRoutes
	types   *capped.Map[typeCounters]
	retry   atomic.Pointer[retrySettings] // for subscriptions without their own
	several atomic.Bool                   // there are two subscriptions or more

	succeeding atomic.Int32 // subscriptions that succeed another of their name and have had no event

	mu      sync.Mutex // guards the following
	all     *roster.Roster[*Subscription]
	missing map[string]bool          // names in records that no subscription has had yet
	handles map[string]*Subscription // of a tool, see WithoutHandlers
	removed map[string]*Subscription // the last subscription of each name to end, with a store
	closed  bool                     // Shutdown has begun
}

func newRegistry(c *config, stored bool, absent func(name string) *Subscription, changed func()) *registry {
	r := &registry{
		config: c, stored: stored, absent: absent, changed: changed, types: capped.New[typeCounters](maxTypes),
		all: roster.New((*Subscription).ID, func(s *Subscription) []string { return s.formerly }),
	}
	r.retry.Store(&retrySettings{retryOverride: retryOverride{RetryPolicy: c.retry}, rules: c.rules})
	r.routes = route.NewTable(r.newTargets)
	r.letters.table = route.NewTable(r.newLetterTargets)
	return r
}

// add adds a subscription, whose id is its name or "". obeys makes it obey the latest directive to it, without a lock, and
// returns false if it has: another one may have come meanwhile. inherits makes it take over a detached one.
func (r *registry) add(
	s *Subscription, pattern *route.Pattern, latest func() Directive, obeys func(Directive),
	inherits func(from *Subscription) (opens func(), err error),
) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := latest(); o != s.door.directed; o = latest() {
		r.mu.Unlock()
		obeys(o) // before its first delivery
		r.mu.Lock()
	}
	if r.closed {
		return ErrShutdown
	}
	s.number = r.all.Next()
	taken := s.formerly
	if s.named {
		taken = append([]string{s.id}, taken...)
	}
	from, err := r.detachedLocked(taken)
	if err != nil {
		return err
	}
	opens := func() {}
	if from != nil {
		if opens, err = inherits(from); err != nil {
			return err
		}
		r.all.Remove(from.number)
	}
	for mark := "#"; !s.named; mark += "#" { // the number stays: no later subscription has it
		s.id = fmt.Sprintf("%s%s%d", s.pattern, mark, s.number)
		if _, taken := r.all.Find(s.id); !taken { // by Named
			break
		}
	}
	for _, name := range taken { // what the store has for an ended one is dead-lettered all the same
		delete(r.missing, name)
		if !s.succeeds && r.removed[name] != nil {
			s.succeeds, s.since = true, new(atomic.Int64)
			r.succeeding.Add(1)
		}
	}
	r.all.Add(s)
	r.several.Store(r.all.Len() > 1)
	routes := r.routesOf(s)
	s.place = routes.Add(pattern, s)
	if from != nil { // after Add: each event finds one of the two
		parsed, _ := route.Parse(from.pattern)
		routes.Remove(parsed, from.place)
	}
	opens()
	return nil
}

// remove removes a subscription that ends. With a store, it dead-letters its deliveries there.
func (r *registry) remove(s *Subscription) {
	parsed, _ := route.Parse(s.pattern)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routesOf(s).Remove(parsed, s.place)
	r.all.Remove(s.number)
	r.several.Store(r.all.Len() > 1)
	if !r.stored {
		return
	}
	if r.removed == nil {
		r.removed = make(map[string]*Subscription)
	}
	for _, name := range s.names() {
		r.removed[name] = s
	}
	if s.succeeds && s.since.CompareAndSwap(0, math.MaxInt64) {
		r.succeeding.Add(-1)
	}
}

// forgetEnded forgets the subscriptions that have ended. The lease begins: what the store has under their names was not
// theirs alone.
func (r *registry) forgetEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = nil
	for _, s := range r.all.All() {
		if s.succeeds && s.since.CompareAndSwap(0, 1) {
			r.succeeding.Add(-1)
		}
	}
}

// close refuses further subscriptions.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// list returns the subscriptions in the order of Subscribe.
func (r *registry) list() []*Subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.All()
}

// find returns the subscription that has a name, or had it by Formerly, or nil.
func (r *registry) find(name string) *Subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, _ := r.all.Find(name)
	return s
}

// handle returns a tool's handle of a name.
func (r *registry) handle(name string) *Subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handleLocked(name)
}

func (r *registry) handleLocked(name string) *Subscription {
	s := r.handles[name]
	if s == nil {
		if r.handles == nil {
			r.handles = make(map[string]*Subscription)
		}
		s = r.absent(name)
		s.destinations = newDestinations(s, &subscriptionConfig{circuit: *s.door.circuit.Config(), abandoned: Unlimited})
		r.handles[name] = s
	}
	return s
}

// doorOf returns the subscription whose deliveries the store has parked under a name: the present one, or the last that
// has ended; nil if there was none.
func (r *registry) doorOf(name string) (s *Subscription, exists bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, exists = r.all.Find(name)
	if !exists {
		s = r.removed[name]
	}
	return s, exists
}

// namesAtDoor returns the names under which a subscription has deliveries in the store.
func (r *registry) namesAtDoor(s *Subscription) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(s.names(), func(name string) bool {
		_, taken := r.all.Find(name)
		return s.gone.Load() && (taken || r.removed[name] != s) // another has it now
	})
}

// knownNames returns the names under which deliveries are no orphans: of the subscriptions, and of
// those that this process has ended, whose deliveries are dead-lettered.
func (r *registry) knownNames() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make(map[string]bool)
	for _, s := range r.all.All() {
		for _, name := range s.names() {
			names[name] = true
		}
	}
	for name := range r.removed {
		names[name] = true
	}
	return names
}

// isNewlyMissing notes that a record names a subscription that does not exist. It reports whether that was not known.
func (r *registry) isNewlyMissing(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.missing[name]
	if r.missing == nil {
		r.missing = make(map[string]bool)
	}
	r.missing[name] = true
	return !known
}

// recipient returns the subscription to which a name in a letter refers. A name such as
// "order.*#1" belongs to an unnamed subscription and depends on the order of the Subscribe calls.
// Another bus may use it for another handler, so only the bus that made the letter resolves it.
func (r *registry) recipient(l *keptLetter, name string) (*Subscription, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.config.tool {
		return r.handleLocked(name), nil
	}
	s, ok := r.all.Find(name)
	switch {
	case !ok, s.letters != (l.Event.Type == deadLetterType):
		return nil, fmt.Errorf("%w: %q; subscribe with Named(%[2]q) or Formerly(%[2]q), or purge the letter", ErrNoSubscription, name)
	case l.own == nil && !s.owns(name):
		return nil, fmt.Errorf("%w: another bus made the letter, and %q is an unnamed subscription here; "+
			"subscribe with Named and Formerly(%[2]q), or purge the letter", ErrNoSubscription, name)
	}
	return s, nil
}

// targetsOfLetter returns the targets of a replay: those that did not succeed.
func (r *registry) targetsOfLetter(l *keptLetter) (*targets, error) {
	to := &targets{eventType: l.Event.Type}
	for _, id := range append([]string{l.Subscription}, l.NotReached...) {
		s, err := r.recipient(l, id)
		if err != nil {
			return nil, err
		}
		to.subscriptions = append(to.subscriptions, s)
	}
	slices.SortStableFunc(to.subscriptions, func(x, y *Subscription) int { return cmp.Compare(x.number, y.number) })
	to.subscriptions = slices.Compact(to.subscriptions) // Formerly may map two names to one subscription
	r.complete(to)
	return to, nil
}

// targetsOfRecord returns the targets of a record, and the positions of those whose subscriptions do not
// exist.
func (r *registry) targetsOfRecord(of *record) (to *targets, missing []int) {
	to = &targets{eventType: of.Type, recorded: of.Targets, counters: r.types.Of(of.Type)}
	r.mu.Lock()
	for i, name := range of.Targets {
		s := r.ofRecordLocked(name, of)
		if s == nil {
			s = r.absent(name)
			missing = append(missing, i)
		}
		to.subscriptions = append(to.subscriptions, s)
	}
	r.mu.Unlock()
	to.retry = r.retryInForce(to.subscriptions)
	if of.State == driver.Scheduled { // its copies do not exist yet. Otherwise no record tells how many its event had
		to.dispatches = 1
		r.isolate(to, slices.ContainsFunc(to.subscriptions, r.hasEnded))
	}
	return to, missing
}

// cached returns the targets of an event type, if they are cached, and the hash for targetsOf.
func (r *registry) cached(eventType string) (to *targets, hash route.Hash, ok bool) {
	return r.routes.Cached(eventType)
}

// targetsOf returns the targets of a valid event type that are not cached.
func (r *registry) targetsOf(eventType string, hash route.Hash) *targets {
	return r.routes.Find(eventType, hash)
}

func (r *registry) newTargets(eventType string, subscriptions []*Subscription) *targets {
	// One that was just taken over, and the one that has taken it over, are the same.
	if slices.ContainsFunc(subscriptions, func(s *Subscription) bool { return s.heir.Load() != nil }) {
		subscriptions = slices.DeleteFunc(slices.Clone(subscriptions), func(s *Subscription) bool {
			now := s.latest()
			return now != s && slices.Contains(subscriptions, now)
		})
	}
	to := &targets{eventType: strings.Clone(eventType), subscriptions: subscriptions}
	r.complete(to)
	return to
}

// complete derives the other fields of targets from their type and subscriptions.
func (r *registry) complete(to *targets) {
	to.counters = r.types.Of(to.eventType)
	to.retry, to.dispatches = r.retryInForce(to.subscriptions), 1
	if r.stored {
		to.recorded = namesOf(to.subscriptions)
	}
	r.isolate(to, false)
}

// retryInForce returns the settings that now apply to the targets of a dispatch. The settings of
// two targets may be from different moments if they are replaced during the call.
func (r *registry) retryInForce(subscriptions []*Subscription) retryInForce {
	in := retryInForce{bus: r.retry.Load()}
	for i, s := range subscriptions {
		settings := s.retry.Load()
		if settings == &noRetry {
			continue
		}
		if in.own == nil {
			in.own = make([]*retrySettings, len(subscriptions))
		}
		in.own[i] = settings
	}
	return in
}

// changeRetry replaces the settings of a subscription, or those of the bus if s is nil.
func (r *registry) changeRetry(s *Subscription, change func(*retrySettings)) {
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	box := &r.retry
	if s != nil {
		box = &s.retry
	}
	settings := *box.Load()
	change(&settings)
	box.Store(&settings)
	if s != nil && settings.set == 0 && settings.rules == nil {
		box.Store(&noRetry)
	}
	r.routes.Renew() // cached targets have the previous settings
	r.letters.table.Renew()
}

// retrySettings has the retry overrides and rules of a subscription, or those of the bus. It is
// immutable.
type retrySettings struct {
	retryOverride
	rules *ruleSet // nil: those of the bus
}

// ownRetry has the settings of one subscription of a dispatch.
type ownRetry struct {
	of       *Subscription
	settings *retrySettings
	policy   *RetryPolicy // merged, with the subscription's unmerged fields; nil if it sets none
}

// retryInForce is the settings that apply to a dispatch: those in force when its targets were made.
// SetRetry replaces settings and never changes them, so the dispatch keeps its policy while it
// waits, is parked or is scheduled.
type retryInForce struct {
	bus *retrySettings
	own []*retrySettings // by target, nil for none; nil if no target has any
}

// of returns the own settings of a target, by its index.
func (in *retryInForce) of(i int) *retrySettings {
	if in.own == nil || in.own[i] == nil {
		return &noRetry
	}
	return in.own[i]
}

// SetRetry replaces the subscription's overrides of the retry policy. Without options it removes
// them. SetRetry may be called at any time. It applies to events published, and letters replayed,
// after it has returned. Earlier dispatches keep their policy.
//
// Errors, after which nothing has changed: *OptionError; ErrNoSubscription after Unsubscribe.
func (s *Subscription) SetRetry(opts ...RetryOption) error {
	if err := s.controllable("SetRetry"); err != nil {
		return err
	}
	r, err := newRetryOverride("SetRetry", opts)
	if err != nil {
		return err
	}
	s.bus.registry.changeRetry(s, func(settings *retrySettings) { settings.retryOverride = r })
	s.bus.report.doubtful(s.id, doubtsOf(&r, s.bus.registry.retry.Load().RetryPolicy, nil))
	return nil
}

// SetRetryRules replaces the rules of the subscription, see RetryRules. Without arguments the
// subscription has no rules, not those of the bus. It applies to the same dispatches as SetRetry,
// and has the same errors.
func (s *Subscription) SetRetryRules(rules ...RetryRule) error {
	if err := s.controllable("SetRetryRules"); err != nil {
		return err
	}
	set, err := newRuleSet("SetRetryRules", rules)
	if err != nil {
		return err
	}
	s.bus.registry.changeRetry(s, func(settings *retrySettings) { settings.rules = set })
	s.bus.report.doubtful(s.id, doubtsOf(&retryOverride{}, RetryPolicy{}, set))
	return nil
}

// SetRetry replaces the retry policy of the bus by DefaultRetryPolicy with the options. It applies
// to the same dispatches as Subscription.SetRetry. The error is an *OptionError.
func (b *Bus) SetRetry(opts ...RetryOption) error {
	if !b.usable() {
		return fmt.Errorf("SetRetry: %w", ErrUninitialized)
	}
	r, err := newRetryOverride("SetRetry", opts)
	if err != nil {
		return err
	}
	b.registry.changeRetry(nil, func(settings *retrySettings) { settings.RetryPolicy = r.over(DefaultRetryPolicy()) })
	b.report.doubtful("", doubtsOf(&r, DefaultRetryPolicy(), nil))
	return nil
}

// SetRetryRules replaces the rules of the bus, see WithRetryRules. It applies to the same
// dispatches as Subscription.SetRetry. The error is an *OptionError.
func (b *Bus) SetRetryRules(rules ...RetryRule) error {
	if !b.usable() {
		return fmt.Errorf("SetRetryRules: %w", ErrUninitialized)
	}
	set, err := newRuleSet("SetRetryRules", rules)
	if err != nil {
		return err
	}
	b.registry.changeRetry(nil, func(settings *retrySettings) { settings.rules = set })
	b.report.doubtful("", doubtsOf(&retryOverride{}, RetryPolicy{}, set))
	return nil
}
