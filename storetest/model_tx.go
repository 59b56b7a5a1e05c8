package storetest

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/surebus/eventbus/driver"
)

// Tx is a transaction of a caller in the database of a Model: see driver.TxStore. The stores of the
// Model are driver.TxStores that take it.
type Tx struct {
	model *Model

	// Model.mu guards the following.
	ended  bool
	events []driver.Incoming
}

// Begin begins a transaction. It locks nothing.
func (m *Model) Begin() *Tx { return &Tx{model: m} }

// Commit makes the incoming events of the transaction visible, and calls the watchers of all
// stores. After Commit or Rollback, it returns sql.ErrTxDone.
func (tx *Tx) Commit() error {
	m := tx.model
	m.mu.Lock()
	if tx.ended {
		m.mu.Unlock()
		return sql.ErrTxDone
	}
	tx.ended = true
	for _, in := range tx.events {
		m.incoming[in.ID] = in
	}
	var told []*watcher
	if len(tx.events) > 0 {
		told = m.watchersLocked(nil)
	}
	m.mu.Unlock()
	for _, w := range told {
		w.call(driver.ChangedIncoming)
	}
	return nil
}

// Rollback drops the incoming events of the transaction. After Commit or Rollback, it returns
// sql.ErrTxDone.
func (tx *Tx) Rollback() error {
	tx.model.mu.Lock()
	defer tx.model.mu.Unlock()
	if tx.ended {
		return sql.ErrTxDone
	}
	tx.ended = true
	return nil
}

// SubmitTx adds incoming events to a *Tx of the same Model. They get their ids at once, so that an
// event with a larger id may become visible earlier. The error for a transaction that has ended
// matches sql.ErrTxDone too.
func (s *modelStore) SubmitTx(ctx context.Context, of any, in []*driver.Incoming) error {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return err
	}
	tx, ok := of.(*Tx)
	switch {
	case !ok || tx == nil:
		return fmt.Errorf("storetest: SubmitTx: %w: it takes a *storetest.Tx, not a %T", driver.ErrNoTransaction, of)
	case tx.model != m:
		return fmt.Errorf("storetest: SubmitTx: %w: it takes a *storetest.Tx of the same Model", driver.ErrNoTransaction)
	case tx.ended:
		return fmt.Errorf("storetest: SubmitTx: %w: %w", driver.ErrNoTransaction, sql.ErrTxDone)
	}
	if err := (&driver.Batch{Leave: in}).CheckTimes(); err != nil {
		return err
	}
	for _, event := range in {
		m.lastIncoming++
		tx.events = append(tx.events, kept(event, m.lastIncoming))
	}
	return nil
}
