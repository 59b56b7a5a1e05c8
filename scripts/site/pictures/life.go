package main

import "github.com/surebus/eventbus"

// life shows what may become of an event.
func life() *figure {
	f := &figure{
		file: "life.svg", height: 522,
		title: "The life of an event",
		desc: nameOf((*eventbus.Bus).Publish) + " accepts an event and queues it. An attempt calls its handlers in order, each with a timeout. " +
			"If all succeed, the event is handled. After a failure it waits for the backoff and is queued again. " +
			"A delivery to a handler whose circuit is open is held until the circuit closes, and the other handlers go on. " +
			"After the last failed attempt, or a permanent error, the event is a dead letter, which a replay queues again.",
	}
	publish := f.box(box{x: 196, y: 20, w: 160, h: 40}, nameOf((*eventbus.Bus).Publish))
	queued := f.box(box{x: 196, y: 96, w: 160, h: 52}, code(string(eventbus.DispatchQueued)))
	f.down(publish.midX(), publish, queued)
	f.remarks(368, 37, start, "returns nil: the", "event is accepted")

	running := box{x: 196, y: 184, w: 160, h: 196, tone: frame}
	f.boxes = append(f.boxes, running)
	f.down(queued.midX(), queued, running)
	f.text(running.midX(), 206, middle, note, "attempt: "+code(string(eventbus.DispatchRunning)))
	stock := f.box(box{x: 216, y: 216, w: 120, h: 34}, code("stock"))
	mail := f.box(box{x: 216, y: 266, w: 120, h: 34}, code("mail"))
	crm := f.box(box{x: 216, y: 316, w: 120, h: 34}, code("crm"))
	f.down(stock.midX(), stock, mail)
	f.down(mail.midX(), mail, crm)
	f.text(running.midX(), 368, middle, note, nameOf(eventbus.Timeout)+" for each")

	waiting := f.box(box{x: 40, y: 254, w: 100, h: 58, tone: wait}, code(eventbus.Waiting.String()), "for a retry")
	f.arrow(point{running.x, mail.midY()}, point{waiting.right(), mail.midY()})
	f.text(168, mail.midY()-8, middle, remark, "fails")
	f.arrow(point{waiting.midX(), waiting.y}, point{waiting.midX(), 134}, point{queued.x, 134})
	f.remarks(waiting.midX()+8, 172, start, "after the", "backoff")

	held := f.box(box{x: 412, y: 254, w: 88, h: 58, tone: wait}, code(eventbus.Held.String()))
	f.across(mail.midY(), running, held)
	f.text(384, mail.midY()-8, middle, remark, "circuit")
	f.text(384, mail.midY()+20, middle, remark, code(eventbus.CircuitOpen.String()))
	f.arrow(point{held.midX(), held.y}, point{held.midX(), queued.midY()}, point{queued.right(), queued.midY()})
	f.remarks(held.midX()-8, 172, end, "circuit", code(eventbus.CircuitClosed.String()))
	f.remarks(held.midX(), 332, middle, "the others", "go on")

	dead := f.box(box{x: 40, y: 438, w: 226, h: 64, tone: bad}, code(eventbus.DeadLettered.String()), code(string(eventbus.ReasonExhausted))+", "+code(string(eventbus.ReasonPermanent))+", …")
	done := f.box(box{x: 286, y: 438, w: 214, h: 64, tone: good}, code(eventbus.Handled.String()))
	f.down(236, running, dead)
	f.remarks(226, 402, end, "last attempt fails,", "or "+nameOf(eventbus.Permanent)+" error")
	f.down(316, running, done)
	f.remarks(326, 411, start, "all succeed")
	f.arrow(point{dead.x, dead.midY()}, point{20, dead.midY()}, point{20, 110}, point{queued.x, 110})
	f.text(28, 102, start, remark, nameOf((*eventbus.DLQ).Replay))
	return f
}
