package eventbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/route"
)

// OnDeadLetter registers a handler for the dead letters of events whose type matches a pattern, for example to inform a
// customer or to disable a webhook. It is a subscription with retries, a circuit, a line, metrics and dead letters of
// its own, and takes the options of Subscribe. With a store it needs a name.
//
// The bus opens the delivery to the handler together with the letter. With a store this is one commit, so a crash loses
// neither, and a call may be repeated. Each handler receives a letter by itself, in no order, as an event of type
// "eventbus.dead_letter". Event, Dispatches and FromContext show this event: its id is the id of the letter, and its
// metadata is that of the dead event. The handler receives a copy of the letter. With a store, and with
// WithEncodedPayloads, the payloads in it are encoded (json.RawMessage, or EncodedPayload), and its failures have texts
// only. The letter stays in the dead letter queue, where it may be replayed or purged before the handler runs.
//
// In memory, if the queue or the line of the handler has no room, the delivery becomes a dead letter with
// ReasonOverflow. If the handler fails, the delivery becomes a dead letter, which can be replayed. Handlers receive no
// letters of such deliveries, no letters with ReasonShutdown, and no imported letters. A replay of a letter calls the
// handler again only if the event dies again.
//
// With a store, the bus with the lease also opens deliveries for the handlers in the catalogs of standbys. They are
// parked until a bus with the handler has the lease.
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

func reservedType() error {
	return &EventError{Field: "type", Value: deadLetterType, Reason: "is reserved for the events of OnDeadLetter; choose another type"}
}

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
	l, reason := decodeLetterLine(line)
	if reason == "" && l.ID.IsZero() {
		reason = "it has no id"
	}
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

// setElsewhere sets the handlers of other buses, from their catalogs.
func (r *letterRoutes) setElsewhere(others []instance) {
	var elsewhere []letterHandlerElsewhere
	for _, in := range others {
		for _, s := range in.Subscriptions {
			pattern, offence := route.Parse(s.Pattern)
			if s.DeadLetters && offence == nil {
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

// handlersOfLetters returns the targets for a letter of an event type, each by itself, and whether some are of other buses.
func (r *registry) handlersOfLetters(eventType string) (each []*targets, missing bool) {
	to := matching(r.letters.table, eventType)
	if each = slices.Clip(to.each); each == nil && len(to.subscriptions) > 0 {
		each = []*targets{to}
	}
	elsewhere := r.letters.elsewhere.Load()
	if elsewhere == nil {
		return each, false
	}
	has := make(map[string]bool)
	for _, s := range to.subscriptions {
		for _, name := range s.names() {
			has[name] = true
		}
	}
	for _, h := range *elsewhere {
		if !h.pattern.Match(eventType) || slices.ContainsFunc(h.names, func(name string) bool { return has[name] }) {
			continue
		}
		s, here := r.handlerOfLetters(h.names)
		if !here {
			s, missing = r.absent(h.names[0]), true
			s.isolated, s.letters = true, true
		}
		one := &targets{eventType: deadLetterType, subscriptions: []*Subscription{s}}
		r.complete(one)
		each = append(each, one)
		for _, name := range append(s.names(), h.names...) {
			has[name] = true
		}
	}
	return each, missing
}

// handlerOfLetters returns the handler that this bus has under one of the names. Its pattern may differ from that of the other bus.
func (r *registry) handlerOfLetters(names []string) (s *Subscription, here bool) {
	for _, name := range names {
		if s = r.find(name); s != nil && s.letters {
			return s, true
		}
	}
	return nil, false
}

// otherKind returns a stand-in for a subscription that has the name of a delivery and is of another kind: of events, or of dead
// letters. The stand-in has ended, so the delivery becomes a dead letter.
func (r *registry) otherKind(name string, letters bool) *Subscription {
	s := r.absent(name)
	s.letters, s.isolated = letters, letters || s.isolated
	s.gone.Store(true)
	s.door.circuit.Gate.Or(circuit.Removed)
	return s
}

// tell returns the events of a new letter, one for each handler of dead letters, and whether some handlers are of other buses. The
// letter has its number.
func (m *machine) tell(d *dispatch, l *keptLetter) (told []*dispatch, missing bool) {
	if l == nil || l.Reason == ReasonShutdown || d.to.eventType == deadLetterType {
		return nil, false
	}
	each, missing := m.registry.handlersOfLetters(d.to.eventType)
	now, _ := m.time.Recent()
	for _, to := range each {
		event := &dispatch{id: EventID(l.ID), to: to, wall: now.Wall, inside: true, origin: &origin{metadata: d.from().metadata}}
		m.journal.prepareLetter(event, &l.DeadLetter)
		told = append(told, event)
	}
	return told, missing
}
