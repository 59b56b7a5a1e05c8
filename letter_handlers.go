package eventbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/route"
)

// OnDeadLetter registers a handler for the dead letters of events whose type matches a pattern: the last step of a story, such as to
// tell the customer, or to disable a webhook. It is a subscription with retries, a circuit, a line, metrics and dead letters of its own,
// and takes the options of Subscribe. With a store it needs a name.
//
// The letter and its delivery to the handler are one step: with a store one commit, so a crash loses neither, and a call may
// be repeated. Each handler receives a letter by itself, in no order, as an event of type "eventbus.dead_letter" whose id is
// that of the letter, which Event, Dispatches and FromContext show. It has the metadata of the event that died. The letter
// that the handler gets is a copy; from a store, its payloads are encoded (json.RawMessage, or EncodedPayload). The letter itself stays
// in the queue of dead letters, where it may be replayed or purged before the handler has run.
//
// If the queue of a bus in memory has no room, or the line of the handler, the delivery becomes a dead letter with ReasonOverflow. If
// the handler fails, the delivery becomes one, which can be replayed. No handler gets letters of these, letters with
// ReasonShutdown, and imported ones. A replay of a letter calls the handler again only if the event dies again.
//
// With a store, the bus with the lease also opens deliveries for the handlers of other processes, by the names in the catalogs of
// the store: they are parked until a bus with the handler has the lease.
//
// Errors: those of Subscribe.
func (b *Bus) OnDeadLetter(pattern string, handle func(ctx context.Context, letter DeadLetter) error, opts ...SubscribeOption) (*Subscription, error) {
	var handler Handler
	if handle != nil {
		handler = letterHandler(b, handle)
	}
	s, err := b.subscribe(pattern, handler, true, opts)
	if err != nil {
		return nil, fmt.Errorf("OnDeadLetter(%q): %w", shorten(pattern), err)
	}
	b.operators.cataloged.changed()
	return s, nil
}

// deadLetterType is the type of the event that a letter is for its handlers.
const deadLetterType = "eventbus.dead_letter"

func letterHandler(b *Bus, handle func(ctx context.Context, letter DeadLetter) error) Handler {
	return func(ctx context.Context, e Event) error {
		letter, err := b.config.letterOf(e.Payload)
		if err != nil {
			return Permanent(err)
		}
		return handle(ctx, letter)
	}
}

// letterOf returns the letter that is the payload of an event.
func (c *config) letterOf(payload any) (DeadLetter, error) {
	if l, ok := payload.(DeadLetter); ok {
		return l.clone(), nil
	}
	line := payloadBytes(payload)
	if line == nil {
		return DeadLetter{}, &PayloadTypeError{EventType: deadLetterType, Want: "eventbus.DeadLetter", Got: fmt.Sprintf("%T", payload)}
	}
	l, reason := parseLetter(line)
	if reason != "" {
		return DeadLetter{}, &PayloadTypeError{EventType: deadLetterType, Want: "eventbus.DeadLetter", Got: "json.RawMessage", Err: errors.New(reason)}
	}
	l.Event.Payload, l.Original = c.payloadInLetter(l.Event.Payload), c.payloadInLetter(l.Original)
	return *l, nil
}

// payloadInLetter returns a payload that a codec has encoded, which is in base64 in the JSON of a letter.
func (c *config) payloadInLetter(payload any) any {
	text, ok := payload.(json.RawMessage)
	var data []byte
	if c.codec == nil || !ok || json.Unmarshal(text, &data) != nil {
		return payload
	}
	return EncodedPayload(data)
}

// encodeLetter returns a letter as the payload of an event.
func encodeLetter(l DeadLetter) json.RawMessage {
	data, err := json.Marshal(&l)
	if err != nil { // another program has left a payload in the store that is no JSON
		for _, payload := range []*any{&l.Event.Payload, &l.Original} {
			if *payload != nil {
				*payload = EncodedPayload(payloadBytes(*payload))
			}
		}
		data, _ = json.Marshal(&l)
	}
	return data
}

// letterRoutes has the handlers of dead letters, by the types of dead events. registry.mu guards changes of the table.
type letterRoutes struct {
	table     route.Router[*Subscription, *targets] // the targets are those of an event of deadLetterType
	elsewhere atomic.Pointer[[]letterHandlerElsewhere]
}

// letterHandlerElsewhere is a handler of dead letters of another bus on the store.
type letterHandlerElsewhere struct {
	names   []string // its name, and its former ones
	pattern *route.Pattern
}

// setElsewhere reads the handlers of other buses from the catalogs of the store.
func (r *letterRoutes) setElsewhere(all []instance, own string) {
	var elsewhere []letterHandlerElsewhere
	for _, in := range all {
		for _, s := range in.Subscriptions {
			pattern, offence := route.Parse(s.Pattern)
			if in.Instance != own && s.DeadLetters && offence == nil {
				elsewhere = append(elsewhere, letterHandlerElsewhere{append([]string{s.Subscription}, s.Formerly...), pattern})
			}
		}
	}
	r.elsewhere.Store(&elsewhere)
}

// newLetterTargets returns the targets of the event of a letter. Without one there is no such event, and no counter of its type.
func (r *registry) newLetterTargets(_ string, subscriptions []*Subscription) *targets {
	if len(subscriptions) == 0 {
		return &noTargets
	}
	return r.newTargets(deadLetterType, subscriptions)
}

var noTargets targets

// routesOf returns the table of a subscription.
func (r *registry) routesOf(s *Subscription) route.Router[*Subscription, *targets] {
	if s.letters {
		return r.letters.table
	}
	return r.routes
}

// handlersOfLetters returns the targets for a letter of an event type, and whether some are of other buses.
func (r *registry) handlersOfLetters(eventType string) (to *targets, missing bool) {
	to = matching(r.letters.table, eventType)
	elsewhere := r.letters.elsewhere.Load()
	if elsewhere == nil {
		return to, false
	}
	var absent []*Subscription
	for _, h := range *elsewhere {
		if h.pattern.Match(eventType) && !slices.ContainsFunc(h.names, func(name string) bool {
			return r.find(name) != nil || slices.ContainsFunc(absent, func(s *Subscription) bool { return s.id == name })
		}) {
			absent = append(absent, r.absent(h.names[0]))
		}
	}
	if len(absent) == 0 {
		return to, false
	}
	to = &targets{eventType: deadLetterType, subscriptions: slices.Concat(to.subscriptions, absent)}
	for _, s := range absent {
		s.isolated = true
	}
	r.complete(to)
	return to, true
}

// tell returns the event of a new letter for the handlers of dead letters, if there are any, and whether some are of other buses. The
// letter has its number.
func (m *machine) tell(d *dispatch, l *keptLetter) (told []*dispatch, missing bool) {
	if l == nil || l.Reason == ReasonShutdown || d.to.eventType == deadLetterType {
		return nil, false
	}
	to, missing := m.registry.handlersOfLetters(d.to.eventType)
	if len(to.subscriptions) == 0 {
		return nil, false
	}
	now, _ := m.time.Recent()
	event := &dispatch{id: EventID(l.ID), to: to, wall: now.Wall, inside: true, origin: &origin{metadata: d.from().metadata}}
	m.journal.prepareLetter(event, &l.DeadLetter)
	return []*dispatch{event}, missing
}
