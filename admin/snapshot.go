package admin

import (
	"context"
	"maps"
	"time"

	"github.com/surebus/eventbus"
)

// snapshot has the figures of one page, which are all of one time.
type snapshot struct {
	at      time.Time
	metrics eventbus.Metrics // its texts redacted
	figures []SubscriptionFigures
	causes  causes
	// causesKnown is false while the store does not answer.
	causesKnown bool
	catalog     eventbus.Catalog // of a bus with a store; zero if the store does not answer
}

// causesTimeout bounds how long a page waits for the causes: a slow store must not hide the other figures.
const causesTimeout = 5 * time.Second

// snapshot returns the figures of the page. They are read once.
func (c *call) snapshot() *snapshot {
	if c.taken == nil {
		c.taken = c.takeSnapshot(c.ctx)
	}
	return c.taken
}

// changed drops the figures: the page must show what the request has changed.
func (c *call) changed() {
	c.taken = nil
	c.sharedCauses.forget()
}

func (s *server) takeSnapshot(ctx context.Context) *snapshot {
	at := time.Now().UTC()
	m := s.bus.Metrics()
	taken := &snapshot{at: at, metrics: s.metrics(m)}
	if m.StoreError == "" {
		ctx, cancel := context.WithTimeout(ctx, causesTimeout)
		defer cancel()
		var err error
		taken.causes, err = s.causes(ctx)
		taken.causesKnown = err == nil
		if m.Store != nil {
			taken.catalog, _ = s.catalog(ctx) // the page says that the store does not answer
		}
	}
	if s.tool {
		taken.metrics.Orphaned = orphansOf(m.Orphaned, &taken.catalog)
	}
	taken.figures = s.history.figures(&taken.metrics, at, taken.causes.letters)
	return taken
}

// needAttention counts all causes and all concerns.
func (t *snapshot) needAttention(prefix string) int { return t.causes.total + len(t.concerns(prefix)) }

// orphansOf returns the deliveries whose subscriptions the catalog does not have. The bus of the catalog knows which
// subscriptions exist, and a bus WithoutHandlers does not.
func orphansOf(all map[string]int64, catalog *eventbus.Catalog) map[string]int64 {
	if catalog.At.IsZero() {
		return nil
	}
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(name string, _ int64) bool {
		_, found := catalog.Find(name)
		return found
	})
	return all
}
