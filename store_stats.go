package eventbus

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/pace"
)

// measure reads the counts of the store, or takes the last known ones.
func (b *durable) measure(m *Metrics) {
	err := b.readStats()
	if err != nil {
		m.StoreError = err.Error()
	}
	if since, silent := b.store.room.SilentSince(); silent {
		m.StoreSilentSince = b.time.At(since)
	}
	m.Store = new(driver.Stats)
	if known := b.stats.last.Load(); known != nil {
		*m.Store, m.StoreAt, m.Orphaned = known.Stats, known.at, maps.Clone(known.orphaned)
	}
	m.DeadLetters = int(m.Store.Letters)
	m.Behind = b.isBehind()
}

// storeStats has the last known counts of the store.
type storeStats struct {
	last    atomic.Pointer[knownStats]
	reading atomic.Int64
}

type knownStats struct {
	driver.Stats
	orphaned map[string]int64
	at       time.Time
}

// statsPatience is how long Metrics waits for the store.
const statsPatience = time.Second

// maxStatsReads bounds the goroutines that wait for a store that hangs.
const maxStatsReads = 64

var errStatsPending = errors.New("eventbus: store does not answer: too many calls of Stats are in progress")

// readStats updates the last known counts.
func (b *durable) readStats() error {
	if b.stats.reading.Load() >= maxStatsReads {
		return errStatsPending
	}
	stats, err := pace.Within(statsPatience, func(ctx context.Context) (known *knownStats, err error) {
		b.stats.reading.Add(1)
		defer b.stats.reading.Add(-1)
		known = &knownStats{at: b.time.Now().UTC}
		if known.Stats, err = b.store.Stats(ctx); err == nil && known.Parked > 0 {
			known.orphaned, err = b.store.Parked(ctx, b.registry.knownNames())
		}
		return known, err
	})
	if err == nil {
		b.stats.last.Store(stats)
	}
	return err
}

// isBehind reports whether the feeder, or a door that admits deliveries, has records to claim.
func (b *durable) isBehind() bool {
	if !b.lifecycle.started.Load() || b.lifecycle.ending.Load() {
		return false
	}
	behind := b.feeder.hasWork()
	for _, s := range b.registry.list() {
		behind = behind || s.door.hasSpilled(b.Bus)
	}
	return behind
}
