package docs_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/storetest"
)

func TestDocs_WhatItIsNotFor(t *testing.T) {
	docpagetest.Page(t, "what-it-is-not-for.md",
		docpagetest.Code(docsQuestion),
		docpagetest.Code(docsVeto),
		docpagetest.Code(docsJobs),
		docpagetest.InBubble(docsForward),
		docpagetest.Code(docsReference),
	)
}

// Sale is a payload.
type Sale struct {
	Article string
	Cents   int
}

type priceList map[string]int

func (l priceList) Of(_ context.Context, article string) (int, error) { return l[article], nil }

func docsQuestion(t *testing.T) error {
	ctx, bus, prices := t.Context(), eventbustest.New(t), priceList{"book-3": 999}
	var rec eventbustest.Recorder
	_, err := bus.Subscribe("order.*", rec.Handle)
	require.NoError(t, err)
	publish := func() error {
		price, err := prices.Of(ctx, "book-3") // not: publish "price.wanted" and wait for "price.found"
		if err != nil {
			return err
		}
		_, err = bus.Publish(ctx, "order.placed", Sale{"book-3", price})
		return err
	}
	require.NoError(t, publish())
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []Sale{{"book-3", 999}}, eventbustest.Payloads[Sale](&rec))
	return nil
}

func docsVeto(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	var rec eventbustest.Recorder
	_, err := bus.Subscribe("sale.*", rec.Handle)
	require.NoError(t, err)
	forbidden := errors.New("too cheap")
	rules := []func(context.Context, Sale) error{func(_ context.Context, s Sale) error {
		if s.Cents == 0 {
			return forbidden
		}
		return nil
	}}
	sell := func(sale Sale) error {
		for _, rule := range rules {
			if err := rule(ctx, sale); err != nil {
				return err // the sale does not happen, and no event says so
			}
		}
		_, err := bus.Publish(ctx, "sale.made", sale)
		return err
	}
	require.ErrorIs(t, sell(Sale{"book-3", 0}), forbidden)
	require.NoError(t, sell(Sale{"book-3", 999}))
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []Sale{{"book-3", 999}}, eventbustest.Payloads[Sale](&rec))
	return nil
}

// Job is a job of a queue with unique keys.
type Job struct{ UniqueKey, Video string }

type jobQueue map[string]Job

func (q jobQueue) Insert(_ context.Context, j Job) error {
	_, known := q[j.UniqueKey]
	q[j.UniqueKey] = j
	if !known {
		return errors.New("the answer was lost")
	}
	return nil
}

func docsJobs(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		bus, queue := eventbustest.New(t, eventbus.WithStore(storetest.NewModel().Open())), jobQueue{}
		_, err := bus.Subscribe("video.uploaded", eventbus.Typed(func(ctx context.Context, video string) error {
			d, _ := eventbus.FromContext(ctx)
			return queue.Insert(ctx, Job{UniqueKey: d.Event.ID.String(), Video: video})
		}), eventbus.Named("transcoding"))
		require.NoError(t, err)
		result, err := bus.PublishAndWait(t.Context(), "video.uploaded", "v-1")
		require.Equal(t, 2, result.Attempts)
		require.Len(t, queue, 1)
		return err
	})
}

// Message is a message of a broker.
type Message struct {
	Topic, ID, Key string
	Body           any
}

type topics []Message

func (b *topics) Send(_ context.Context, m Message) error {
	*b = append(*b, m)
	return nil
}

// docsForward sends 100 events of a key to a broker that does not answer at first.
func docsForward(t *testing.T) error {
	var rec eventbustest.Recorder
	broker := &topics{}
	bus := eventbustest.New(t, eventbus.WithMiddleware(rec.Wrap))
	rec.FailNext(3, errors.New("the broker does not answer"))
	_, err := bus.Subscribe("order.**", func(ctx context.Context, e eventbus.Event) error {
		return broker.Send(ctx, Message{Topic: e.Type, ID: e.ID.String(), Key: e.Key, Body: e.Payload})
	}, eventbus.Named("broker"), eventbus.Isolated())
	require.NoError(t, err)
	for i := range 100 {
		_, err := bus.Publish(t.Context(), "order.line.added", i, eventbus.Key("o-17"))
		require.NoError(t, err)
	}
	eventbustest.WaitSettled(t, bus)
	require.Len(t, *broker, 100)
	for i, m := range *broker {
		require.Equal(t, i, m.Body)
	}
	return nil
}

type fileStore map[string][]byte

func (s fileStore) Put(_ context.Context, name string, content []byte) (string, error) {
	s[name] = content
	return "https://files.example.com/" + name, nil
}

func docsReference(t *testing.T) error {
	ctx, bus, files := t.Context(), eventbustest.New(t, eventbus.WithEncodedPayloads()), fileStore{}
	var rec eventbustest.Recorder
	_, err := bus.Subscribe("report.*", rec.Handle)
	require.NoError(t, err)
	content := bytes.Repeat([]byte("x"), 2<<20)
	publish := func() error {
		address, err := files.Put(ctx, "report.pdf", content)
		if err != nil {
			return err
		}
		_, err = bus.Publish(ctx, "report.made", address)
		return err
	}
	require.NoError(t, publish())
	_, err = bus.Publish(ctx, "report.made", content)
	require.ErrorIs(t, err, eventbus.ErrInvalidPayload, "more than 1 MiB")
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []string{"https://files.example.com/report.pdf"}, eventbustest.Payloads[string](&rec))
	return nil
}
