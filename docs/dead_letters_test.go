package docs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_DeadLetters(t *testing.T) {
	docpagetest.Page(t, "dead-letters.md",
		docpagetest.Code(docsDeliveryError),
		docpagetest.Code(docsLetterGroups),
		docpagetest.Code(docsReplay),
		docpagetest.Code(docsReplayMatching),
		docpagetest.Code(docsPurge),
		docpagetest.Code(docsExport),
		docpagetest.Code(docsOnDeadLetter),
	)
}

// The page has a row for each reason, and no other.
func TestPages_DeadLettersReasons(t *testing.T) {
	page, err := os.ReadFile("dead-letters.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| reason | the event died because |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var shown []eventbus.Reason
	for _, row := range regexp.MustCompile("(?m)^. `(\\w+)` .").FindAllStringSubmatch(table, -1) {
		shown = append(shown, eventbus.Reason(row[1]))
	}
	require.ElementsMatch(t, eventbus.Reasons(), shown)
}

func docsDeliveryError(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus := t.Context(), eventbustest.New(t)
		eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
		var crm eventbustest.Recorder
		for _, s := range []struct {
			name   string
			handle eventbus.Handler
		}{
			{"stock", func(context.Context, eventbus.Event) error { return nil }},
			{"mail", eventbustest.Fail(errors.New("the mail server does not answer"))},
			{"crm", crm.Handle},
		} {
			_, err := bus.Subscribe("order.placed", s.handle, eventbus.Named(s.name))
			require.NoError(t, err)
		}
		_, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
		var died *eventbus.DeliveryError
		if errors.As(err, &died) {
			letter := died.Letters[0]
			fmt.Println(letter.Reason, "at", letter.Subscription, "after", letter.Attempts, "attempts")
			fmt.Println("succeeded:", letter.Succeeded, "not reached:", letter.NotReached)
			fmt.Println("the last failure:", letter.Failures[len(letter.Failures)-1].Error)
		}
		require.Zero(t, crm.Len())
		return nil
	})
}

// shop has three dead letters, whose cause is mended.
type shop struct {
	bus    *eventbus.Bus
	mail   eventbustest.Recorder
	first  eventbus.LetterID // of order o-1, at mail
	second eventbus.LetterID // of order o-2, at mail
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{bus: eventbustest.New(t, eventbus.WithRetry(eventbus.MaxRetries(1)))}
	eventbustest.AllowDeadLetters(t, s.bus, eventbus.LetterQuery{})
	_, err := s.bus.Subscribe("order.placed", s.mail.Handle, eventbus.Named("mail"))
	require.NoError(t, err)
	_, err = s.bus.Subscribe("order.paid", eventbustest.Fail(eventbus.Permanent(errors.New("no account 4711"))), eventbus.Named("billing"))
	require.NoError(t, err)
	s.mail.FailNext(4, errors.New("the mail server does not answer"))
	for _, e := range []struct{ eventType, order string }{{"order.placed", "o-1"}, {"order.placed", "o-2"}, {"order.paid", "o-1"}} {
		_, err := s.bus.PublishAndWait(t.Context(), e.eventType, e.order)
		require.Error(t, err)
	}
	letters := eventbustest.DeadLetters(t, s.bus, eventbus.LetterQuery{Subscription: "mail"}, 2)
	s.first, s.second = letters[0].ID, letters[1].ID
	return s
}

func docsLetterGroups(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus := t.Context(), newShop(t).bus
		groups, err := bus.DLQ().Groups(ctx, eventbus.LetterQuery{})
		if err != nil {
			return err
		}
		for _, g := range groups {
			fmt.Println(g.Count, g.Subscription, g.Message)
		}
		page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{Type: "order.*", Reason: eventbus.ReasonExhausted})
		fmt.Println(page.Total, "exhausted", err)
		return err
	})
}

func docsReplay(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		shop := newShop(t)
		ctx, bus, first, second := t.Context(), shop.bus, shop.first, shop.second
		if err := bus.DLQ().Replay(ctx, first, eventbus.By("anna"), eventbus.Because("the mail server is back")); err != nil {
			return err
		}
		err := bus.DLQ().ReplayEdited(ctx, second, "o-2", eventbus.By("anna"), eventbus.Because("typing error in the id"))
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.ElementsMatch(t, []string{"o-1", "o-2"}, eventbustest.Payloads[string](&shop.mail))
		eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{}, 1)
		audit, err := bus.Audit(ctx, eventbus.AuditQuery{By: "anna"})
		require.Len(t, audit.Entries, 2)
		return err
	})
}

func docsReplayMatching(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus := t.Context(), newShop(t).bus
		groups, err := bus.DLQ().Groups(ctx, eventbus.LetterQuery{})
		require.NoError(t, err)
		cause := eventbus.LetterQuery{Fingerprint: groups[0].Fingerprint}
		preview, err := bus.DLQ().PreviewReplay(ctx, cause)
		if err != nil {
			return err
		}
		fmt.Println(preview.Matched, "letters match")
		report, err := bus.DLQ().ReplayMatching(ctx, cause, eventbus.Rate(100), eventbus.StopAfter(3))
		fmt.Println("replayed", report.Replayed, "of", report.Matched)
		eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{}, 1)
		_, refused := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{})
		require.ErrorIs(t, refused, eventbus.ErrInvalidOption)
		return err
	})
}

func docsPurge(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		shop := newShop(t)
		ctx, bus, id := t.Context(), shop.bus, shop.first
		time.Sleep(31 * 24 * time.Hour)
		require.NoError(t, bus.DLQ().Purge(ctx, id))
		report, err := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{Type: "*.paid"}) // those that match
		if err != nil {
			return err
		}
		n, err := bus.DLQ().PurgeUntil(ctx, time.Now().AddDate(0, 0, -30)) // those that died until then
		require.Equal(t, 1, report.Purged)
		require.Equal(t, 1, n)
		eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{}, 0)
		return err
	})
}

func docsExport(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus, other := t.Context(), newShop(t).bus, eventbustest.New(t)
		eventbustest.AllowDeadLetters(t, other, eventbus.LetterQuery{})
		var file bytes.Buffer // an *os.File, in a program
		exported, err := bus.DLQ().Export(ctx, &file, eventbus.LetterQuery{})
		if err != nil {
			return err
		}
		imported, err := other.DLQ().Import(ctx, &file)
		fmt.Println(exported.Exported, "exported,", imported.Imported, "imported")
		eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{}, 3)
		return err
	})
}

// apologies is a mail server for customers whose order failed.
type apologies struct{ sent []eventbus.Reason }

func (a *apologies) Apologize(_ context.Context, _ eventbus.Event, r eventbus.Reason) error {
	a.sent = append(a.sent, r)
	return nil
}

func docsOnDeadLetter(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		bus, mail := eventbustest.New(t), &apologies{}
		_, err := bus.OnDeadLetter("order.*", func(ctx context.Context, letter eventbus.DeadLetter) error {
			return mail.Apologize(ctx, letter.Event, letter.Reason)
		}, eventbus.Named("apologies"))
		require.NoError(t, err)
		_, err = bus.Subscribe("order.placed", eventbustest.Fail(nil), eventbus.Named("stock"))
		require.NoError(t, err)
		_, err = bus.Publish(t.Context(), "order.placed", "o-17")
		require.NoError(t, err)
		eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
		require.Equal(t, []eventbus.Reason{eventbus.ReasonExhausted}, mail.sent)
		return nil
	})
}
