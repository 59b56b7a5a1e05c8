package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// script is a workload of batches. It continues over failures and crashes as a bus does.
type script struct {
	t       *testing.T
	model   *Model
	s       driver.Store
	replica oracle // of the batches that were applied

	applied map[*driver.Batch]bool
	acked   map[*driver.Batch]bool
	failed  map[*driver.Batch]bool
	refused map[*driver.Batch]bool
}

func newScript(t *testing.T, fault func(n int) Fault) *script {
	c := &script{
		t: t, applied: map[*driver.Batch]bool{}, acked: map[*driver.Batch]bool{},
		failed: map[*driver.Batch]bool{}, refused: map[*driver.Batch]bool{},
	}
	c.model = NewModel(
		WithFaults(func(n int, _ *driver.Batch) Fault { return fault(n) }),
		WithApplied(func(_ int, b *driver.Batch) {
			c.applied[b] = true
			if refused := c.replica.apply(b, assignedIn(b), b.Epoch); refused != nil {
				t.Errorf("applied a batch that must be refused: %v", refused)
			}
		}),
	)
	c.open()
	return c
}

func (c *script) open() {
	c.s = c.model.Open()
	acquire(c.t, c.s)
}

// submit submits a batch without waiting.
func (c *script) submit(b *driver.Batch) *driver.Batch {
	b.Now = noon
	send(c.s, b, func(err error) {
		var refused *driver.RefusedError
		switch {
		case err == nil:
			c.acked[b] = true
		case errors.As(err, &refused):
			c.refused[b] = true
		default:
			c.failed[b] = true
		}
	})
	return b
}

// do submits a batch, waits, and recovers the store.
func (c *script) do(b *driver.Batch) {
	c.submit(b)
	c.settle()
}

// settle waits for the store, and recovers it after a failure or a crash.
func (c *script) settle() {
	time.Sleep(2 * time.Hour) // longer than any delay
	synctest.Wait()
	switch c.model.Dump().Lease {
	case 0:
		require.ErrorIs(c.t, submit(c.t, c.s, &driver.Batch{}), driver.ErrFailed)
		c.open()
		c.replica.end(true)
	default:
		if _, err := c.s.Stats(c.t.Context()); err == nil {
			return
		}
		require.ErrorIs(c.t, submit(c.t, c.s, &driver.Batch{}), driver.ErrFailed)
		require.NoError(c.t, c.s.Reopen(c.t.Context()))
		c.replica.end(false)
	}
}

// check compares the data with the batches that were applied.
func (c *script) check() {
	for b := range c.acked {
		require.True(c.t, c.applied[b], "an acknowledged batch was not applied")
	}
	for b := range c.refused {
		require.False(c.t, c.applied[b], "a refused batch was applied")
	}
	d := c.model.Dump()
	var want, got []*driver.Record
	for i := range c.replica.records {
		r := c.replica.records[i].Record
		r.Own = false
		want = append(want, &r)
	}
	for i := range d.Records {
		require.Equal(c.t, d.Records[i].Leased, d.Records[i].Lease != 0)
		got = append(got, &d.Records[i].Record)
	}
	requireSame(c.t, want, got, "the Model has other records")
	requireLetters(c.t, newestFirst(c.replica.letters), slices.Collect(reversed(d.Letters)))
	require.ElementsMatch(c.t, c.replica.known, d.Remembered)
	require.Equal(c.t, c.replica.directives, d.Directives)
	require.NoError(c.t, c.s.Close(c.t.Context()))
}

func reversed[E any](s []E) func(yield func(E) bool) {
	return func(yield func(E) bool) {
		for _, e := range slices.Backward(s) {
			if !yield(e) {
				return
			}
		}
	}
}

// claimed claims all ready records.
func (c *script) claimed() []*driver.Record {
	q := driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 100}
	want, got := c.replica.claim(q), claim(c.t, c.s, q)
	requireSame(c.t, want.Records, got.Records, "Claim(%+v)", q)
	return got.Records
}

// run is the life of some events: accepted, attempted, buried, replayed, settled.
func (c *script) run() {
	entry := driver.Dedupe{Key: "k", Event: newID(), Content: "c", Expires: noon.Add(time.Hour)}
	c.do(&driver.Batch{New: []*driver.Record{ready(leased), ready(leased, suspect, at(driver.BesidePrevious))}, Remember: []driver.Dedupe{entry}})
	c.do(&driver.Batch{New: []*driver.Record{ready()}, Remember: []driver.Dedupe{entry}})
	c.do(&driver.Batch{New: []*driver.Record{ready(), ready(), ready(waiting(time.Hour), key("k")), ready()}, Directives: []driver.Directive{directive("billing", "pause")}})
	var buried []driver.ID
	for _, n := range c.claimed() {
		u := *n
		u.Progress = []byte(`{"attempts":1}`)
		c.do(&driver.Batch{Update: []*driver.Record{&u}})
		l := letter()
		buried = append(buried, l.ID)
		c.do(&driver.Batch{Delete: []driver.Ref{n.Ref}, Bury: []*driver.Letter{l}, Forget: []driver.Dedupe{entry}})
	}
	for _, id := range buried {
		c.do(&driver.Batch{Take: []driver.ID{id}, New: []*driver.Record{ready(leased)}})
	}
	for _, n := range c.claimed() {
		c.do(&driver.Batch{Delete: []driver.Ref{n.Ref}})
	}
}

// Every fault, at every batch of a workload: acknowledged batches are whole, refused ones change
// nothing, and the store goes on.
func TestStore_FaultAtEveryBatch(t *testing.T) {
	count := 0
	synctest.Test(t, func(t *testing.T) {
		c := newScript(t, func(n int) Fault { count = n; return Fault{} })
		c.run()
		c.check()
	})
	require.Greater(t, count, 10)
	for _, kind := range []FaultKind{NoFault, Refuse, FailBefore, FailAfter, CrashBefore, CrashAfter} {
		for at := 1; at <= count; at++ {
			for _, delay := range []time.Duration{0, time.Hour} {
				synctest.Test(t, func(t *testing.T) {
					reached := false
					c := newScript(t, func(n int) Fault {
						if n != at {
							return Fault{}
						}
						reached = true
						return Fault{Kind: kind, Delay: delay}
					})
					c.run()
					c.check()
					require.True(t, reached || at > 4, "fault %d at batch %d", kind, at)
				})
			}
		}
	}
}

// Faults in a group of batches that have gathered while an earlier commit took its time.
func TestStore_FaultInGroup(t *testing.T) {
	const count = 6
	for _, kind := range []FaultKind{NoFault, Refuse, FailBefore, FailAfter, CrashBefore, CrashAfter} {
		for at := 2; at <= count; at++ {
			synctest.Test(t, func(t *testing.T) {
				c := newScript(t, func(n int) Fault {
					switch n {
					case 1:
						return Fault{Delay: time.Second}
					case at:
						return Fault{Kind: kind}
					}
					return Fault{}
				})
				var batches []*driver.Batch
				for range count {
					b := &driver.Batch{New: []*driver.Record{ready(leased)}, Remember: []driver.Dedupe{{
						Key: newID().String(), Expires: noon.Add(time.Hour),
					}}}
					batches = append(batches, c.submit(b))
					synctest.Wait() // the first one is a commit of its own
				}
				require.Empty(t, c.model.Dump().Records)
				c.settle()
				for i, b := range batches {
					name := fmt.Sprintf("fault %d at batch %d: batch %d", kind, at, i+1)
					before, after := i+1 < at, i+1 > at
					ok := before || kind == NoFault || kind == Refuse && after
					require.Equal(t, ok, c.acked[b], name)
					require.Equal(t, ok || kind == FailAfter || kind == CrashAfter, c.applied[b], name)
					require.Equal(t, kind == Refuse && !before && !after, c.refused[b], name)
					require.Equal(t, !ok && kind != Refuse, c.failed[b], name)
				}
				c.check()
			})
		}
	}
}
