package periodic

import (
	"fmt"
	"math/bits"
	"sort"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/surebus/eventbus"
)

// SpecError reports why Every rejected a cron text. It matches eventbus.ErrInvalidOption.
type SpecError struct {
	Spec   string // the text, shortened
	Reason string // the problem, and a valid value
}

// Error returns the text of the error.
func (e *SpecError) Error() string {
	return fmt.Sprintf("periodic: invalid spec %q: %s", e.Spec, e.Reason)
}

// Is reports whether target is eventbus.ErrInvalidOption.
func (e *SpecError) Is(target error) bool { return target == eventbus.ErrInvalidOption }

// plan computes the ticks of a cron text in a location.
type plan struct {
	// civil matches local times, which it is given as times in UTC. Its own handling of summer time skips ticks.
	civil *cron.SpecSchedule
	in    *time.Location
	// elapses is set if every hour has ticks. The ticks then follow elapsed time, and not the hands of the clock.
	elapses bool
}

var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

const (
	maxSpec    = 255
	starBit    = 1 << 63   // the parser sets it for *
	everyHour  = 1<<24 - 1 // all bits of SpecSchedule.Hour
	fieldsHint = "five fields are minute, hour, day of month, month, day of week; a sixth one before them is the second"
)

// parse returns the plan of a cron text. now is where the search for a first tick begins.
func parse(spec string, in *time.Location, now time.Time) (*plan, error) {
	refuse := func(reason string, args ...any) (*plan, error) {
		return nil, &SpecError{Spec: shorten(spec), Reason: fmt.Sprintf(reason, args...)}
	}
	text := strings.TrimSpace(spec)
	switch upper := strings.ToUpper(text); {
	case text == "":
		return refuse("is empty; %s", fieldsHint)
	case len(text) > maxSpec:
		return refuse("is longer than %d bytes; publish with several schedules", maxSpec)
	case strings.HasPrefix(upper, "TZ=") || strings.HasPrefix(upper, "CRON_TZ="):
		return refuse("has a time zone; set it with the option In")
	case strings.HasPrefix(upper, "@EVERY"):
		return refuse("@every has no fixed instants, so each process would have ticks of its own; use steps, such as */5 * * * * or 0 */2 * * *")
	}
	civil, err := parseFields(text)
	if err != nil {
		return refuse("%v; %s", err, fieldsHint)
	}
	for _, field := range []uint64{civil.Second, civil.Minute, civil.Hour, civil.Dom, civil.Month, civil.Dow} {
		if bits.OnesCount64(field&^starBit) == 0 { // the search for a tick would try each second of five years
			return refuse("a field has no value; %s", fieldsHint)
		}
	}
	civil.Location = time.UTC
	p := &plan{civil: civil, in: in, elapses: civil.Hour&everyHour == everyHour}
	if p.next(now).IsZero() {
		return refuse("has no tick within five years; name a day that its months have")
	}
	return p, nil
}

// parseFields calls the parser, which panics for some invalid texts.
func parseFields(text string) (civil *cron.SpecSchedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser panicked: %v", r)
		}
	}()
	parsed, err := parser.Parse(text)
	if err != nil {
		return nil, err
	}
	civil, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("it has no fixed instants")
	}
	return civil, nil
}

// next returns the first tick after t, or zero if there is none within five years.
func (p *plan) next(t time.Time) time.Time {
	if p.elapses {
		return p.nextElapsed(t)
	}
	return p.nextCivil(t)
}

// nextElapsed returns the first instant after t whose local time matches. An hour that is repeated has its ticks twice.
func (p *plan) nextElapsed(t time.Time) time.Time {
	offset, end := p.zone(t)
	local := t.UTC().Add(offset)
	for {
		match := p.civil.Next(local)
		if match.IsZero() {
			return match
		}
		if at := match.Add(-offset); end.IsZero() || at.Before(end) {
			return at.In(p.in)
		}
		from := end // the zone has another offset from here
		offset, end = p.zone(from)
		local = from.UTC().Add(offset - 1) // from itself may match
	}
}

// nextCivil returns the instant of the first local time that matches and whose instant is after t. A later local time never has
// an earlier instant.
func (p *plan) nextCivil(t time.Time) time.Time {
	offset, _ := p.zone(t)
	for local := t.UTC().Add(offset); ; {
		local = p.civil.Next(local)
		if local.IsZero() {
			return local
		}
		if at := p.instant(local); at.After(t) {
			return at.In(p.in)
		}
	}
}

// zone returns the offset from UTC at an instant, and until when it applies: zero for ever.
func (p *plan) zone(t time.Time) (offset time.Duration, end time.Time) {
	t = t.In(p.in)
	_, seconds := t.Zone()
	_, end = t.ZoneBounds()
	return time.Duration(seconds) * time.Second, end
}

// instant returns when a local time is: the first time if it is repeated, and the end of the gap if it is skipped.
func (p *plan) instant(local time.Time) time.Time {
	y, month, d := local.Date()
	h, m, s := local.Clock()
	guess := time.Date(y, month, d, h, m, s, 0, p.in) // of the offsets around a change, it has either
	begin, end := guess.ZoneBounds()
	var first time.Time
	for _, t := range []time.Time{begin.Add(-1), guess, end} {
		offset, _ := p.zone(t)
		at := local.Add(-offset)
		if is, _ := p.zone(at); is == offset && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		return first
	}
	for _, change := range []time.Time{begin, end} {
		before, _ := p.zone(change.Add(-1))
		after, _ := p.zone(change)
		if !change.IsZero() && !local.Before(change.UTC().Add(before)) && local.Before(change.UTC().Add(after)) {
			return change
		}
	}
	return guess
}

// latest returns the last tick after a time and until another one, or zero.
func (p *plan) latest(after, until time.Time) time.Time {
	has := func(from time.Time) bool { // a tick after from
		tick := p.next(from)
		return !tick.IsZero() && !tick.After(until)
	}
	low := after.Truncate(time.Second) // ticks are on whole seconds
	if !until.After(after) || !has(low) {
		return time.Time{}
	}
	second := func(i int) time.Time { return low.Add(time.Duration(i) * time.Second) }
	without := sort.Search(int(until.Sub(low)/time.Second)+1, func(i int) bool { return !has(second(i)) })
	return p.next(second(without - 1))
}

// shorten bounds a text in an error.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
