// Package eventbustest is the test kit for services that publish or subscribe on
// an [eventbus.Bus].
//
// A test makes its bus with [New], passes it to the service, and publishes. At the end of the test, the kit shuts the
// bus down. It fails the test for unfinished events, unexpected dead letters and handlers that do not return, even
// without assertions:
//
//	func TestOrders(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			bus := eventbustest.New(t)
//			orders := NewOrders(bus, &bank{})
//
//			orders.Place(t.Context(), Order{ID: "o-17", Cents: 4200})
//			eventbustest.WaitSettled(t, bus)
//
//			require.True(t, orders.Paid("o-17"))
//		})
//	}
//
// # Time
//
// Inside [testing/synctest], time is virtual: retries after minutes take no time. Make the bus
// and the recorders inside the bubble. The bus needs no option for it. Outside a bubble, all
// waits end after 10 seconds, or a second before the test binary's timeout. Shorten the retries
// there with eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond)), or drive the bus with a
// mock clock and [AdvanceUntilSettled].
//
// [WaitSettled] waits for the whole bus, [eventbus.Bus.PublishAndWait] for one event, and
// [Recorder.Wait] for deliveries. Assertions on dead letters first wait until the bus is settled,
// so that they do not miss a letter that comes late.
//
// # Deliveries
//
// A [Recorder] records deliveries: as a handler, for events that a service publishes
// ([Recorder.Handle]), or as a middleware around a service's handlers ([Recorder.Wrap], with
// eventbus.Use or eventbus.WithMiddleware). A script replaces the handler for the next
// deliveries:
//
//	var rec eventbustest.Recorder
//	bus := eventbustest.New(t, eventbus.WithMiddleware(rec.Wrap))
//	rec.FailNext(2, errBankIsBusy)
//	rec.Script(eventbustest.Overrun, eventbustest.Panic("no such account"))
//
// # Dead letters
//
// [DeadLetter], [DeadLetters] and [NoDeadLetters] assert on dead letters. A failed assertion
// shows the letters with the errors of all attempts. At the end of the test, a letter that
// neither DeadLetter nor DeadLetters returned fails the test, unless [AllowDeadLetters] allows
// it. Letters of unfinished events (eventbus.ReasonShutdown) must be allowed by their reason.
//
// # Requests
//
// A [RequestContext] is the context of a request as web frameworks reuse it. Publish with one to see that
// handlers do not act for the next request's user.
//
// # Stores
//
// A bus with a store takes eventbus.WithStore, with a store of package storetest in memory, or of
// store/sqlite/sqlitetest on disk. Both run inside [testing/synctest]:
//
//	model := storetest.NewModel()
//	bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
//
// New starts the bus, which parks the events of an earlier process until their subscriptions exist.
// [WaitSettled] also waits for the events that only the store has. Untyped handlers, deliveries and
// dead letters have encoded payloads: [Payloads] and [Payload] decode them. [Crash] ends the bus as a
// killed process ends, so that a test can start another one over the same data.
//
// A service that publishes in its own transactions, with [eventbus.Bus.PublishTx], gets them from Model.Begin in such a
// test. [AdoptTx] fails the test for one that is left open.
//
// # Assertions in handlers
//
// Handlers run on goroutines of the bus. They may call t.Errorf and testify's assert, but not
// t.FailNow and require: these exit the goroutine, and the bus retries the handler. Record the
// deliveries and assert afterwards, or wrap the handler with [Asserting].
package eventbustest
