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
// The events have an idempotency key of the schedule's name and the tick: of several processes on one store, and of several
// attempts, the first one to publish a tick is the only one. The bus remembers the key until the second next tick, at least for 24
// hours and for eventbus.WithIdempotencyWindow, and at most for 400 days. A tick is not published once its key may be
// forgotten. Handlers run at least once for each event, as for all events. A schedule that ticks each second adds 86,400 keys
// a day, and a bus in memory remembers the last 100,000 keys and ids.
//
// A schedule publishes while its bus dispatches: after Start and, with a store, while the bus has the lease. A standby
// calls Every too, and publishes when it has the lease. While the bus does not dispatch, or Publish fails, the latest tick
// waits, and the next tick takes its place. So a hand-over, a restart of a store or a full queue loses no tick of a
// daily schedule, and may lose ticks of one that ticks each second. The bus's log has an error entry, "tick not
// published", for ticks that a bus that dispatches has lost, at most one a minute.
//
// A tick that comes while no process runs is lost, or with CatchUp(Latest) the next process publishes it: the latest one,
// once, however often processes start. This needs a store.
//
// # The text
//
// The text has five fields: minute (0-59), hour (0-23), day of month (1-31), month (1-12 or jan-dec) and day of week (0-6 or
// sun-sat; 0 is Sunday). A sixth field before them is the second (0-59), 0 by default. A field is a list of values, ranges and
// steps: 1,15 or 9-17 or */5. ? means *. If both day fields are restricted, either suffices. Also accepted: @hourly, @daily
// (@midnight), @weekly, @monthly, @yearly (@annually). Refused: @every, which has no fixed instants, a time zone in the text
// (use In), and a text without a tick within five years, such as 30 February.
//
// The text means local time in the location of In, UTC by default. When the clock changes to summer time and back, a schedule whose
// hour field has every hour goes on by elapsed time: the skipped hour has no ticks, and the repeated hour has them twice. For any
// other schedule each local time has one tick. If the change skips it, the tick is at the end of the gap. If the change repeats it, the tick
// is at the first time. For example, in Berlin 30 2 * * * ticks once on each day.
//
// # The clock
//
// A schedule compares its ticks with the wall clock at least every 30 seconds, so it notices a suspend and a clock that was set. After
// the clock was set ahead, the latest tick that has come is published. After it was set back, ticks come again, and their
// keys make them repetitions. If it was set back by more than their keys are remembered, by a day for most schedules,
// they are not published, and the log says so.
//
// In tests, use testing/synctest, or WithClock with the clock.Mock of the bus.
package periodic
