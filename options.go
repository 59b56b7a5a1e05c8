package eventbus

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/texts"
)

// The defaults of a bus.
const (
	// DefaultTimeout is the default of WithTimeout.
	DefaultTimeout = 30 * time.Second
	// DefaultConcurrency is the default of WithConcurrency.
	DefaultConcurrency = 10_000
	// DefaultQueueCapacity is the default of WithQueueCapacity.
	DefaultQueueCapacity = 65_536
	// DefaultLineCapacity is the default of LineCapacity.
	DefaultLineCapacity = 10_000
	// DefaultDeadLetterCapacity is the default of WithDeadLetterCapacity.
	DefaultDeadLetterCapacity = 10_000
	// DefaultMaxAbandoned is the default of MaxAbandoned.
	DefaultMaxAbandoned = 100
	// DefaultPayloadLimit is the default of WithPayloadLimit, in bytes.
	DefaultPayloadLimit = 1 << 20
	// DefaultIdempotencyWindow is the default of WithIdempotencyWindow.
	DefaultIdempotencyWindow = 24 * time.Hour
	// DefaultMaxUnconfirmed and DefaultMaxUnconfirmedBytes are the defaults of WithMaxUnconfirmed.
	DefaultMaxUnconfirmed      = 65_536
	DefaultMaxUnconfirmedBytes = 64 << 20
)

// Option is an option of New.
type Option interface {
	applyBus(*config)
}

type config struct {
	clock        clock.Clock
	logger       *zap.Logger
	slog         slog.Handler
	flushLog     func() // waits a moment until what was logged is written
	retry        RetryPolicy
	rules        *ruleSet
	names        errorNames
	random       func() float64 // nil: math/rand
	circuit      circuit.Config
	timeout      time.Duration
	concurrency  int
	queue        int
	refuse       bool
	isolation    bool
	deadLetters  int
	retention    time.Duration // of dead letters; 0: for ever
	middleware   []Middleware
	metadataFrom []func(context.Context) map[string]string
	contextFrom  func(context.Context) context.Context
	inherited    []string // names of metadata
	hooks        []PublishHook
	observers    []Observer
	store        driver.Store
	queueWaits   bool  // for room in the queue
	codec        Codec // nil: encoding/json
	encodes      bool  // WithEncodedPayloads
	payloadLimit int   // of an encoded payload, in bytes
	emittedBytes int   // of the encoded payloads that a call emits
	idempotency  time.Duration
	unsettled    int // 0: not bounded
	unconfirmed  room.Size
	tool         bool
	standby      bool
	err          error
}

type option func(*config)

func (o option) applyBus(c *config) { o(c) }

func newConfig(opts []Option) (*config, error) {
	c := &config{
		clock:       clock.New(),
		retry:       DefaultRetryPolicy(),
		circuit:     defaultCircuit(),
		timeout:     DefaultTimeout,
		concurrency: DefaultConcurrency,
		queue:       DefaultQueueCapacity,
		deadLetters: DefaultDeadLetterCapacity,

		payloadLimit: DefaultPayloadLimit,
		emittedBytes: DefaultMaxEmittedBytes,
		idempotency:  DefaultIdempotencyWindow,
		unconfirmed:  room.Size{Records: DefaultMaxUnconfirmed, Bytes: DefaultMaxUnconfirmedBytes},
	}
	for i, o := range opts {
		if isNil(o) {
			return nil, nilOption("New", i)
		}
		o.applyBus(c)
		if c.err != nil {
			return nil, c.err
		}
	}
	if c.refuse && c.store != nil && c.unsettled == 0 {
		return nil, &OptionError{Option: "RefuseWhenFull", Reason: "needs WithMaxUnsettled on a bus with a store: the disk is the queue"}
	}
	if err := c.chooseLog(); err != nil {
		return nil, err
	}
	c.queueWaits = !c.refuse || c.store != nil // with a store, WithMaxUnsettled refuses
	return c, cmp.Or(c.checkTool(), c.checkStandby())
}

// isNil reports whether a user's value is nil, or an interface that contains nil.
func isNil(x any) bool {
	v := reflect.ValueOf(x)
	return x == nil || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Func) && v.IsNil()
}

func nilOption(in string, i int) error {
	return &OptionError{Option: in, Value: "nil", Reason: fmt.Sprintf("option %d is nil; leave it out", i+1)}
}

func (c *config) refuseIf(bad bool, name string, value any, reason string) {
	if bad && c.err == nil {
		c.err = &OptionError{Option: name, Value: fmt.Sprint(value), Reason: reason}
	}
}

// WithRetry changes the bus's retry policy: the fields of the given options, or all fields with a
// RetryPolicy.
func WithRetry(opts ...RetryOption) Option {
	return option(func(c *config) {
		r, err := newRetryOverride("WithRetry", opts)
		if err != nil {
			c.err = err
			return
		}
		c.retry = r.over(c.retry)
	})
}

// WithCircuit changes the circuits of all subscriptions. The option Circuit changes one subscription's circuit.
func WithCircuit(opts ...CircuitOption) Option {
	return option(func(c *config) { c.err = applyCircuit("WithCircuit", &c.circuit, opts) })
}

func applyCircuit(in string, c *circuit.Config, opts []CircuitOption) error {
	c.Disabled = false
	before := *c
	for i, o := range opts {
		if isNil(o) {
			return nilOption(in, i)
		}
		o.applyCircuit(c)
	}
	if before.Disabled = true; c.Disabled && *c != before {
		return &OptionError{Option: in + ".NoCircuit", Reason: "leaves the other options without effect; leave it out, or them"}
	}
	return validateCircuit(in, c)
}

// WithTimeout sets the timeout of handlers whose subscriptions have no Timeout: 30 s by default.
// More than 0.
func WithTimeout(d time.Duration) Option {
	return option(func(c *config) {
		c.refuseIf(d <= 0, "WithTimeout", d, "must be more than 0")
		c.timeout = d
	})
}

// WithConcurrency limits how many handlers run at a time: 10,000 by default, at least 1. Abandoned
// handlers do not count. A handler that waits in PublishAndWait does not count, and may exceed the
// limit when it continues.
func WithConcurrency(n int) Option {
	return option(func(c *config) {
		c.refuseIf(n < 1, "WithConcurrency", n, "must be at least 1")
		c.concurrency = n
	})
}

// WithQueueCapacity sets how many events wait for a worker before Publish blocks: 65,536 by
// default, at least 1.
func WithQueueCapacity(n int) Option {
	return option(func(c *config) {
		c.refuseIf(n < 1, "WithQueueCapacity", n, "must be at least 1")
		c.queue = n
	})
}

// RefuseWhenFull makes Publish return a *FullError instead of blocking when the queue is full.
// Handlers that publish still exceed the capacity.
func RefuseWhenFull() Option {
	return option(func(c *config) { c.refuse = true })
}

// WithIsolation makes every subscription Isolated: an event has a separate dispatch for each matching one. Each has its
// own retry policy, attempts and dead letter, and each subscription its own order per key. So
// subscriptions neither wait for each other nor share failures. Each dispatch takes a place in the
// queue.
func WithIsolation() Option {
	return option(func(c *config) { c.isolation = true })
}

// WithLetterRetention purges the dead letters that died longer ago than an age, at Start and once an hour: at least 1 h. Without
// the option, letters stay until they are purged, or evicted (WithDeadLetterCapacity). The bus purges as PurgeUntil does, by
// "retention", with an entry in the audit if there was a letter. Of several buses on one store, the one with the lease purges. After
// a step of the clock it purges nothing for an hour. A purge that fails is a warning, and is repeated after an hour.
func WithLetterRetention(age time.Duration) Option {
	return option(func(c *config) {
		c.refuseIf(age < time.Hour, "WithLetterRetention", age, "must be at least 1h, since letters are purged once an hour; leave the option out to keep them")
		c.retention = age
	})
}

// WithDeadLetterCapacity sets how many dead letters memory keeps: 10,000 by default, at least 1. A
// full queue evicts its oldest letter. Observer.LetterEvicted receives the whole letter, the log
// has an error entry without the payload, and the metrics count it.
func WithDeadLetterCapacity(n int) Option {
	return option(func(c *config) {
		c.refuseIf(n < 1, "WithDeadLetterCapacity", n, "must be at least 1")
		c.deadLetters = n
	})
}

// WithClock replaces the clock behind all observable times: timestamps, timeouts, delays, circuits,
// letters. Use a clock.Mock to control them in tests.
func WithClock(c clock.Clock) Option {
	return option(func(cfg *config) {
		cfg.refuseIf(isNil(c), "WithClock", "nil", "leave the option out for the real clock")
		cfg.clock = c
	})
}

// WithRandom replaces the random numbers for jitter. The function returns numbers in [0, 1), as rand.Float64 does. A
// larger number becomes the largest below 1. A negative number, NaN, a panic, which is logged, and a call beyond the
// subscription's timeout become 0. The function must be quick, and safe for concurrent use.
func WithRandom(random func() float64) Option {
	return option(func(c *config) {
		c.refuseIf(random == nil, "WithRandom", "nil", "leave the option out for math/rand")
		c.random = random
	})
}

// WithMiddleware wraps every handler of the bus, outside the middleware of its subscription. The
// first middleware is the outermost.
func WithMiddleware(mw ...Middleware) Option {
	return option(func(c *config) {
		for i, m := range mw {
			c.refuseIf(m == nil, "WithMiddleware", "nil", fmt.Sprintf("middleware %d is nil; leave it out", i+1))
		}
		c.middleware = append(c.middleware, mw...)
	})
}

// SubscribeOption is an option of Subscribe.
type SubscribeOption interface {
	applySubscription(*subscriptionConfig)
}

type subscriptionConfig struct {
	name        string
	named       bool
	formerly    []string
	timeout     time.Duration
	retry       retrySettings
	circuit     circuit.Config
	whenOpen    WhenOpen
	whenFull    WhenFull
	line        int
	limit       int // 0: the default
	abandoned   int // 0: the default
	throttle    time.Duration
	rate        *RateSettings      // nil for none
	destination func(Event) string // nil without PerDestination
	middleware  []Middleware
	inTx        bool
	single      bool // Once
	dropLate    bool // DropExpired
	strict      bool // StrictDecoding
	isolated    bool
	opens       bool // WhenOpen was given
	callerSkip  int
	err         error
}

type subscribeOption func(*subscriptionConfig)

func (o subscribeOption) applySubscription(c *subscriptionConfig) { o(c) }

// noRetry are the settings of a subscription without retry options.
var noRetry retrySettings

// ownRetry returns a copy, because a pointer into c would keep all of c in memory.
func (c *subscriptionConfig) ownRetry() *retrySettings {
	if c.retry.set == 0 && c.retry.rules == nil {
		return &noRetry
	}
	own := c.retry
	return &own
}

func newSubscriptionConfig(bus *config, opts []SubscribeOption) (*subscriptionConfig, error) {
	c := &subscriptionConfig{timeout: bus.timeout, circuit: bus.circuit, throttle: DefaultMaxThrottle}
	for i, o := range opts {
		if isNil(o) {
			return nil, nilOption("Subscribe", i)
		}
		o.applySubscription(c)
		if c.err != nil {
			return nil, c.err
		}
	}
	if bus.store != nil && !c.named {
		return nil, &OptionError{Option: "Named", Reason: "is required on a bus with a store: its records name the subscriptions"}
	}
	if c.opens && c.circuit.Disabled {
		return nil, &OptionError{Option: "WhenOpen", Value: c.whenOpen.String(), Reason: "has no effect without a circuit; leave it out, or enable the circuit with Circuit()"}
	}
	if c.single && c.destination != nil {
		return nil, &OptionError{Option: "Once", Reason: "takes one event of all; leave out PerDestination"}
	}
	if c.strict && bus.codec != nil {
		return nil, &OptionError{Option: "StrictDecoding", Reason: "is for JSON, and the bus has WithCodec: let the codec refuse unknown members"}
	}
	if store, ok := bus.store.(driver.OnceStore); ok && c.inTx {
		if err := c.limitRuns(store.MaxRuns(), bus); err != nil {
			return nil, err
		}
	}
	if c.limit > bus.concurrency {
		return nil, &OptionError{Option: "Concurrency", Value: fmt.Sprint(c.limit), Reason: fmt.Sprintf(
			"is more than the %d of WithConcurrency, which it can never reach; lower it, raise that, or use Unlimited", bus.concurrency)}
	}
	return c, nil
}

// limits returns the concurrency limit of a subscription, and its share of a full bus.
func (c *subscriptionConfig) limits(bus *config) (limit, share int32) {
	switch c.limit {
	case 0:
		return math.MaxInt32, int32(min(max(bus.concurrency/2, 1), math.MaxInt32))
	case Unlimited:
		return math.MaxInt32, math.MaxInt32
	}
	return int32(min(c.limit, math.MaxInt32)), math.MaxInt32
}

// Named sets a durable name for log entries, metrics, dead letters and replays. A name has 1 to 255 bytes of UTF-8
// without control characters, and is unique on the bus. Without it, the name is the pattern and a number: "order.*#3".
// Another bus may use that for another handler, so dead letters of an unnamed subscription can be replayed only by the
// bus that made them.
func Named(name string) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		c.name, c.named = name, true
		c.err = checkName("Named", name)
	})
}

// CallerSkip makes Subscription.MadeAt skip n callers: 1 in a function that calls Subscribe for its
// own caller. At least 0; the values of several CallerSkip add up.
func CallerSkip(n int) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if n < 0 {
			c.err = &OptionError{Option: "CallerSkip", Value: fmt.Sprint(n), Reason: "must be at least 0; omit the option to skip none"}
			return
		}
		c.callerSkip += n
	})
}

// maxName bounds the names of subscriptions, rules, errors and metadata, and keys, in bytes.
const maxName = 255

func checkName(option, name string) error {
	reason, _ := texts.Problem(name, maxName)
	if name == "" {
		reason = "must not be empty; omit the option for no name"
	}
	if reason == "" {
		return nil
	}
	return &OptionError{Option: option, Value: strconv.Quote(shorten(name)), Reason: reason}
}

// Timeout sets how long the subscription's handler may take for one event: WithTimeout's value by
// default. More than 0.
func Timeout(d time.Duration) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if d <= 0 {
			c.err = &OptionError{Option: "Timeout", Value: d.String(), Reason: "must be more than 0; every handler has a timeout, long as it may be"}
		}
		c.timeout = d
	})
}

// Retry overrides fields of the bus's retry policy. If several subscriptions of an event set a field, the most
// permissive value applies.
func Retry(opts ...RetryOption) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		r, err := newRetryOverride("Retry", opts)
		if err != nil {
			c.err = err
			return
		}
		r.RetryPolicy = r.over(c.retry.RetryPolicy)
		r.set |= c.retry.set
		c.retry.retryOverride = r
	})
}

// Circuit changes settings of the subscription's circuit. The others are the bus's. It enables a
// circuit that WithCircuit(NoCircuit()) has disabled, unless it has NoCircuit itself.
func Circuit(opts ...CircuitOption) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) { c.err = applyCircuit("Circuit", &c.circuit, opts) })
}

// LineCapacity bounds the deliveries that are parked at the subscription (see ParkReason). It is 10,000 by default, and at least 1. A
// delivery counts from when it first waits until it has settled.
//
// While the line is full, a further held delivery is dead-lettered with the reason overflow. If deliveries are
// throttled, Publish of an event for the subscription waits. Events that were accepted before may exceed the capacity.
// A running handler does not wait: its events are dead-lettered with the reason overflow while the line has twice the
// capacity. The constants of WhenFull select other behaviours.
//
// With a store, and without LineCapacity and WhenFull, further deliveries wait in the store instead: nothing overflows,
// and Publish does not wait. Any LineCapacity disables this.
func LineCapacity(n int) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if n < 1 {
			c.err = &OptionError{Option: "LineCapacity", Value: fmt.Sprint(n), Reason: "must be at least 1; DeadLetterWhenOpen holds nothing"}
		}
		c.line = n
	})
}

// Concurrency limits how many calls of the subscription's handler run at once. Abandoned calls do
// not count: see MaxAbandoned. Calls that wait in PublishAndWait do not count either, and may exceed n when they
// continue. A delivery beyond the limit is throttled: it waits in the subscription's line, without
// a goroutine and without spending an attempt. The event's other subscriptions proceed.
//
// n is from 1 to WithConcurrency, or Unlimited. Without the option, a subscription of a bus with
// several is limited only while the bus has no free worker. It may then use half of
// WithConcurrency, so that it cannot starve the others. Unlimited removes that limit too. With InTx, n is at most the number
// of transactions that the store runs at once, and that number by default.
func Concurrency(n int) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if n < 1 && n != Unlimited {
			c.err = &OptionError{Option: "Concurrency", Value: fmt.Sprint(n), Reason: "must be at least 1, or Unlimited; Pause stops deliveries"}
		}
		c.limit = n
	})
}

// Formerly lists earlier names of the subscription, or names of removed subscriptions. Replays and stored deliveries to
// such a name go to this subscription. Names have 1 to 255 bytes of UTF-8 without control characters. Subscribe returns
// ErrDuplicateName if another subscription of the bus has the name or lists it in Formerly. A stored event with several
// of the names calls the handler once for each: it has a delivery for each.
func Formerly(names ...string) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if len(names) == 0 {
			c.err = &OptionError{Option: "Formerly", Reason: "names nothing; leave it out"}
		}
		for _, name := range names {
			if c.err = checkName("Formerly", name); c.err != nil {
				return
			}
		}
		c.formerly = append(c.formerly, names...)
	})
}

// Use wraps a subscription's handler in middleware. The first middleware is the outermost.
func Use(mw ...Middleware) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		for i, m := range mw {
			if m == nil {
				c.err = &OptionError{Option: "Use", Value: "nil", Reason: fmt.Sprintf("middleware %d is nil; leave it out", i+1)}
				return
			}
		}
		c.middleware = append(c.middleware, mw...)
	})
}
