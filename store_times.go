package eventbus

import "time"

// storable reports whether the year of a time in UTC is from 0 to 9999. encoding/json encodes no other
// times.
func storable(t time.Time) bool {
	const first, last = -62167219200, 253402300799 // 0000-01-01T00:00:00Z, 9999-12-31T23:59:59Z
	s := t.Unix()
	return first <= s && s <= last
}

// CheckTimes returns a *RefusedError if a time in the batch, except Now, is outside the years 0 to
// 9999 in UTC. JSON cannot encode such times. The bus rejects them earlier; a store that encodes
// times calls CheckTimes first, so that a defect costs one batch and does not make the store fail.
func (b *Batch) CheckTimes() error {
	var c timeCheck
	for i := range b.Remember {
		c.add(b.Remember[i].Expires)
	}
	for _, r := range b.New {
		c.add(r.Published, r.Scheduled)
		c.addLive(r)
		if r.Replay != nil {
			c.add(r.Replay.Began)
			c.addFailures(r.Replay.History)
		}
	}
	for _, r := range b.Update {
		c.addLive(r)
	}
	for _, l := range b.Bury {
		c.add(l.Event.Time, l.Due, l.DiedAt)
		c.addFailures(l.Failures)
	}
	for i := range b.Orders {
		c.add(b.Orders[i].Until, b.Orders[i].At)
	}
	for i := range b.Audit {
		c.add(b.Audit[i].At, b.Audit[i].Until)
		if q := b.Audit[i].Query; q != nil {
			c.add(q.Since, q.Until, q.PublishedSince, q.PublishedUntil)
		}
		if o := b.Audit[i].Outcome; o != nil {
			c.add(o.BeganAt)
		}
	}
	if b.Catalog != nil {
		c.add(b.Catalog.At)
	}
	if c.bad.IsZero() {
		return nil
	}
	return &RefusedError{Err: &EventError{Field: "time", Value: c.bad.String(), Reason: badYear}}
}

const badYear = "is outside the years 0 to 9999"

// timeCheck has the first time that is not storable.
type timeCheck struct{ bad time.Time }

func (c *timeCheck) add(times ...time.Time) {
	for _, t := range times {
		if c.bad.IsZero() && !storable(t) {
			c.bad = t
		}
	}
}

func (c *timeCheck) addFailures(failures []Failure) {
	for i := range failures {
		c.add(failures[i].Time)
	}
}

// addLive adds the times of the fields of Batch.Update.
func (c *timeCheck) addLive(r *Record) {
	c.add(r.Due)
	if r.Progress != nil {
		c.addFailures(r.Progress.Failures)
	}
}
