package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_OrderAndKeys(t *testing.T) {
	docpagetest.Page(t, "docs/order-and-keys.md",
		docpagetest.Code(docsKey),
		docpagetest.Code(docsOrderOfSubscriptions),
		docpagetest.Code(docsKeyAndRetry),
		docpagetest.Code(docsKeyIsolated),
		docpagetest.Code(docsKeyHeld),
	)
}

func docsKey(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	_, err := bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, step string) error {
		fmt.Println(step)
		return nil
	}))
	require.NoError(t, err)
	for _, step := range []string{"placed", "paid", "shipped"} {
		if _, err := bus.Publish(ctx, "order."+step, step, eventbus.Key("o-17")); err != nil {
			return err
		}
	}
	return bus.Drain(ctx)
}

func docsOrderOfSubscriptions(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	for _, name := range []string{"stock", "mail", "crm"} {
		_, err := bus.Subscribe("order.placed", func(_ context.Context, e eventbus.Event) error {
			fmt.Println(name, "handles", e.Payload)
			return nil
		}, eventbus.Named(name))
		if err != nil {
			return err
		}
	}
	_, err := bus.Publish(ctx, "order.placed", "o-17")
	require.NoError(t, err)
	return bus.Drain(ctx)
}

func docsKeyAndRetry(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus := t.Context(), eventbustest.New(t)
		began := time.Now()
		_, err := bus.Subscribe("order.*", func(ctx context.Context, e eventbus.Event) error {
			fmt.Println(time.Since(began).Round(time.Second), e.Key, e.Type)
			if d, _ := eventbus.FromContext(ctx); e.Type == "order.paid" && d.Attempt == 1 {
				return errors.New("the bank does not answer")
			}
			return nil
		}, eventbus.Retry(eventbus.Delays(time.Minute), eventbus.NoJitter))
		if err != nil {
			return err
		}
		for _, step := range []struct{ eventType, order string }{
			{"order.paid", "o-17"}, {"order.shipped", "o-17"}, {"order.shipped", "o-18"},
		} {
			if _, err := bus.Publish(ctx, step.eventType, nil, eventbus.Key(step.order)); err != nil {
				return err
			}
			time.Sleep(time.Second) // so that you see who waits
		}
		return bus.Drain(ctx)
	})
}

func docsKeyIsolated(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		bus, release := eventbustest.New(t), make(chan struct{})
		var stock, mail eventbustest.Recorder
		sendMail := mail.Handle
		_, err := bus.Subscribe("order.*", sendMail, eventbus.Named("mail"), eventbus.Isolated())
		require.NoError(t, err)
		_, err = bus.Subscribe("order.*", stock.Wrap(eventbustest.Block(release)), eventbus.Named("stock"))
		require.NoError(t, err)
		for _, eventType := range []string{"order.placed", "order.paid"} {
			_, err := bus.Publish(t.Context(), eventType, nil, eventbus.Key("o-17"))
			require.NoError(t, err)
		}
		mail.Wait(t, 2)
		require.Equal(t, "order.paid", mail.Deliveries()[1].Event.Type)
		require.Len(t, stock.Deliveries(), 1)
		close(release)
		return bus.Drain(t.Context())
	})
}

func docsKeyHeld(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	for _, name := range []string{"stock", "mail"} {
		_, err := bus.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error {
			fmt.Println(name, e.Type)
			return nil
		}, eventbus.Named(name))
		require.NoError(t, err)
	}
	if err := bus.Subscription("mail").Pause(); err != nil {
		return err
	}
	for _, eventType := range []string{"order.placed", "order.paid"} {
		result, err := bus.PublishAndWait(ctx, eventType, nil, eventbus.Key("o-17"))
		if !errors.Is(err, eventbus.ErrHeld) {
			return err
		}
		fmt.Println("held at", result.Held)
	}
	err := bus.Subscription("mail").Resume()
	eventbustest.WaitSettled(t, bus)
	return err
}

// inBubble runs f with virtual time.
func inBubble(t *testing.T, f func(t *testing.T) error) (failed error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { failed = f(t) })
	return failed
}

func TestDocs_ChoosingOptions(t *testing.T) {
	docpagetest.Page(t, "docs/choosing-options.md",
		docpagetest.Code(docsChooseSlow),
		docpagetest.Code(docsChooseFull),
		docpagetest.Code(docsChooseFailures),
		docpagetest.Code(docsChooseEncoded),
	)
}

// docsChooseSlow checks that mail does not wait, that two calls run at once, and that Publish waits for a full line.
func docsChooseSlow(t *testing.T) error {
	synctest.Test(t, func(t *testing.T) {
		bus := eventbustest.New(t)
		var running, tooMany atomic.Int32
		render := func(context.Context, eventbus.Event) error {
			if running.Add(1) > 2 {
				tooMany.Add(1)
			}
			time.Sleep(40 * time.Second)
			running.Add(-1)
			return nil
		}
		_, err := bus.Subscribe("order.*", render, eventbus.Named("pdf"),
			eventbus.Isolated(),     // mail does not wait for it
			eventbus.Concurrency(2), // CPU for two
			eventbus.Timeout(time.Minute),
			eventbus.LineCapacity(1000)) // Publish waits when 1,000 are behind
		require.NoError(t, err)
		var mail eventbustest.Recorder
		_, err = bus.Subscribe("order.*", mail.Handle, eventbus.Named("mail"))
		require.NoError(t, err)
		for range 1002 {
			_, err = bus.Publish(t.Context(), "order.placed", nil)
			require.NoError(t, err)
			time.Sleep(time.Millisecond) // virtual: the pool starts a worker
		}
		require.Equal(t, 1002, mail.Len())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = bus.Publish(ctx, "order.placed", nil)
		var full *eventbus.FullError
		require.ErrorAs(t, err, &full)
		require.Equal(t, "pdf", full.Subscription)
		require.NoError(t, bus.Drain(t.Context()))
		require.Zero(t, tooMany.Load())
		require.Zero(t, bus.Metrics().DeadLetters, "no call has exceeded its timeout")
	})
	return nil
}

func docsChooseFull(t *testing.T) error {
	ctx := t.Context()
	bus := eventbustest.NewUnstarted(t, eventbus.WithQueueCapacity(1000), eventbus.RefuseWhenFull())
	_, err := bus.Subscribe("page.*", func(context.Context, eventbus.Event) error { return nil })
	require.NoError(t, err)
	for range 1000 {
		_, err := bus.Publish(ctx, "page.viewed", "/")
		require.NoError(t, err)
	}
	err = func() error {
		_, err := bus.Publish(ctx, "page.viewed", "/home") // of a bus with WithQueueCapacity(1000), RefuseWhenFull()
		var full *eventbus.FullError
		if errors.As(err, &full) {
			fmt.Println("no room:", full.Bound, full.Most) // drop the event, or answer 503
		}
		return err
	}()
	require.ErrorIs(t, err, eventbus.ErrQueueFull)
	return bus.Start(ctx)
}

// docsChooseFailures checks the delays, and that the circuit opens at the twentieth failure, for ten seconds.
func docsChooseFailures(t *testing.T) error {
	synctest.Test(t, func(t *testing.T) {
		bus := eventbustest.New(t, eventbus.WithLogger(zap.NewNop()))
		eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
		var rec eventbustest.Recorder
		var up atomic.Bool
		charge := func(ctx context.Context, e eventbus.Event) error {
			if err := rec.Handle(ctx, e); err != nil || !up.Load() {
				return errors.Join(err, errors.New("down"))
			}
			return nil
		}
		_, err := bus.Subscribe("invoice.*", charge, eventbus.Named("billing"),
			eventbus.Retry(eventbus.Delays(time.Second, time.Minute, time.Hour), eventbus.MaxElapsed(12*time.Hour)),
			eventbus.Circuit(eventbus.MinEvents(20), eventbus.OpenFor(10*time.Second)))
		require.NoError(t, err)
		id, err := bus.Publish(t.Context(), "invoice.due", 1)
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.Len(t, rec.Delays(id), 3)
		for i, want := range []time.Duration{time.Second, time.Minute, time.Hour} {
			require.InEpsilon(t, want, rec.Delays(id)[i], 0.11)
		}
		require.Equal(t, eventbus.ReasonExhausted, eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{}).Reason)
		time.Sleep(2 * time.Minute) // the window is empty
		for i := range 20 {
			require.Equal(t, eventbus.CircuitClosed, bus.Metrics().Subscriptions[0].Circuit, i)
			_, err := bus.Publish(t.Context(), "invoice.due", 1)
			require.NoError(t, err)
			synctest.Wait()
		}
		require.Equal(t, eventbus.CircuitOpen, bus.Metrics().Subscriptions[0].Circuit)
		up.Store(true)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		require.Equal(t, eventbus.CircuitClosed, bus.Metrics().Subscriptions[0].Circuit)
	})
	return nil
}

func docsChooseEncoded(t *testing.T) error {
	type tenantKey struct{}
	ctx := context.WithValue(t.Context(), tenantKey{}, "acme")
	bus, err := eventbus.New(
		eventbus.WithEncodedPayloads(), // in tests: payloads behave as with a store
		eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string {
			if tenant, ok := ctx.Value(tenantKey{}).(string); ok {
				return map[string]string{"tenant": tenant}
			}
			return nil // in a handler: an empty text would replace the inherited one
		}),
		eventbus.WithInheritedMetadata("tenant"))
	require.NoError(t, err)
	eventbustest.Adopt(t, bus)
	var metadata []string
	_, err = bus.Subscribe("a", func(ctx context.Context, e eventbus.Event) error {
		metadata = append(metadata, fmt.Sprintf("%s %s %T", e.Type, e.Metadata.Get("tenant"), e.Payload))
		_, err := bus.Publish(context.WithoutCancel(ctx), "b", 2)
		return err
	})
	require.NoError(t, err)
	_, err = bus.Subscribe("b", eventbus.Typed(func(ctx context.Context, n int) error {
		d, _ := eventbus.FromContext(ctx)
		metadata = append(metadata, fmt.Sprintf("%s %s %d", d.Event.Type, d.Event.Metadata.Get("tenant"), n))
		return nil
	}))
	require.NoError(t, err)
	require.NoError(t, bus.Start(ctx))
	_, err = bus.Publish(ctx, "a", 1)
	require.NoError(t, err)
	require.NoError(t, bus.Drain(ctx))
	require.Equal(t, []string{"a acme json.RawMessage", "b acme 2"}, metadata)
	return nil
}

// Each name of an option in a cell exists, and stands in the reference.
func TestPages_ChoosingOptionsNamesExist(t *testing.T) {
	page, err := os.ReadFile("docs/choosing-options.md")
	require.NoError(t, err)
	reference, err := os.ReadFile("docs/options.md")
	require.NoError(t, err)
	directives := []string{"Permanent", "Emit", "Publish", "Ledger", "Typed"}
	shown := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		for _, name := range regexp.MustCompile("`([A-Z][A-Za-z]+)").FindAllStringSubmatch(cells[2], -1) {
			shown++
			if !slices.Contains(directives, name[1]) {
				require.Contains(t, string(reference), "`"+name[1]+"`")
			}
		}
	}
	require.Greater(t, shown, 40)
}
