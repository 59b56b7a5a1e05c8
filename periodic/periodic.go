package periodic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// Policy selects which tick that came before it Every publishes, for CatchUp.
type Policy uint8

const (
	// None publishes no tick that came before Every. It is the default.
	None Policy = iota
	// Latest publishes the latest tick that came before Every, unless the store knows its idempotency key.
	Latest
)

// TickMetadata is the name in an event's metadata that has the tick, as time.RFC3339 in the location of the schedule. Tick
// returns it as a time.
const TickMetadata = "periodic.tick"

// Tick returns the tick of an event that a schedule published. Its zone has the offset that the schedule's location had at the
// tick, so its date is the local one. ok is false for another event.
func Tick(e eventbus.Event) (tick time.Time, ok bool) {
	tick, err := time.Parse(time.RFC3339, e.Metadata.Get(TickMetadata))
	return tick, err == nil
}

// Option is an option of Every.
type Option func(*Schedule) error

func refused(option, value, reason string) error {
	return &eventbus.OptionError{Option: option, Value: value, Reason: reason}
}

// In sets the location whose local time the cron text means: time.UTC by default. It must be the same in all processes on one
// store. nil and time.Local are an *eventbus.OptionError, because time.Local differs between machines.
func In(l *time.Location) Option {
	return func(s *Schedule) error {
		switch l {
		case nil:
			return refused("In", "nil", "must be a location, such as one of time.LoadLocation; leave the option out for UTC")
		case time.Local:
			return refused("In", "time.Local", `differs between machines, and so would the ticks; use time.LoadLocation("Europe/Berlin")`)
		}
		s.in = l
		return nil
	}
}

// Named sets the name of the schedule: the event type and the cron text by default, with a space between them. Name and tick are
// the idempotency key of an event, so a schedule with a new name publishes ticks that the old one has published. A bus has one
// schedule of a name. A name has 1 to 200 bytes of UTF-8 without control characters.
func Named(name string) Option {
	return func(s *Schedule) error {
		s.name = name
		if problem := checkName(name); problem != "" {
			return refused("Named", fmt.Sprintf("%q", shorten(name)), problem)
		}
		return nil
	}
}

// maxName leaves room for the tick in an idempotency key of 255 bytes.
const maxName = 200

func checkName(name string) string {
	switch {
	case name == "":
		return "is empty; leave the option out for the event type and the cron text"
	case len(name) > maxName:
		return fmt.Sprintf("is longer than %d bytes", maxName)
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "has a control character"
	}
	return ""
}

// CatchUp sets whether Every publishes a tick that came before it. Latest needs a bus with a store, which remembers the
// ticks that earlier processes published. The first process that uses Latest publishes the latest tick of a new
// schedule at once.
func CatchUp(p Policy) Option {
	return func(s *Schedule) error {
		if p > Latest {
			return refused("CatchUp", fmt.Sprint(uint8(p)), "must be None or Latest")
		}
		s.catchUp = p
		return nil
	}
}

// Key sets the key of the events, as eventbus.Key: they are handled one after another.
func Key(key string) Option { return with(eventbus.Key(key)) }

// Metadata adds a name and a value to the metadata of the events, as eventbus.Metadata.
func Metadata(name, value string) Option { return with(eventbus.Metadata(name, value)) }

func with(o eventbus.PublishOption) Option {
	return func(s *Schedule) error {
		s.opts = append(s.opts, o)
		return nil
	}
}

// WithClock sets the clock of the ticks. Give it the clock of the bus, if that has eventbus.WithClock. The default is the real
// clock.
func WithClock(c clock.Clock) Option {
	return func(s *Schedule) error {
		if c == nil {
			return refused("WithClock", "nil", "leave the option out for the real clock")
		}
		s.clock = c
		return nil
	}
}

// Schedule publishes an event at each tick, until Stop or the Shutdown of its bus. Make one with Every. Its methods are safe for
// concurrent use.
type Schedule struct {
	bus       *eventbus.Bus
	eventType string
	payload   any
	plan      *plan
	log       *zap.Logger

	// Options.
	name    string
	in      *time.Location
	catchUp Policy
	opts    []eventbus.PublishOption
	clock   clock.Clock

	stored bool            // the bus has a store
	until  context.Context // it ends with Stop
	stop   context.CancelFunc
	ended  chan struct{} // closed when run has returned

	// Of run.
	look    time.Duration // the longest wait without a look at the wall clock
	done    time.Time     // ticks until this time are decided
	due     time.Time     // the first tick after done, or zero
	last    time.Time     // the latest decided tick, or zero
	standby standby
	trial   trial
	losses  losses
	highest highest
}

// Every publishes an event of a type at each tick of a cron text, such as "0 8 * * *". See the package comment for the text, and for
// what happens while the bus does not dispatch. All events have the same payload. Handlers must not change it, and get the
// tick with Tick.
//
// Every does not block for a publication. Call it before Start or after it. The schedule ends with Stop, or with the bus's Shutdown.
//
// Errors: *SpecError; *eventbus.OptionError, also for a nil bus, for a second schedule of a name, and for CatchUp without a
// store; *eventbus.EventError for an invalid event type, key or metadata; *eventbus.PayloadError, with a store;
// eventbus.ErrShutdown; eventbus.ErrNoHandlers for a bus WithoutHandlers; eventbus.ErrUninitialized.
func Every(bus *eventbus.Bus, spec, eventType string, payload any, opts ...Option) (*Schedule, error) {
	s, err := newSchedule(bus, spec, eventType, payload, opts)
	if err != nil {
		return nil, fmt.Errorf("periodic.Every: %w", err)
	}
	return s, nil
}

func newSchedule(bus *eventbus.Bus, spec, eventType string, payload any, opts []Option) (*Schedule, error) {
	if err := checkBus(bus); err != nil {
		return nil, err
	}
	s := &Schedule{
		bus: bus, eventType: eventType, payload: payload, in: time.UTC, clock: clock.New(),
		name: eventType + " " + strings.Join(strings.Fields(spec), " "), ended: make(chan struct{}),
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, refused("nil", "nil", "an option must not be nil; leave it out")
		}
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	now := s.now()
	var err error
	if s.plan, err = parse(spec, s.in, now); err != nil {
		return nil, err
	}
	if err := s.check(now); err != nil {
		return nil, err
	}
	if !names.take(s) {
		return nil, refused("Named", fmt.Sprintf("%q", s.name), "another schedule of the bus has this name; stop that one, or choose another name")
	}
	s.begin(now)
	return s, nil
}

// checkBus refuses a bus that publishes no ticks.
func checkBus(bus *eventbus.Bus) error {
	if bus == nil {
		return refused("bus", "nil", "must be the bus that publishes the ticks")
	}
	// Subscribe returns one of these before it looks at the handler, and never accepts a nil one.
	_, err := bus.Subscribe("*", nil)
	for _, unusable := range []error{eventbus.ErrUninitialized, eventbus.ErrNoHandlers} {
		if errors.Is(err, unusable) {
			return unusable
		}
	}
	select {
	case <-bus.Stopping():
		return eventbus.ErrShutdown
	default:
		return nil
	}
}

// check refuses what no publication of a tick would accept.
func (s *Schedule) check(now time.Time) error {
	if problem := checkName(s.name); problem != "" {
		return refused("Named", fmt.Sprintf("%q", shorten(s.name)), "the default, event type and cron text, "+problem+"; set a name")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// PublishTx checks the event and its options before the transaction, and never accepts a nil transaction.
	_, err := s.bus.PublishTx(ctx, nil, s.eventType, s.payload, s.options(s.plan.next(now))...)
	for _, refusal := range []error{eventbus.ErrInvalidEvent, eventbus.ErrInvalidOption, eventbus.ErrShutdown} {
		if errors.Is(err, refusal) {
			return cmp.Or(errors.Unwrap(err), err) // without the name of the method
		}
	}
	s.stored = s.bus.Metrics().Store != nil
	if s.catchUp == Latest && !s.stored {
		return refused("CatchUp", "Latest", "needs a bus with a store, which remembers the ticks of earlier processes; leave the option out, or use eventbus.WithStore")
	}
	return nil
}

// names has the schedules that run, by bus and name.
var names = registry{taken: make(map[place]bool)}

type registry struct {
	mu    sync.Mutex // guards the following
	taken map[place]bool
}

type place struct {
	bus  *eventbus.Bus
	name string
}

// take reports whether the name of a schedule was free, and takes it.
func (r *registry) take(s *Schedule) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := place{s.bus, s.name}
	free := !r.taken[at]
	r.taken[at] = true
	return free
}

func (r *registry) free(s *Schedule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taken, place{s.bus, s.name})
}

// Stop ends the schedule. It waits for a publication in progress, at most 10 s. The schedule publishes no tick after
// Stop has returned. The bus still handles events that were published before. Stop may be called more than once. It
// must not be called by the codec of the bus.
func (s *Schedule) Stop() {
	s.stop()
	<-s.ended
}

// Next returns the next tick after the present time, in the location of the schedule. It is zero after Stop, after the Shutdown of
// the bus, and if there is none within five years.
func (s *Schedule) Next() time.Time {
	select {
	case <-s.ended:
		return time.Time{}
	default:
		return s.plan.next(s.now())
	}
}

// Name returns the name of the schedule.
func (s *Schedule) Name() string { return s.name }

// now returns the wall clock's time: timers and monotonic readings do not notice that it was set, or that the machine slept.
func (s *Schedule) now() time.Time { return s.clock.Now().Round(0) }
