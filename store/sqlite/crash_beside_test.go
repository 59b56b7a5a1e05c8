//go:build unix

package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/surebus/eventbus"
)

// besidePublisher is the number of the publisher beside the bus. It has keys of its own.
const besidePublisher = 1000

// workBeside is what the process beside the bus does until it is killed. The bus is killed
// meanwhile, and the next one may have begun to recover.
func (c *crashChild) workBeside() {
	random := c.random("beside", 0)
	p := newPublisher(c, besidePublisher)
	ctx := context.Background()
	_ = c.pauseStock(false, 0) // an earlier process may have been killed before it did
	for n := 1; ; n++ {
		sub := []string{subStock, subShip, subBill}[random.IntN(3)]
		eventType := crashTypeNames[random.IntN(len(crashTypeNames))]
		switch random.IntN(12) {
		case 0, 1:
			c.oneLetter(random, "D", c.bus.DLQ().Replay)
		case 2:
			c.oneLetter(random, "X", c.bus.DLQ().Purge)
		case 3:
			if random.IntN(4) == 0 {
				c.replayMany(sub)
			}
		case 4:
			if random.IntN(8) == 0 {
				c.purgeMany(sub)
			}
		case 5:
			c.cancelSoon(p, random.IntN(3) == 0)
		case 6:
			_ = c.pauseStock(random.IntN(3) == 0, n)
		case 7:
			p.publish(ctx, p.name(), eventType, "", 30*time.Millisecond, eventbus.EventID{})
		case 8:
			c.cancel()
		case 9:
			p.publish(ctx, p.name(), eventType, "", 0, eventbus.NewEventID())
		case 10:
			p.publishBatch(ctx)
		default:
			p.publish(ctx, p.name(), eventType, p.key(), 0, eventbus.EventID{})
		}
		report("B")
		time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
	}
}

// cancelSoon cancels an event that the bus may not have taken in yet. With hurry, it may give up before the bus has
// answered.
func (c *crashChild) cancelSoon(p *publisher, hurry bool) {
	ctx := context.Background()
	p.publish(ctx, p.name(), "bill.x", "", time.Second, eventbus.EventID{})
	select {
	case e := <-c.cancels:
		if hurry {
			time.Sleep(15 * time.Millisecond) // the bus takes it in
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			defer cancel()
			ctx = short
		}
		c.cancelEvent(ctx, e)
	default:
	}
}

// pauseStock pauses or resumes a subscription. Apart from the last process with a file, only the
// process beside does this to stock, and the bus obeys.
func (c *crashChild) pauseStock(pause bool, n int) error {
	s, why := c.subs[subStock], ""
	do := s.Resume
	if pause {
		why = fmt.Sprintf("%d.%d", c.spec.Life, n)
		do = func(opts ...eventbus.DirectiveOption) error { return s.Pause(append(opts, eventbus.Because(why))...) }
	}
	report("Y", subStock, why)
	err := do()
	if err == nil {
		report("YA", subStock, why)
	}
	return err
}
