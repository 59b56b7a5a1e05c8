package main

import "github.com/surebus/eventbus"

// door shows the limits in front of a subscription, and what becomes of deliveries beyond them.
func door(constants constants) *figure {
	f := &figure{
		file: "door.svg", height: 768,
		title: "The door of a subscription",
		desc: "Before a handler is called, its delivery passes the circuit, the rate limit and the concurrency limit. " +
			"A delivery that does not pass waits in the line, held or throttled, and goes on, oldest first. " +
			"Two tables list what becomes of deliveries while the circuit is open, by " + typeName[eventbus.WhenOpen]() +
			", and while the line is full, by " + typeName[eventbus.WhenFull]() + ". " +
			"With " + nameOf(eventbus.PerDestination) + ", each destination has a door and a line of its own.",
	}
	const in, back = 100, 156 // where deliveries come in
	shut := box{x: 20, y: 84, w: 216, h: 236, tone: frame, more: true}
	f.boxes = append(f.boxes, shut)
	breaker := f.box(box{x: 44, y: 108, w: 168, h: 44}, nameOf(eventbus.Circuit))
	rate := f.box(box{x: 44, y: 180, w: 168, h: 44}, nameOf(eventbus.RateLimit))
	limit := f.box(box{x: 44, y: 252, w: 168, h: 44}, nameOf(eventbus.Concurrency))
	handler := f.box(box{x: 44, y: 352, w: 168, h: 44, tone: good}, "handler")
	line := f.box(box{x: 336, y: 108, w: 164, h: 188, tone: wait}, "the line", "at most", nameOf(eventbus.LineCapacity), "(default: "+number(eventbus.DefaultLineCapacity)+")")
	f.text(in, 32, middle, label, "deliveries")
	f.arrow(point{in, 40}, point{in, breaker.y})
	f.down(breaker.midX(), breaker, rate)
	f.down(rate.midX(), rate, limit)
	f.down(limit.midX(), limit, handler)
	for _, from := range []box{breaker, rate, limit} {
		state := string(eventbus.ParkThrottled)
		if from == breaker {
			state = eventbus.Held.String()
		}
		f.across(from.midY(), from, line)
		f.text(290, from.midY()-8, middle, remark, code(state))
	}
	f.arrow(point{line.midX(), line.y}, point{line.midX(), 52}, point{back, 52}, point{back, breaker.y})
	f.text(290, 44, middle, remark, "oldest first")
	f.remarks(268, 370, start, "With "+nameOf(eventbus.PerDestination)+", each", "customer has a door and a line.")

	const column = 194 // of the outcomes
	deadLetter := func(reason eventbus.Reason) string { return "a dead letter: " + code(string(reason)) }
	dropped := "is " + code(eventbus.Dropped.String())
	y := 442
	row := func(name string, outcome ...string) {
		f.text(20, y, start, note, name)
		for _, s := range outcome {
			f.text(column, y, start, note, s)
			y += 22
		}
	}
	f.text(20, y, start, heading, typeName[eventbus.WhenOpen]()+": while the circuit is open")
	y += 28
	row(constants.name(eventbus.HoldWhenOpen), "default: "+code(eventbus.Held.String())+" in the line")
	row(constants.name(eventbus.DeadLetterWhenOpen), deadLetter(eventbus.ReasonCircuitOpen))
	row(constants.name(eventbus.DropWhenOpen), "the delivery "+dropped)
	y += 22
	f.text(20, y, start, heading, typeName[eventbus.WhenFull]()+": while the line is full")
	y += 28
	row(constants.name(eventbus.WaitWhenFull), "default: if "+code(string(eventbus.ParkThrottled))+", "+nameOf((*eventbus.Bus).Publish)+" waits;",
		"if "+code(eventbus.Held.String())+", "+deadLetter(eventbus.ReasonOverflow))
	row(constants.name(eventbus.DropOldestWhenFull), "the oldest delivery "+dropped)
	row(constants.name(eventbus.DropNewestWhenFull), "the new delivery "+dropped)
	row(constants.name(eventbus.DeadLetterWhenFull), deadLetter(eventbus.ReasonOverflow))
	f.remarks(20, y+14, start, "With "+nameOf(eventbus.PerDestination)+", "+constants.name(eventbus.WaitWhenFull)+" never waits: "+code(string(eventbus.ReasonOverflow))+".",
		"With a store, and without "+nameOf(eventbus.LineCapacity)+" and "+typeName[eventbus.WhenFull]()+",",
		"the line has no bound: the rest waits in the store.")
	return f
}
