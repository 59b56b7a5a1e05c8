package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

func TestRow5_PayloadsThatDoNotEncode(t *testing.T) {
	p := begin(t, newPath(t), eventbus.WithPayloadLimit(1000))
	p.handles("mail", nil)
	p.start()
	type cycle struct{ Next *cycle }
	loop := &cycle{}
	loop.Next = loop
	for _, payload := range []any{make(chan int), func() {}, loop, string(make([]byte, 1000))} {
		_, err := p.Publish(t.Context(), "order.placed", payload)
		var bad *eventbus.PayloadError
		require.ErrorAs(t, err, &bad)
		_, err = p.PublishBatch(t.Context(), []eventbus.Publication{{Type: "order.placed", Payload: "x"}, {Type: "order.placed", Payload: payload}})
		require.ErrorAs(t, err, &bad)
	}
	p.publish("y")
	p.waitCalls("mail y")
	require.Equal(t, map[string]int{"mail y": 1}, p.settled().called())
	p.end()
}

func TestRow36_UnnamedSubscription(t *testing.T) {
	p := begin(t, newPath(t))
	_, err := p.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil })
	var bad *eventbus.OptionError
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, "Named")
	p.end()
}

func TestRow36_RenamedSubscription(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("old", nil)
	p.handles("mail", nil)
	p.publish("0", eventbus.Key("k"))
	p.publish("1", eventbus.Key("k"))
	p.crash()

	p = begin(t, path)
	p.handles("mail", nil)
	p.start()
	p.waitCalls("mail 0", "mail 1")
	p.logged("subscription of stored events is missing")
	p.eventually("both are parked", func() bool {
		stats, err := p.store.Stats(t.Context())
		return err == nil && stats.Parked == 2
	})
	p.end()

	p = begin(t, path)
	p.handles("mail", nil)
	p.handles("new", nil, eventbus.Formerly("old"))
	p.start()
	p.waitCalls("new 0", "new 1")
	require.Equal(t, map[string]int{"new 0": 1, "new 1": 1}, p.settled().called(), "mail does not handle them again")
	p.end()
}

func TestRow41_TwoBuses(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	_, err := eventbus.New(eventbus.WithStore(p.store))
	var bad *eventbus.OptionError
	require.ErrorAs(t, err, &bad)
	other := begin(t, path)
	require.ErrorIs(t, other.Start(t.Context()), sqlite.ErrLocked)
	other.end()
	p.publish("x")
	p.waitCalls("mail x")
	p.end()
	begin(t, path).end()
}

// The clock of the next process is behind or ahead: a scheduled event keeps its instant, and nothing
// is lost.
func TestRow47_ClockBetweenRuns(t *testing.T) {
	began := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	for name, again := range map[string]time.Time{
		"back": began.Add(-time.Hour), "forward": began.AddDate(1, 0, 0), "1970": time.Unix(0, 0), "2038": time.Date(2039, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			mock := clock.NewMock()
			mock.Set(began)
			p := begin(t, path, eventbus.WithClock(mock))
			p.handles("mail", func(string) error { return errors.New("later") })
			p.start()
			known := eventbus.NewEventID()
			p.publish("retried", eventbus.ID(known))
			p.publish("scheduled", eventbus.After(time.Hour))
			p.waitCalls("mail retried")
			p.eventually("the retry is recorded", func() bool {
				stats, err := p.store.Stats(t.Context())
				return err == nil && stats.Waiting == 1
			})
			p.crash()

			mock = clock.NewMock()
			mock.Set(again)
			p = begin(t, path, eventbus.WithClock(mock))
			p.handles("mail", dies)
			p.start()
			stats, err := p.store.Stats(t.Context())
			require.NoError(t, err)
			if again.Before(began) {
				require.EqualValues(t, 2, stats.Unsettled())
				require.Equal(t, known, p.publish("retried", eventbus.ID(known)), "the id is still known")
			}
			due := began.Add(2 * time.Hour)
			p.eventually("the feeder has asked for due events", func() bool {
				if mock.Now().Before(due) {
					mock.Set(due)
				}
				mock.Add(time.Second)
				return len(p.list(eventbus.LetterQuery{})) == 2
			})
			p.waitCalls("mail retried", "mail scheduled")
			page, err := p.DLQ().List(t.Context(), eventbus.LetterQuery{PublishedSince: began, PublishedUntil: began})
			require.NoError(t, err)
			require.Len(t, page.Letters, 2)
			p.settled().end()
		})
	}
}

// An id that is used twice is one event, also at the same time, after a restart and from a second
// process.
func TestE6_IDsUsedTwice(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	other := begin(t, path)
	other.handles("mail", nil)
	id := eventbus.NewEventID()
	var publishers sync.WaitGroup
	var different atomic.Int64
	for i := range 40 {
		publishers.Go(func() {
			by := p
			if i%4 == 1 {
				by = other
			}
			eventType := []string{"order.placed", "order.paid"}[i%2]
			got, err := by.Publish(context.Background(), eventType, "x", eventbus.ID(id))
			if errors.Is(err, eventbus.ErrDuplicateID) {
				different.Add(1)
			} else if err != nil || got != id {
				t.Error(got, err)
			}
		})
	}
	publishers.Wait()
	p.waitCalls("mail x")
	require.Equal(t, map[string]int{"mail x": 1}, p.settled().called())
	require.EqualValues(t, 20, different.Load(), "those of the type that came second")
	other.end()
	p.crash()

	p = begin(t, path)
	p.handles("mail", nil)
	p.start()
	refused := 0
	for _, eventType := range []string{"order.placed", "order.paid"} {
		if _, err := p.Publish(t.Context(), eventType, "x", eventbus.ID(id)); err != nil {
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
			refused++
		}
	}
	require.Equal(t, 1, refused)
	require.Empty(t, p.settled().called())
	p.end()
}

// A write lock that another process holds for too long costs no event: the store goes on waiting, and does not fail.
func TestRow71_HeldLock(t *testing.T) {
	path := newPath(t)
	p := begin(t, path, sqlite.WithLockWait(300*time.Millisecond))
	p.handles("mail", nil)
	p.start()
	p.publish("before")
	lock, unlock := writeLock(t, path)
	lock()
	short := make(chan error, 1)
	go func() {
		_, err := p.Publish(context.Background(), "order.placed", "short")
		short <- err
	}()
	time.Sleep(100 * time.Millisecond)
	unlock()
	require.NoError(t, <-short, "a short lock is waited out")
	p.waitCalls("mail before", "mail short")

	lock()
	_, err := p.Publish(t.Context(), "order.placed", "long")
	var unknown *eventbus.IndeterminateError
	require.ErrorAs(t, err, &unknown)
	require.ErrorIs(t, err, sqlite.ErrBusy)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = p.DLQ().List(ctx, eventbus.LetterQuery{}) // it returns
	require.NoError(t, ctx.Err())
	unlock()
	p.waitCalls("mail long")
	p.publish("after")
	p.waitCalls("mail after")
	require.Zero(t, p.logs.FilterMessage("store failed: the bus restarts").Len())
	p.settled().end()
}

// Shutdown ends while the store does not reopen.
func TestRow71_ShutdownWithoutAStore(t *testing.T) {
	path := newPath(t)
	skipOnWindows(t)
	p := begin(t, path, sqlite.WithLockWait(100*time.Millisecond))
	p.handles("mail", func(string) error { return errors.New("later") })
	p.start()
	p.publish("x", eventbus.After(time.Hour))
	require.NoError(t, os.Rename(path, path+".old"))
	p.refuses("")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	began := time.Now()
	_ = p.Shutdown(ctx) // the lease does not end in order
	require.Less(t, time.Since(began), 10*time.Second)
	require.NoError(t, os.Rename(path+".old", path))
	p = begin(t, path)
	stats, err := p.store.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Scheduled, fmt.Sprint(stats))
	p.end()
}
