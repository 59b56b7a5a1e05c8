// Package eventbus is an in-process event bus for monoliths in which no accepted
// event is lost: every subscription that matched it either handles it or is named
// in a dead letter with the full story.
//
// # Usage
//
// Services subscribe with glob patterns, domain code publishes:
//
//	bus, err := eventbus.New(eventbus.WithLogger(log))
//	sub, err := bus.Subscribe("order.*", handle, eventbus.Named("billing"))
//	err = bus.Start(ctx)
//	id, err := bus.Publish(ctx, "order.placed", order)
//	err = bus.Shutdown(ctx)
//
// A handler is a func(context.Context, Event) error; [Typed] makes one of a
// function that takes the payload's type. A pattern is a dotted glob: * is one
// segment or a part of one, ** any number of segments, ? one character, [a-z] a
// class, {a,b} alternatives; "*" alone matches every type.
//
// # Delivery
//
// When [Bus.Publish] returns nil the event is queued, for the subscriptions that
// match its type at that moment. Its handlers run one after the other, in the
// order in which they subscribed; different events run concurrently, in no
// order, up to [WithConcurrency]. A slow handler holds up its own event and no
// other. The queue is bounded: when it is full, Publish waits, or refuses with
// [RefuseWhenFull]; a handler that publishes never waits. [Bus.PublishAndWait]
// returns when the event has settled; [Bus.PublishBatch] accepts all or nothing.
//
// Events with the same [Key] are dispatched strictly one after another, their
// retries included. With [WithIsolation] every matching subscription is a dispatch
// of its own, and none waits for another. [ID] makes a publication repeatable;
// [After] and [At] put it off, and [Bus.Cancel] takes it back.
//
// All of this lives in memory: it holds within the process, and within the bound
// of the dead letter queue.
//
// # The way of an event
//
//	Publish ── which subscriptions? ── queue ── a free worker ── its key's turn?
//	                                                                 │
//	              ┌──────────────────────────────────────────────────┘
//	              ▼
//	   for each subscription in order:
//	     circuit open, paused, or limit reached? ── yes ── parked
//	        │ no
//	     handler, watched ── nil ── next one ── … ── handled
//	        │ error, panic, Goexit, timeout
//	     again? ── yes ── waits, and goes on at the subscription that failed
//	        │ no
//	     dead letter ── listed, replayed, purged
//
// # Failure handling
//
// A handler fails by returning an error, by panicking, by ending its goroutine
// and by overrunning its [Timeout]; an overrun one is cancelled and left to
// itself. The first failure ends the attempt. The next one begins at the
// subscription that failed, after a delay; those that have succeeded are not run
// again. Attempts are counted for the event, not for each subscription, and the
// policy is merged from the subscriptions' overrides, the most permissive value
// of each field: [Bus.Explain] shows the result. A waiting retry is data, and
// holds no goroutine. Handlers steer with [Permanent] and [RetryAfter]. [RetryRules]
// give kinds of errors budgets and delays of their own.
//
// Each subscription has a circuit. When more than half of at least four events
// of the last minute failed there, it opens, and the subscription is skipped for
// 30 seconds; then one delivery at a time probes. Being skipped spends no
// attempt, and the other subscriptions of the event proceed as usual. What is
// skipped is held and goes on, oldest first, when the circuit lets it through;
// [DeadLetterWhenOpen] and [DropWhenOpen] choose otherwise. Operators steer with
// [Subscription.Pause], [Subscription.HoldUntil], [Subscription.Trip] and their
// counterparts.
//
// What is not tried again becomes a [DeadLetter], with the event, the reason and
// every failure. [Bus.DLQ] lists, replays and purges. A replay goes to the
// subscriptions that did not succeed, with fresh attempts.
//
// # Seeing it
//
// Every failed attempt is a warn entry of the logger with the fields event_id,
// event_type, subscription_id, attempt, max_attempts (0 for unlimited), delay_ms
// (0 after the last) and error; a dead letter is another one, with its reason. No
// payload is logged. The default logger is silent: set one with [WithLogger].
// [Bus.Metrics] has counters of the types, the subscriptions and the bus, and the
// [Ledger], which balances.
//
// # Testing
//
// Every time that can be observed comes from the injected clock. Tests run the
// bus with the real clock under [testing/synctest], where a retry after 30
// seconds takes no time, or with a clock.Mock of github.com/benbjohnson/clock. The
// package eventbustest is the kit for them.
package eventbus
