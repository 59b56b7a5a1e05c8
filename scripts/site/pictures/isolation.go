package main

import "github.com/surebus/eventbus"

// isolation shows what the failure of one subscription is to the others.
func isolation() *figure {
	f := &figure{
		file: "isolation.svg", height: 464,
		title: "Coupled and isolated subscriptions",
		desc: "An event goes to stock, mail and crm, and mail fails for good. Coupled, as by default: stock has handled the event, crm is not reached, " +
			"and the dead letter of mail names both; a replay goes to mail and crm. With mail isolated: stock and crm have handled the event, " +
			"and the dead letter of mail concerns mail alone.",
	}
	const stock, mail, crm = "`stock`", "`mail`", "`crm`"
	handled := code(eventbus.Handled.String())
	letter := []string{
		"dead letter of " + mail,
		fieldName(func(l *eventbus.DeadLetter) any { return &l.Succeeded }) + ": " + stock,
		fieldName(func(l *eventbus.DeadLetter) any { return &l.NotReached }) + ": " + crm,
		nameOf((*eventbus.DLQ).Replay) + ": " + mail + ", then " + crm,
	}

	f.text(20, 36, start, heading, "Coupled (the default)")
	event := f.box(box{x: 20, y: 56, w: 76, h: 56}, "event")
	a := f.box(box{x: 126, y: 56, w: 106, h: 56, tone: good}, stock, handled)
	b := f.box(box{x: 262, y: 56, w: 106, h: 56, tone: bad}, mail, "failed")
	c := f.box(box{x: 398, y: 56, w: 102, h: 56, dashed: true}, crm, "not reached")
	f.across(a.midY(), event, a)
	f.across(a.midY(), a, b)
	f.across(a.midY(), b, c)
	f.dash()
	dead := f.box(box{x: 195, y: 140, w: 240, h: 98, tone: bad}, letter...)
	f.down(b.midX(), b, dead)
	f.remarks(20, 166, start, "While "+mail+" is", "retried, "+crm, "waits.")

	f.text(20, 284, start, heading, mail+" with "+nameOf(eventbus.Isolated))
	event = f.box(box{x: 20, y: 304, w: 76, h: 140}, "event")
	a = f.box(box{x: 126, y: 304, w: 106, h: 56, tone: good}, stock, handled)
	c = f.box(box{x: 262, y: 304, w: 106, h: 56, tone: good}, crm, handled)
	b = f.box(box{x: 126, y: 388, w: 106, h: 56, tone: bad}, mail, "failed")
	dead = f.box(box{x: 262, y: 388, w: 238, h: 56, tone: bad}, letter[0], nameOf((*eventbus.DLQ).Replay)+": "+mail+" alone")
	f.across(a.midY(), event, a)
	f.across(a.midY(), a, c)
	f.across(b.midY(), event, b)
	f.across(b.midY(), b, dead)
	return f
}
