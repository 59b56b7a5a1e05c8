package eventbus

import (
	"github.com/surebus/eventbus/internal/pool"
	"github.com/surebus/eventbus/internal/testhooks"
)

func init() {
	testhooks.SetGates = setGates
	testhooks.SetRecord = func(bus any, record func(done func(error))) { bus.(*Bus).journal.(*memoryJournal).hook = record }
	testhooks.Parked = func(subscription any) (payloads []any) {
		s := subscription.(*Subscription)
		s.door.each(s.bus, func(d *dispatch, _ int64, _ ParkReason) { payloads = append(payloads, d.payload) })
		return payloads
	}
}

// setGates replaces the pool: a pool's configuration does not change.
func setGates(bus any, run func(payload any, subscription string, attempt int), next func()) {
	m := bus.(*Bus).machine
	workers := m.workers()
	goOn := workers.Run
	workers.Run = func(w *worker, d *dispatch) bool {
		waiter := d.waiter() // before goOn: afterwards another worker may own d
		run(d.payload, d.to.subscriptions[d.next].id, int(d.attempt)+1)
		stays := goOn(w, d)
		if waiter != nil {
			select {
			case <-waiter.settled:
				next()
			default:
			}
		}
		return stays
	}
	m.pool = pool.New(workers)
}
