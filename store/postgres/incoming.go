package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// incomingColumns are the columns of new incoming events, as parameters.
type incomingColumns struct {
	events        [][16]byte
	slots, states []int16
	dues          []*string
	bodies        [][]byte
	givens        []bool
	codecs        [][]byte
}

func newIncomingColumns(n int) *incomingColumns {
	return &incomingColumns{events: make([][16]byte, 0, n), bodies: make([][]byte, 0, n)}
}

func (c *incomingColumns) add(in *driver.Incoming) {
	r := in.Record
	c.events, c.slots, c.states = append(c.events, r.ID), append(c.slots, int16(r.Slot)), append(c.states, int16(r.State))
	c.dues, c.bodies = append(c.dues, dueText(r.Due)), append(c.bodies, storekit.AppendBody(nil, r))
	c.givens, c.codecs = append(c.givens, in.Given), append(c.codecs, []byte(in.Codec))
}

// Incoming returns a page of the events that wait to be taken in. See [driver.Store].
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) Incoming(ctx context.Context, q driver.IncomingQuery) (driver.IncomingPage, error) {
	where, args := "id > $1", []any{int64(q.After), int64(q.Limit) + 1}
	if !q.Event.IsZero() {
		where, args = where+" AND event = $3", append(args, [16]byte(q.Event))
	}
	if !q.Slots.IsEmpty() {
		var slots []int16
		for slot := range 256 {
			if q.Slots.Has(driver.Slot(slot)) {
				slots = append(slots, int16(slot))
			}
		}
		args = append(args, slots)
		where += fmt.Sprintf(" AND slot = ANY($%d::smallint[])", len(args))
	}
	sql := "SELECT id, event, slot, state, due, body, given, codec FROM ~.incoming WHERE " + where + " ORDER BY id LIMIT $2"
	return reading(ctx, s, "Incoming", func(ctx context.Context, db querier) (page driver.IncomingPage, err error) {
		err = each(ctx, db, s.sql(sql), func(rows pgx.Rows) error {
			if len(page.Events) == q.Limit {
				page.More = true
				return nil
			}
			in, err := scanIncoming(rows)
			page.Events = append(page.Events, in)
			return err
		}, args...)
		return page, err
	})
}

func scanIncoming(rows pgx.Rows) (*driver.Incoming, error) {
	in := new(driver.Incoming)
	r := new(driver.Record)
	var id int64
	var slot, state int16
	var due *string
	var body, codec []byte
	if err := rows.Scan(&id, (*[16]byte)(&r.ID), &slot, &state, &due, &body, &in.Given, &codec); err != nil {
		return nil, err
	}
	in.ID, in.Codec, in.Record = driver.IncomingID(id), string(codec), r
	r.Slot, r.State = driver.Slot(slot), driver.State(state)
	err := storekit.DecodeBody(body, r)
	if err == nil {
		r.Due, err = parseDue(due)
	}
	if err != nil {
		return nil, &CorruptError{Table: "incoming", Row: fmt.Sprint(id), Detail: err.Error()}
	}
	return in, nil
}
