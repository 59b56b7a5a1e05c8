package main

import "github.com/surebus/eventbus"

// crash shows what survives the process, in memory and with a store.
func crash() *figure {
	f := &figure{
		file: "crash.svg", height: 758,
		title: "A crash, and what survives it",
		desc: "Two time lines. In memory: " + nameOf((*eventbus.Bus).Publish) + " returns nil when the event is in the queue; after SIGKILL and a restart, events, retries and dead letters are lost. " +
			"With a store: " + nameOf((*eventbus.Bus).Publish) + " returns nil when the store has committed the event; after SIGKILL and a restart, " + nameOf((*eventbus.Bus).Start) + " recovers events, retries and dead letters, " +
			"the handler that ran at the crash runs again, and the event is handled.",
	}
	const left, right, wide = 60, 290, 210
	f.text(left+wide/2, 36, middle, heading, "In memory")
	f.text(right+wide/2, 36, middle, heading, "With a store")
	f.text(28, 36, middle, remark, "time")
	publish := [2]box{f.box(box{x: left, y: 56, w: wide, h: 40}, nameOf((*eventbus.Bus).Publish)), f.box(box{x: right, y: 56, w: wide, h: 40}, nameOf((*eventbus.Bus).Publish))}
	commit := f.box(box{x: right, y: 124, w: wide, h: 40, tone: disk}, "commit")
	accepted := [2]box{f.box(box{x: left, y: 192, w: wide, h: 58}, "returns nil", "it is in the queue"), f.box(box{x: right, y: 192, w: wide, h: 58}, "returns nil", "it is in the store")}
	running := [2]box{f.box(box{x: left, y: 278, w: wide, h: 40}, code(string(eventbus.DispatchRunning))), f.box(box{x: right, y: 278, w: wide, h: 40}, code(string(eventbus.DispatchRunning)))}
	killed := f.box(box{x: left, y: 346, w: right + wide - left, h: 40, tone: bad}, "crash: SIGKILL")
	started := [2]box{f.box(box{x: left, y: 414, w: wide, h: 40}, nameOf((*eventbus.Bus).Start)), f.box(box{x: right, y: 414, w: wide, h: 40}, nameOf((*eventbus.Bus).Start))}
	lost := f.box(box{x: left, y: 482, w: wide, h: 80, tone: bad}, "lost:", "events, retries,", "dead letters")
	kept := f.box(box{x: right, y: 482, w: wide, h: 80, tone: disk}, "recovered:", "events, retries,", "dead letters")
	again := f.box(box{x: right, y: 590, w: wide, h: 80}, code(string(eventbus.DispatchRunning)), "again: at least once,", "so make it idempotent")
	handled := f.box(box{x: right, y: 698, w: wide, h: 40, tone: good}, code(eventbus.Handled.String()))
	f.axis(point{28, 48}, point{28, handled.bottom()})
	for _, lane := range [][]box{
		{publish[0], accepted[0], running[0]}, {publish[1], commit, accepted[1], running[1]}, {started[0], lost}, {started[1], kept, again, handled},
	} {
		for i := 1; i < len(lane); i++ {
			f.down(lane[0].midX(), lane[i-1], lane[i])
		}
	}
	for i := range running {
		f.down(running[i].midX(), running[i], killed)
		f.down(running[i].midX(), killed, started[i])
	}
	return f
}
