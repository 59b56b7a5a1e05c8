// Package periodic publishes events at the ticks of a cron text, on a bus in memory or with a store.
//
//	daily, err := periodic.Every(bus, "0 8 * * *", "report.daily", Report{},
//		periodic.In(berlin), periodic.CatchUp(periodic.Latest))
//	if err != nil {
//		return err
//	}
//	defer daily.Stop()
//	bus.Subscribe("report.daily", func(ctx context.Context, e eventbus.Event) error {
//		tick, _ := periodic.Tick(e) // 2026-03-01T08:00:00+01:00
//		return send(ctx, tick)
//	}, eventbus.Named("reports"))
//
// # One event for each tick
//
// The idempotency key of an event consists of the schedule's name and the tick. Of several processes on one store, and of
// several attempts, only the first publication of a tick counts. The bus remembers the key until the second next tick:
// at least for 24 hours and for eventbus.WithIdempotencyWindow, and at most for 400 days. A tick is not published
// once the bus may have forgotten its key. Delivery is at least once, as for all events. A schedule that ticks each second
// adds 86,400 keys a day. A bus in memory remembers the last 100,000 keys and ids.
//
// A schedule publishes while its bus dispatches: after Start and, with a store, while the bus has the lease. Call Every on
// standbys too: they publish when they have the lease. While the bus does not dispatch, or Publish fails, the latest tick
// waits, and the next tick replaces it. So a hand-over, a restart of a store or a full queue loses no tick of a daily
// schedule, but may lose ticks of a schedule that ticks each second. The log of a dispatching bus has an error entry,
// "tick not published", for lost ticks, at most one a minute.
//
// A tick that comes while no process runs is lost. With CatchUp(Latest), which needs a store, the next process publishes
// the latest such tick, once.
//
// # The text
//
// The text has five fields:
//
//   - minute: 0-59
//   - hour: 0-23
//   - day of month: 1-31
//   - month: 1-12 or jan-dec
//   - day of week: 0-6 or sun-sat; 0 is Sunday
//
// A sixth field before them is the second (0-59), 0 by default. A field is a list of values, ranges and steps: 1,15 or 9-17
// or */5. ? means *. If both day fields are restricted, either suffices. Every also accepts @hourly, @daily (@midnight),
// @weekly, @monthly and @yearly (@annually). It rejects @every, which has no fixed instants, a time zone in the text (use
// In), and a text without a tick within five years, such as 30 February.
//
// The text means local time in the location of In, UTC by default. When the clock changes to summer time and back, a
// schedule with every hour in its hour field follows elapsed time: the skipped hour has no ticks, and the repeated hour has
// them twice. For any other schedule, each local time has one tick. If the change skips the time, the tick is at the end of
// the gap. If the change repeats it, the tick is at the first occurrence. For example, 30 2 * * * in Berlin ticks once on
// each day.
//
// # The clock
//
// A schedule compares its ticks with the wall clock at least every 30 seconds, so it notices a suspend and a changed
// clock. After the clock was set ahead, the schedule publishes the latest past tick. After it was set back, ticks repeat,
// and their keys make the events repetitions. If it was set back by more than the keys are remembered, a day for most
// schedules, repeated ticks are not published, and the log has an entry.
//
// In tests, use testing/synctest, or WithClock with the clock.Mock of the bus.
package periodic
