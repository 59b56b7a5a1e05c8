package main

import (
	"database/sql"

	"github.com/surebus/eventbus"
)

// processes shows where a bus and its events are: in one process, in several, and in a transaction.
func processes() *figure {
	f := &figure{
		file: "processes.svg", height: 638,
		title: "One process, standbys, and a transaction",
		desc: "One process: your code publishes to a bus, which may have a store, in SQLite or Postgres. " +
			"Standbys: several processes have one SQLite file, or one schema in Postgres; the one with the lease runs the handlers, and the others publish and take over when it ends. " +
			nameOf((*eventbus.Bus).PublishTx) + ": the order and the event are inserted in one transaction; after its commit the bus with the lease takes the event in.",
	}
	f.text(20, 36, start, heading, "One process")
	process := box{x: 20, y: 56, w: 248, h: 84, tone: frame}
	f.boxes = append(f.boxes, process)
	caller := f.box(box{x: 36, y: 72, w: 64, h: 52}, "code")
	bus := f.box(box{x: 180, y: 72, w: 72, h: 52}, "bus")
	f.across(bus.midY(), caller, bus)
	f.text(140, bus.midY()-8, middle, remark, nameOf((*eventbus.Bus).Publish))
	store := f.box(box{x: 364, y: 56, w: 136, h: 84, tone: disk, drum: true}, "store", "SQLite, Postgres")
	f.across(bus.midY(), bus, store)
	f.dash()
	f.text(316, bus.midY()-8, middle, remark, nameOf(eventbus.WithStore))
	f.text(316, bus.midY()+20, middle, remark, "(optional)")

	f.text(20, 192, start, heading, "Standbys: "+nameOf(eventbus.WithStandby))
	shared := box{x: 20, y: 324, w: 480, h: 60, tone: disk, drum: true}
	for i, who := range [][]string{{"process 1", "has the lease:", "runs handlers"}, {"process 2", "standby:", "publishes"}, {"process 3", "standby:", "publishes"}} {
		b := box{x: 20 + 168*i, y: 212, w: 144, h: 80}
		if i == 0 {
			b.tone = good
		}
		f.down(b.midX(), f.box(b, who...), shared)
	}
	f.box(shared, "one SQLite file, or one Postgres schema")
	f.text(20, 410, start, remark, "When process 1 ends, a standby takes over.")

	f.text(20, 462, start, heading, nameOf((*eventbus.Bus).PublishTx)+": in your transaction")
	tx := box{x: 20, y: 482, w: 220, h: 136, tone: frame}
	f.boxes = append(f.boxes, tx)
	insert := f.box(box{x: 36, y: 498, w: 188, h: 40}, "INSERT the order")
	publish := f.box(box{x: 36, y: 562, w: 188, h: 40}, nameOf((*eventbus.Bus).PublishTx))
	f.down(insert.midX(), insert, publish)
	database := f.box(box{x: 330, y: 482, w: 170, h: 68, tone: disk, drum: true}, "both, or neither")
	f.across(database.midY(), tx, database)
	f.text(285, database.midY()-8, middle, remark, nameOf((*sql.Tx).Commit))
	f.down(database.midX(), database, f.box(box{x: 330, y: 578, w: 170, h: 40}, "the bus takes it in"))
	return f
}
