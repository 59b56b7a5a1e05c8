package storetest

import (
	"context"
	"time"

	"github.com/surebus/eventbus/driver"
)

type markKey struct {
	event     driver.ID
	name      string
	published int64
	edit      string
}

// mark is a row of a transaction. Model.mu guards it.
type mark struct {
	open  chan struct{} // nil once the transaction was committed; closed when it ends
	until time.Time
}

type txOfHandler struct{}

// TxFrom returns the transaction in which a handler with eventbus.InTx runs, from its context. Without one it returns nil.
func TxFrom(ctx context.Context) *Tx {
	tx, _ := ctx.Value(txOfHandler{}).(*Tx)
	return tx
}

// MaxRuns returns 0: transactions of a Model need nothing of which there is little. See [driver.OnceStore].
func (*modelStore) MaxRuns() int { return 0 }

// RunOnce runs f in a *Tx. See [driver.OnceStore].
func (s *modelStore) RunOnce(ctx context.Context, m driver.Mark, f func(ctx context.Context, tx any) error) (ran bool, err error) {
	own := &mark{open: make(chan struct{}), until: m.Until}
	keys := make([]markKey, len(m.Names))
	for i, name := range m.Names {
		keys[i] = markKey{m.Event, name, m.Published.UnixNano(), m.Edit}
	}
	model := s.model
	for {
		other, err := s.insertMark(ctx, keys, own)
		switch {
		case err != nil:
			return false, err
		case other == nil:
			tx := model.Begin()
			defer func() {
				if !ran { // also when f panicked
					_ = tx.Rollback()
					model.endMark(keys, own, false)
				}
			}()
			if err := f(context.WithValue(ctx, txOfHandler{}, tx), tx); err != nil {
				return false, err
			}
			if err := ctx.Err(); err != nil {
				return false, err
			}
			if err := tx.Commit(); err != nil {
				return false, err
			}
			model.endMark(keys, own, true)
			return true, nil
		case other.open == nil:
			return false, nil
		}
		select {
		case <-other.open:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// insertMark inserts a mark. If there is another one, it returns a copy of that instead.
func (s *modelStore) insertMark(ctx context.Context, keys []markKey, own *mark) (other *mark, err error) {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	m.pruneMarksLocked()
	for _, key := range keys {
		if other := m.marks[key]; other != nil {
			found := *other
			return &found, nil
		}
	}
	for _, key := range keys {
		m.marks[key] = own
	}
	return nil, nil //nolint:nilnil // there is none
}

func (m *Model) endMark(keys []markKey, own *mark, committed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(own.open)
	own.open = nil
	for _, key := range keys {
		if !committed {
			delete(m.marks, key)
		}
	}
}

// pruneMarksLocked forgets the marks whose time is over and whose events are gone.
func (m *Model) pruneMarksLocked() {
	var kept map[driver.ID]bool
	for key, mark := range m.marks {
		if mark.open != nil || mark.until.After(m.latest) {
			continue
		}
		if kept == nil {
			kept = make(map[driver.ID]bool)
			for _, r := range m.records {
				kept[r.ID] = true
			}
			for _, l := range m.letters {
				kept[l.Event] = true
			}
			for _, in := range m.incoming { // such as a replay that a tool has left
				kept[in.Record.ID] = true
			}
		}
		if !kept[key.event] {
			delete(m.marks, key)
		}
	}
}
