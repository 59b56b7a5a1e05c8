// Package eventbustest is the test kit for services that publish or subscribe on
// an [eventbus.Bus].
//
// A test makes its bus with [New], gives it to the service, and publishes. At its
// end the bus is shut down, and the test fails for what is wrong by then: events
// that were not finished, dead letters that it did not expect, handlers that do
// not return. So the shortest test is a test already:
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
// Inside [testing/synctest] the bus's real clock is virtual: retries after minutes
// take no time. Nothing needs to be said to the bus for that; make it, and the
// recorders, inside the bubble. Outside, all waits are bounded: by 10 seconds, or
// a second before the test binary's timeout. Shorten the retries there, with
// eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond)), or drive the bus with a
// mock clock and [AdvanceUntilSettled].
//
// [WaitSettled] waits for the whole bus; [eventbus.Bus.PublishAndWait] for one
// event; [Recorder.Wait] for deliveries. The assertions on dead letters wait until
// the bus is settled before they look: what is not there yet must not pass for what
// never comes.
//
// # Deliveries
//
// A [Recorder] is a handler that records ([Recorder.Handle], for what a service
// publishes) or a middleware around a service's own ([Recorder.Wrap], with
// eventbus.Use or eventbus.WithMiddleware). A script makes the next deliveries fail
// instead, before the service's handler is called:
//
//	var rec eventbustest.Recorder
//	bus := eventbustest.New(t, eventbus.WithMiddleware(rec.Wrap))
//	rec.FailNext(2, errBankIsBusy)
//	rec.Script(eventbustest.Overrun, eventbustest.Panic("no such account"))
//
// # Dead letters
//
// [DeadLetter], [DeadLetters] and [NoDeadLetters] assert on dead letters, and
// show them with the errors of all attempts when they are not as expected. A letter
// that was returned by one of them has been looked at. Others fail the test when
// it ends, unless [AllowDeadLetters] allows them.
//
// # Assertions in handlers
//
// Handlers run on goroutines of the bus, where t.Errorf and testify's assert may be
// used, and t.FailNow and require must not: they end the goroutine, which the bus
// takes for a failure and tries again. Record and assert afterwards, or wrap the
// handler with [Asserting].
package eventbustest
