// Package eventbus is an in-process event bus for Go monoliths that loses no accepted event.
//
//	bus, err := eventbus.New()
//	if err != nil {
//		return err
//	}
//	_, err = bus.Subscribe("order.*", func(ctx context.Context, e eventbus.Event) error {
//		return send(ctx, e.Payload.(Order)) // after an error the bus retries
//	}, eventbus.Named("mail"))
//	if err != nil {
//		return err
//	}
//	if err := bus.Start(ctx); err != nil {
//		return err
//	}
//	if _, err := bus.Publish(ctx, "order.placed", order); err != nil {
//		return err
//	}
//	return bus.Shutdown(ctx) // waits until the events are handled
//
// When [Bus.Publish] returns nil, each matching subscription either handles the event, or a [DeadLetter]
// names the subscription and has all failures. Only options of a subscription and operators drop events.
//
// # Subscriptions
//
// A handler is a func(context.Context, Event) error. [Typed] makes a handler of a function that takes
// the payload's type. A [Topic] binds an event type to a Go type for publishers and handlers.
//
// A pattern is a dotted glob: * matches one segment or a part of it, ** any number of segments, and ?
// one character. [a-z] matches a class of characters, and {a,b} alternatives. "*" alone matches every type.
//
// # Delivery
//
// [Bus.Publish] queues the event for the subscriptions that match its type at that moment. The handlers
// of an event run one after the other, in the order of their Subscribe calls. Different events run
// concurrently, in no order, up to [WithConcurrency]. [Concurrency] limits one subscription. With
// [WithIsolation], each subscription has its own dispatch of an event, and none waits for another.
//
// The queue is bounded: when it is full, Publish blocks, or returns a [*FullError] with [RefuseWhenFull].
// A handler that publishes never waits for room in the queue. [Bus.PublishAndWait] returns when the event
// has settled, or when only held deliveries are left. [Bus.PublishBatch] accepts all events or none. [Emit]
// publishes in a handler, if and only if the handler succeeds.
//
// The bus dispatches events with the same [Key] strictly one after another, including their retries.
// With [IdempotencyKey] or [ID], a repeated publication has no effect. A store knows keys and ids for 24 hours
// ([WithIdempotencyWindow], [KeepFor]), and memory knows the last 100,000. [After] and [At] delay an event, and
// [Bus.Cancel] ends it. From the instant of [ExpiresAt] on, no call of a handler begins for an event.
//
// By default the bus is in memory: it keeps these promises while the process lives, and for as many dead
// letters as [WithDeadLetterCapacity] allows. With a store it keeps them beyond that.
//
// # Durability
//
// [WithStore] makes the bus durable. When Publish returns nil, the store has the event, and a crash of the
// process at any instant loses nothing. [Bus.Start] resumes the work of an earlier process: queued events,
// retries with their due times and attempts, scheduled events and parked deliveries. Dead letters are in
// the store too. Package store/sqlite stores events in a file, and store/postgres on a server. Each is a
// module of its own.
//
//	store, err := sqlite.Open(ctx, "events.db")
//	bus, err := eventbus.New(eventbus.WithStore(store))
//
// A bus with a store differs from a bus in memory:
//
//   - A subscription needs a name ([Named]), by which a later process finds its deliveries. Subscribe
//     before Start.
//   - The bus encodes payloads as JSON, or by [WithCodec]. [Typed] decodes them. Other handlers receive
//     an [encoding/json.RawMessage], or with WithCodec an [EncodedPayload]. Publish rejects a payload
//     that cannot be encoded with a [*PayloadError].
//   - [WithContextFrom] has no effect. [WithMetadataFrom] copies values of the context passed to Publish
//     into the event's metadata.
//   - Delivery is at least once: a handler that runs when the process dies runs again in the next one,
//     with the same event id. A subscription whose success is recorded does not run again.
//   - A delivery to a name without a subscription is parked in the store until the subscription exists.
//     [Formerly] adopts an earlier name.
//   - An event that kills the process repeatedly becomes a dead letter with [ReasonCrash].
//
// The disk is the queue: Publish does not wait for memory. [WithMaxUnsettled] bounds the dispatches in
// the store. The store also keeps the directives of operators ([Subscription.Pause],
// [Subscription.HoldUntil], [Subscription.Trip]) and the [Catalog] of subscriptions.
//
// Several processes may use one store. One bus has its lease and dispatches. [WithStandby] makes
// [Bus.Start] wait for the lease. A bus without the lease can publish, and the bus with the lease routes
// its events. [Bus.PublishTx] publishes in a transaction of the caller: with store/sqlite, a *sql.Tx on the
// store's file, with store/postgres a pgx.Tx or a *sql.Tx.
//
// If the store fails, or the context of Publish ends, during the commit, the outcome is unknown: Publish
// returns an [*IndeterminateError]. Publish the event again with its ID: the bus accepts it once. After
// a failure the bus reopens the store and continues. [Bus.Shutdown] waits for running handlers, and leaves
// the rest in the store. [Bus.Drain] waits until nothing is queued, running, retrying or throttled.
//
// # Options
//
// Options of a bus, for [New]:
//
//   - Capacity: [WithConcurrency], [WithQueueCapacity], [RefuseWhenFull], [WithDeadLetterCapacity], [WithLetterRetention]
//   - Handlers: [WithTimeout], [WithIsolation], [WithMiddleware]
//   - Failures: [WithRetry], [WithRetryRules], [WithErrorName], [WithErrorTypeName], [WithCircuit]
//   - Payloads: [WithCodec], [WithEncodedPayloads], [WithPayloadLimit], [WithMaxEmittedBytes]
//   - Store: [WithStore], [WithIdempotencyWindow], [WithStandby], [WithoutHandlers]
//   - Limits of a store: [WithMaxUnsettled], [WithMaxUnconfirmed]
//   - Metadata and context: [WithMetadataFrom], [WithInheritedMetadata], [WithContextFrom], [WithPublishHook]
//   - Observation: [WithLogger], [WithSlog], [WithObserver]
//   - Tests: [WithClock], [WithRandom]
//
// Options of a subscription, for [Bus.Subscribe]:
//
//   - Name: [Named], [Formerly], [CallerSkip]
//   - Limits: [Timeout], [Concurrency], [RateLimit], [MaxThrottle], [MaxAbandoned], [LineCapacity], [WhenFull], [PerDestination]
//   - Failures: [Retry], [RetryRules], [Circuit], [WhenOpen]
//   - Handlers: [Use], [InTx], [Isolated], [Once], [StrictDecoding], [DropExpired]
//
// Options of a publication, for [Bus.Publish], [Bus.PublishAndWait], [Bus.PublishTx], [Emit] and [Publication]:
//
//   - Order and identity: [Key], [ID], [IdempotencyKey], [KeepFor], [UntilSettled]
//   - Time: [After], [At], [ExpiresAt], [ExpiresIn]
//   - Metadata: [Metadata]
//
// Options of retries and circuits, for [WithRetry], [Retry], [Bus.SetRetry], [WithCircuit] and [Circuit]:
//
//   - Limits of retries: [MaxRetries], [MaxElapsed], [RetryIf], [IncludeErrors], [ExcludeErrors]
//   - Delays of retries: [BaseDelay], [BackoffMultiplier], [MaxDelay], [Delays], [Jitter]
//   - A whole policy: [RetryPolicy]
//   - Circuits: [FailureRatio], [MinEvents], [Window], [OpenFor], [CountRejections], [NoCircuit]
//
// Options of operators' calls:
//
//   - Who, why, from where: [By], [Because], [FromRequest]
//   - Bulk operations: [Rate], [DryRun], [StopAfter], [OnProgress]
//   - An event that has not settled: [OfSubscription], [Probe]
//   - Ending a name: [DropRetired]
//
// # The way of an event
//
//	Publish ── which subscriptions? ── queue ── a free worker ── its key's turn?
//	                                                                 │
//	              ┌──────────────────────────────────────────────────┘
//	              ▼
//	   for each subscription in order:
//	     shut, or a limit reached? ── yes ── parked
//	        │ no
//	     handler, with a timeout ── nil ── next one ── … ── handled
//	        │ error, panic, Goexit, timeout
//	     retry? ── yes ── waits, then resumes at the subscription that failed
//	        │ no
//	     dead letter ── listed, replayed, purged
//
// # Failure handling
//
// A handler fails when it returns an error, panics, exits its goroutine, or exceeds its [Timeout].
// After a timeout the bus cancels the context of the handler and abandons the call. The first failure ends
// the attempt. The next attempt starts, after a delay, at the subscription that failed: subscriptions that
// succeeded do not run again. A waiting retry holds no goroutine.
//
// Attempts are counted per dispatch: an event has one count for all subscriptions that are not isolated. The
// policy has the most permissive value of each limit and delay among
// the subscriptions' overrides, and [Bus.Explain] shows it. Handlers control their retries with
// [Permanent], [RetryAfter], [Snooze] and [Throttle]. [RetryRules] set budgets and delays for kinds of errors.
//
// Each subscription has a circuit. It opens when more than half of at least four events of the last
// minute failed there. The bus then skips the subscription for 30 seconds. After that, one delivery at
// a time probes. A skipped delivery spends no attempt, and the event's other subscriptions proceed.
// Skipped deliveries are held and resume, oldest first, when the circuit admits them;
// [DeadLetterWhenOpen] and [DropWhenOpen] choose otherwise. Operators use [Subscription.Pause],
// [Subscription.HoldUntil], [Subscription.Trip] and their counterparts.
//
// An event that is not retried becomes a [DeadLetter] with the event, the reason and every failure.
// [Bus.DLQ] lists, replays and purges letters. A replay goes to the subscriptions that did not succeed,
// with fresh attempts. [Bus.OnDeadLetter] registers a handler for letters.
//
// # Observability
//
// Each failed attempt is a warn entry in the log with the fields event_id, event_type, subscription_id,
// attempt, max_attempts (0 for unlimited), delay_ms (0 after the last) and error. Each dead letter is an
// error entry, with its reason. The bus does not log payloads. Without [WithLogger] and [WithSlog], warnings
// and errors go to stderr.
//
// [Bus.Metrics] has counters per type, per subscription and for the bus, the counts of the store, and a
// [Ledger] that balances. [Bus.Observe] adds an [Observer] to a running bus. [Bus.Event] returns what became
// of an event, and [Bus.Dispatches] lists the dispatches that have not settled.
//
// # JSON
//
// [Metrics], [DeadLetter], [LetterPage], [LetterGroup], [EventStatus], [Plan], the reports and the arguments
// of observers have a stable form for encoding/json. Names are in snake_case. Times are RFC 3339 in UTC with
// nanoseconds, and zero times are omitted. Durations are integers: nanoseconds. Constants are the texts
// of their String methods. Fields of type error and functions are omitted.
//
// # Testing
//
// Package eventbustest is the test kit. Every observable time comes from the injected clock. Tests use the
// real clock under [testing/synctest], where a retry after 30 seconds takes no time, or a clock.Mock of
// github.com/benbjohnson/clock.
package eventbus
