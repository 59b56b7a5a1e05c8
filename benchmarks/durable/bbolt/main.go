// The program bbolt measures go.etcd.io/bbolt as a raw yardstick: events as values under growing
// keys, with a group commit.
package main

import (
	"encoding/binary"
	"path/filepath"
	"sync/atomic"

	"go.etcd.io/bbolt"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
)

func main() {
	durable.Main(plan.Durable, map[string]durable.Open{"bbolt": open})
}

// operation puts a value, or deletes the key if the value is nil.
type operation struct {
	key   [8]byte
	value []byte
}

var bucket = []byte("events")

func open(o durable.Options) (*durable.System, error) {
	// Every commit is flushed. The list of free pages is not, because bbolt can rebuild it.
	db, err := bbolt.Open(filepath.Join(o.Dir, "bbolt.db"), 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(bucket)
		return err
	}); err != nil {
		return nil, err
	}
	var unsettled atomic.Int64
	group := durable.NewGroup(durable.MaxGroup, func(ops []operation) error { return commit(db, ops, &unsettled) })
	accepted := make(chan [8]byte, 1<<16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for key := range accepted {
			o.Handle()
			group.Add(operation{key: key})
		}
	}()
	return &durable.System{
		Accept: func(e durable.Event) error {
			value, err := e.JSON()
			if err != nil {
				return err
			}
			op := operation{value: value}
			binary.BigEndian.PutUint64(op.key[:], uint64(e.Number))
			if err := group.Do(op); err != nil {
				return err
			}
			if o.Handle != nil {
				accepted <- op.key
			}
			return nil
		},
		Settled: func() (bool, error) { return unsettled.Load() == 0, nil },
		Close: func() error {
			close(accepted)
			<-ended
			group.Close()
			return db.Close()
		},
	}, nil
}

// commit applies the operations in one transaction.
func commit(db *bbolt.DB, ops []operation, unsettled *atomic.Int64) error {
	var change int64
	err := db.Update(func(tx *bbolt.Tx) error {
		events := tx.Bucket(bucket)
		events.FillPercent = 0.9 // the keys grow
		for _, op := range ops {
			if op.value == nil {
				change--
				if err := events.Delete(op.key[:]); err != nil {
					return err
				}
				continue
			}
			change++
			if err := events.Put(op.key[:], op.value); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		unsettled.Add(change)
	}
	return err
}
