//go:build unix

package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// publisher is a goroutine that publishes. It has keys of its own, which it keeps in all processes.
type publisher struct {
	*crashChild
	number int // with 10,000 for each standby before its process
	seq    int
	random *rand.Rand
}

func newPublisher(c *crashChild, number int) *publisher {
	number += 10_000 * c.spec.Standby
	return &publisher{crashChild: c, number: number, random: c.random("publisher", number)}
}

func (c *crashChild) random(what string, n int) *rand.Rand {
	return rand.New(rand.NewPCG(c.spec.Seed, hashOf(what, fmt.Sprint(c.spec.Life, n))))
}

func (p *publisher) name() string {
	p.seq++
	return fmt.Sprintf("%d.%d.%d", p.spec.Life, p.number, p.seq)
}

func (p *publisher) key() string {
	if p.random.IntN(2) == 0 {
		return ""
	}
	return fmt.Sprintf("key%d.%d", p.number, p.random.IntN(2))
}

func (p *publisher) run() {
	ctx := context.Background()
	for !p.ended.Load() {
		select {
		case <-p.stop:
			return
		default:
		}
		eventType := crashTypeNames[p.random.IntN(len(crashTypeNames))]
		switch n := p.random.IntN(100); {
		case n < 60:
			p.publish(ctx, p.name(), eventType, p.key(), 0, eventbus.EventID{})
		case n < 68:
			p.publishBatch(ctx)
		case n < 76:
			p.publish(ctx, p.name(), eventType, "", time.Duration(5+p.random.IntN(200))*time.Millisecond, eventbus.EventID{})
		case n < 84:
			p.publish(ctx, p.name(), eventType, "", 0, eventbus.NewEventID())
		case n < 90:
			short, cancel := context.WithTimeout(ctx, time.Duration(p.random.IntN(2000))*time.Microsecond)
			p.publish(short, p.name(), eventType, "", 0, eventbus.NewEventID())
			cancel()
		default:
			p.publishAndWait(ctx, p.name(), eventType, p.key())
		}
		if p.random.IntN(3) == 0 {
			time.Sleep(time.Duration(p.random.IntN(3000)) * time.Microsecond)
		}
	}
}

// intend writes the line of an event before it is published, and returns the options.
func (c *crashChild) intend(name, eventType, key string, delay time.Duration, id eventbus.EventID, again bool) []eventbus.PublishOption {
	targets := make([]string, 0, 4)
	for _, sub := range crashTypes[eventType] {
		switch {
		case sub != subMail || c.spec.Mail == mailFirst || c.spec.Quiet:
			targets = append(targets, sub)
		default: // it depends on the process that takes the event in, and on the moment
			targets = append(targets, sub+"?")
		}
	}
	opts := []eventbus.PublishOption{eventbus.Key(key), eventbus.Metadata("name", name)}
	due := int64(0)
	if delay > 0 {
		due = time.Now().Add(delay).UnixMilli()
		opts = append(opts, eventbus.After(delay))
	}
	given := "-"
	if !id.IsZero() {
		given = id.String()
		opts = append(opts, eventbus.ID(id))
	}
	if hasFixedID := !id.IsZero() || strings.Contains(name, "/"); hasFixedID && hashOf("once", name)%3 == 0 {
		opts = append(opts, eventbus.IdempotencyKey(name), eventbus.UntilSettled())
	}
	payload, err := json.Marshal(payloadOf(name))
	if err != nil {
		panic(err)
	}
	report("I", name, eventType, key, given, due, strings.Join(targets, ","), contentHash(eventType, key, name, payload), again)
	return opts
}

// publish publishes an event and writes what came of it.
func (c *crashChild) publish(ctx context.Context, name, eventType, key string, delay time.Duration, id eventbus.EventID) {
	opts := c.intend(name, eventType, key, delay, id, false)
	got, err := c.bus.Publish(ctx, eventType, payloadOf(name), opts...)
	c.published(name, got, err)
	if err == nil && delay > 20*time.Millisecond {
		select {
		case c.cancels <- scheduledEvent{name, got}:
		default:
		}
	}
}

func (c *crashChild) published(name string, id eventbus.EventID, err error) {
	var unknown *eventbus.IndeterminateError
	switch {
	case err == nil:
		report("A", name, id)
	case errors.As(err, &unknown):
		report("U", name, unknown.ID, err)
		if c.spec.Fault {
			time.Sleep(time.Millisecond)
		}
	default:
		report("E", name, err)
		switch {
		case errors.Is(err, eventbus.ErrShutdown):
			c.ended.Store(true)
		case errors.Is(err, eventbus.ErrStoreFailed):
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func (p *publisher) publishBatch(ctx context.Context) {
	var batch []eventbus.Publication
	var names []string
	for range 2 + p.random.IntN(min(p.spec.Queue, 10)-1) {
		name, eventType := p.name(), crashTypeNames[p.random.IntN(len(crashTypeNames))]
		opts := p.intend(name, eventType, p.key(), 0, eventbus.EventID{}, false)
		batch = append(batch, eventbus.Publication{Type: eventType, Payload: payloadOf(name), Options: opts})
		names = append(names, name)
	}
	ids, err := p.bus.PublishBatch(ctx, batch)
	for i, name := range names {
		id := eventbus.EventID{}
		if err == nil {
			id = ids[i]
		}
		var unknown *eventbus.IndeterminateError
		if i > 0 && errors.As(err, &unknown) {
			err = &eventbus.IndeterminateError{Err: unknown.Err} // the id is that of the first event
		}
		p.published(name, id, err)
	}
}

func (p *publisher) publishAndWait(ctx context.Context, name, eventType, key string) {
	opts := p.intend(name, eventType, key, 0, eventbus.EventID{}, false)
	r, err := p.bus.PublishAndWait(ctx, eventType, payloadOf(name), opts...)
	var died *eventbus.DeliveryError
	if err != nil && !errors.As(err, &died) && !errors.Is(err, eventbus.ErrHeld) {
		if r.ID.IsZero() {
			p.published(name, r.ID, err)
		} else {
			report("A", name, r.ID) // accepted; the wait ended otherwise
		}
		return
	}
	var letters []string
	for _, id := range r.Letters {
		letters = append(letters, id.String())
	}
	report("A", name, r.ID)
	report("W", name, r.Outcome, strings.Join(letters, ","), strings.Join(r.Held, ","))
}

// publishAgain repeats publications of earlier processes with their ids.
func (c *crashChild) publishAgain() {
	for _, a := range c.spec.Again {
		id, err := eventbus.ParseEventID(a.ID)
		if err != nil {
			panic(err)
		}
		opts := c.intend(a.Name, a.Type, "", 0, id, true)
		got, err := c.bus.Publish(context.Background(), a.Type, payloadOf(a.Name), opts...)
		c.published(a.Name, got, err)
		if err == nil {
			_, err := c.bus.Publish(context.Background(), a.Type, "other content", eventbus.ID(id))
			if !errors.Is(err, eventbus.ErrDuplicateID) && !errors.Is(err, eventbus.ErrStoreFailed) && !errors.Is(err, eventbus.ErrShutdown) {
				report("V", fmt.Sprintf("E6: id %s with other content: %v", a.ID, err))
			}
		}
	}
}

// operate does what operators do.
func (c *crashChild) operate() {
	random := c.random("operator", 0)
	leaves := time.Duration(10+random.IntN(40)) * time.Millisecond
	paused := c.spec.Pause
	for n := 0; ; n++ {
		select {
		case <-c.stop:
			return
		case <-time.After(time.Duration(random.IntN(4000)) * time.Microsecond):
		}
		sub := []string{subStock, subShip, subBill}[random.IntN(3)]
		switch random.IntN(12) {
		case 0, 1, 2:
			c.oneLetter(random, "D", c.bus.DLQ().Replay)
		case 3, 4:
			c.oneLetter(random, "X", c.bus.DLQ().Purge)
		case 5:
			if random.IntN(4) == 0 {
				c.replayMany(sub)
			}
		case 6:
			if random.IntN(4) == 0 {
				c.purgeMany(sub)
			}
		case 7:
			if paused = !paused; paused {
				_ = c.subs[subShip].Pause()
			} else {
				_ = c.subs[subShip].Resume()
			}
		case 8:
			_ = c.subs[subBill].Trip()
		case 9:
			c.order(fmt.Sprint("operator", n%3), n)
		default:
			c.cancel()
		}
		if c.spec.Mail == mailLeaves && time.Since(c.began) > leaves {
			if s := c.subs[subMail]; s != nil {
				report("M")
				s.Unsubscribe()
				delete(c.subs, subMail)
			}
		}
	}
}

// oneLetter replays or purges a letter.
func (c *crashChild) oneLetter(random *rand.Rand, verb string, do func(context.Context, eventbus.LetterID, ...eventbus.DirectiveOption) error) {
	ctx := context.Background()
	page, err := c.bus.DLQ().List(ctx, eventbus.LetterQuery{Limit: 50})
	if err != nil || len(page.Letters) == 0 {
		return
	}
	l := page.Letters[random.IntN(len(page.Letters))]
	var p crashPayload
	if err := json.Unmarshal(l.Event.Payload.(json.RawMessage), &p); err != nil {
		panic(err)
	}
	report(verb, l.ID, p.Name, canonical(l.Subscription), strings.Join(l.NotReached, ","), l.Event.ID)
	result := "ok"
	if err := do(ctx, l.ID); err != nil {
		result = err.Error()
	}
	report(verb+"A", l.ID, p.Name, result)
}

func (c *crashChild) replayMany(sub string) {
	report("DM", sub)
	done, err := c.bus.DLQ().ReplayMatching(context.Background(), eventbus.LetterQuery{Subscription: sub, Until: c.spec.Began})
	report("DMA", sub, err == nil && len(done.Stayed) == 0, done.Replayed)
}

func (c *crashChild) purgeMany(sub string) {
	report("XM", sub)
	done, err := c.bus.DLQ().PurgeMatching(context.Background(), eventbus.LetterQuery{Subscription: sub, Until: c.spec.Began})
	report("XMA", sub, err == nil, done.Purged)
}

// order submits an operator's order, which survives.
func (c *crashChild) order(name string, n int) {
	why := fmt.Sprintf("%d.%d", c.spec.Life, n)
	report("Y", name, why)
	done := make(chan error, 1)
	now := time.Now().UTC()
	order := orderFor(eventbus.Directive{Subscription: name, Pause: true, Why: why, At: now})
	c.store.Submit(&driver.Batch{Now: now, Epoch: c.store.Lease().Epoch, Directives: []driver.Directive{order}}, func(err error) { done <- err })
	if <-done == nil {
		report("YA", name, why)
	}
}

func (c *crashChild) cancel() {
	select {
	case e := <-c.cancels:
		c.cancelEvent(context.Background(), e)
	default:
	}
}

func (c *crashChild) cancelEvent(ctx context.Context, e scheduledEvent) {
	report("K", e.name)
	_, err := c.bus.Cancel(ctx, e.id)
	result := "ok"
	if errors.Is(err, eventbus.ErrSettled) || errors.Is(err, eventbus.ErrUnknownEvent) || errors.Is(err, eventbus.ErrNothingDone) {
		result = "late"
	} else if err != nil {
		result = "unknown"
	}
	report("KA", e.name, result)
}

// fault makes the store fail: its next commit does.
func (c *crashChild) fault() {
	report("F")
	err := c.store.committer.queue.Control(context.Background(), func() error {
		c.store.committer.broken = errors.New("of the test")
		return nil
	})
	if err != nil && !errors.Is(err, driver.ErrClosed) { // the process is shutting down
		panic(err)
	}
}
