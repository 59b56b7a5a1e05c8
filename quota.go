package eventbus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/room"
)

// acquireQuota adds the dispatches of a publication. It waits for room until ctx ends, the bus shuts down, or the store
// fails: a restart waits for the publishers that are entering.
// needNoRoom removes the repetitions from a publication that has no room in the quota: they need none.
func (j *durable) needNoRoom(ctx context.Context, c *opening, inside bool) error {
	if q := &j.intake.quota; inside || q.Most == 0 || q.Used()+c.records() <= q.Most {
		return nil
	}
	for i := 0; i < len(c.all()); i++ {
		d := c.all()[i]
		known, err := j.isRepeated(ctx, d)
		if err == nil && known {
			err = c.remove(j.Bus, d) // others may take its place
			i = -1
		}
		if err != nil {
			return c.errorAt(d, err)
		}
	}
	return nil
}

func (j *durable) acquireQuota(ctx context.Context, c *opening, inside bool) error {
	q, n := &j.intake.quota, c.records()
	c.counted = true
	if inside || q.Most == 0 {
		q.Add(n)
		return nil
	}
	if !j.store.leads() {
		return j.acquireIncoming(ctx, c)
	}
	failed := j.feeder.claimsContext().Done()
	for !q.TryAdd(n) {
		if j.config.refuse || !j.lifecycle.started.Load() {
			return &FullError{Bound: BoundUnsettled, Most: q.Most}
		}
		room := q.Wait()
		if q.TryAdd(n) { // a dispatch may have settled before wait
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return &FullError{Bound: BoundUnsettled, Most: q.Most, Err: contextError(ctx)}
		case <-failed:
			if err := j.storeRefuses(); err != nil {
				return err
			}
			if j.halts.Has(halt.Lost) { // it is left in incoming
				return j.acquireIncoming(ctx, c)
			}
			if j.feeder.ctx.Err() != nil {
				return j.intake.refuseShutdown()
			}
			failed = j.feeder.claimsContext().Done() // a restart has renewed it
		case <-j.lifecycle.leaving:
			return j.intake.refuseShutdown()
		}
	}
	return nil
}

// acquireIncoming admits a publication that is left in incoming, if the store has room for it. The bus that takes it in
// counts its dispatches.
func (j *durable) acquireIncoming(ctx context.Context, c *opening) error {
	c.counted = false
	return j.admitsIncoming(ctx, max(c.records(), int64(len(c.all()))))
}

// countUnsettled restarts the count at the number of dispatches in the store, and returns that number. Deliveries of missing
// subscriptions do not count, because this process cannot settle them.
func (j *durable) countUnsettled(ctx context.Context) (unsettled int64, err error) {
	stats, err := j.store.Stats(ctx)
	if err != nil {
		return 0, err
	}
	var orphans map[string]int64
	if stats.Parked > 0 && j.store.leads() && !j.config.tool {
		if orphans, err = j.store.Parked(ctx, j.registry.knownNames()); err != nil {
			return 0, err
		}
	}
	j.orphans.Set(orphans)
	j.intake.quota.Set(stats.Unsettled() - j.orphans.Total())
	j.warnMissing(slices.Sorted(maps.Keys(orphans)))
	return stats.Unsettled(), nil
}

// orphaned removes deliveries that are parked for missing subscriptions from the count.
func (j *durable) orphaned(names ...string) {
	for _, name := range names {
		j.orphans.Add(name)
	}
	j.intake.quota.Release(int64(len(names)))
	j.feeder.lookIfWaiting()
}

// warnMissing logs each name of a subscription that does not exist once, with the number of its deliveries.
func (j *durable) warnMissing(names []string) {
	for _, name := range names {
		if j.registry.isNewlyMissing(name) {
			j.log.Warn("subscription of stored events is missing", zap.String("subscription_id", name),
				zap.Int64("waiting", j.orphans.Of(name)), zap.String("remedy", "subscribe with Formerly, or Retire it"))
		}
	}
}

// releaseQuota removes the dispatches of a publication that was refused, or left in incoming.
func (j *durable) releaseQuota(c *opening, n int64) {
	if c.counted {
		j.intake.quota.Release(n)
		j.feeder.lookIfWaiting()
	}
}

// acquireRoom waits until the store may get the records of a publication or a replay: see
// WithMaxUnconfirmed. Handlers wait too, until the cut. With an error, nothing was submitted.
func (j *durable) acquireRoom(ctx context.Context, c *opening, inside bool) error {
	c.pass = room.Pass{}
	size := c.size(j.feeder.leaves())
	if size.Records == 0 {
		return nil // the store gets nothing of it
	}
	r := j.store.room
	pass, waiter, silent := r.Enter(size)
	if waiter == nil {
		c.pass = pass
		return silentError(silent)
	}
	failed, leaving := j.feeder.claimsContext().Done(), (<-chan struct{})(j.lifecycle.leaving)
	if inside {
		leaving = j.halts.IsCut()
	}
	var err error
	for waits := true; waits; {
		waits = false
		select {
		case <-waiter.Ready():
			c.pass, silent = waiter.Entered()
			err = silentError(silent)
		case <-ctx.Done():
			why := fmt.Errorf("%w: it has not confirmed what was submitted before, and has nothing of this: %w", ErrStoreFailed, contextError(ctx))
			err = &FullError{Bound: BoundUnconfirmed, Most: j.config.unconfirmed.Records, Err: why}
		case <-failed: // a restart waits for the publishers that are entering
			waits, failed = j.storeRefuses() == nil, nil // Shutdown ends claims too
		case <-leaving:
			err = j.intake.refuseShutdown()
		}
	}
	if err == nil {
		err = j.storeRefuses() // the answer that gave the room back may be a failure
	}
	if err != nil {
		waiter.Leave()
	}
	return err
}

// silentError returns the error of a publication while the store is silent, or nil.
func silentError(silent time.Duration) error {
	if silent == 0 {
		return nil
	}
	return fmt.Errorf("%w: it has confirmed nothing for %v; nothing was submitted, publish again later", ErrStoreFailed, silent.Round(time.Millisecond))
}

// records returns the number of records that the dispatch begins with.
func (d *dispatch) records() int64 {
	if d.from().due != nil && len(d.to.subscriptions) > 0 {
		return 1
	}
	return int64(d.queueRoom())
}

// size returns what the records of accepted dispatches count for WithMaxUnconfirmed. If the events are left in incoming,
// those without targets count too.
func (c *opening) size(leaves bool) (size room.Size) {
	for _, d := range c.all() {
		n := d.records()
		if n == 0 && leaves {
			n = 1
		}
		size.Bytes += n * int64(len(payloadBytes(d.payload)))
		if n == 0 && d.isRemembered() {
			n = 1 // the store remembers the id
		}
		size.Records += n
	}
	return size
}

// admitsIncoming refuses events that the store has no room for, by its own count: the bus without the lease does
// not learn when others settle.
func (j *durable) admitsIncoming(ctx context.Context, n int64) error {
	most := j.intake.quota.Most
	if most == 0 {
		return nil
	}
	stats, err := j.store.Stats(ctx)
	if err != nil {
		return err
	}
	if has := stats.Unsettled() + stats.Incoming; has > 0 && has+n > most {
		return &FullError{Bound: BoundUnsettled, Most: most}
	}
	return nil
}
