package docs_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/store/sqlite"
)

func TestDocs_ComingFromAsynq(t *testing.T) {
	docpagetest.Page(t, "coming-from/asynq.md",
		docpagetest.Code(docsAsynqTheirs),
		docpagetest.Code(docsAsynqOurs),
	)
}

func docsAsynqTheirs(t *testing.T) error {
	redis := asynq.RedisClientOpt{Addr: miniredis.RunT(t).Addr()}
	ctx := t.Context()
	type Order struct{ ID string }
	sendMail, sent := failsOnce(func(o Order) string { return o.ID })
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:              100,
		RetryDelayFunc:           func(n int, _ error, _ *asynq.Task) time.Duration { return time.Second << n },
		DelayedTaskCheckInterval: time.Second, // 5 s by default
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc("order:mail", func(ctx context.Context, task *asynq.Task) error {
		var order Order
		if err := json.Unmarshal(task.Payload(), &order); err != nil {
			return errors.Join(err, asynq.SkipRetry)
		}
		return sendMail(ctx, order)
	})
	if err := server.Start(mux); err != nil {
		return err
	}
	client := asynq.NewClient(redis)
	defer client.Close()

	payload, err := json.Marshal(Order{ID: "o-17"})
	if err != nil {
		return err
	}
	if _, err := client.EnqueueContext(ctx, asynq.NewTask("order:mail", payload), asynq.MaxRetry(3)); err != nil {
		return err
	}
	<-sent
	server.Shutdown()
	return nil
}

func docsAsynqOurs(t *testing.T) error {
	ctx, file := t.Context(), filepath.Join(t.TempDir(), "events.db")
	type Order struct{ ID string }
	sendMail, sent := failsOnce(func(o Order) string { return o.ID })
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store))
	if err != nil {
		return err
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(sendMail), eventbus.Named("mail"), eventbus.Concurrency(100))
	if err != nil {
		return err
	}
	if err := bus.Start(ctx); err != nil {
		return err
	}

	if _, err := bus.Publish(ctx, "order.placed", Order{ID: "o-17"}); err != nil {
		return err
	}
	<-sent
	return bus.Shutdown(ctx)
}

// What the page says of asynq, beside the code that it shows.
func TestPages_ComingFromAsynq_Theirs(t *testing.T) {
	redis := asynq.RedisClientOpt{Addr: miniredis.RunT(t).Addr()}
	client, inspector := asynq.NewClient(redis), asynq.NewInspector(redis)
	defer client.Close()
	defer inspector.Close()

	t.Run("25 retries take about three weeks", func(t *testing.T) {
		info, err := client.EnqueueContext(t.Context(), asynq.NewTask("other", nil), asynq.Queue("other"))
		require.NoError(t, err)
		require.Equal(t, 25, info.MaxRetry)
		require.Equal(t, 30*time.Minute, info.Timeout)
		var total time.Duration
		for n := range info.MaxRetry {
			total += asynq.DefaultRetryDelayFunc(n, nil, nil)
		}
		require.InDelta(t, 20.4, total.Hours()/24, 0.2)
	})
	t.Run("a task that has used them up is archived, with its last error", func(t *testing.T) {
		failed := make(chan struct{}, 1)
		server := asynq.NewServer(redis, asynq.Config{LogLevel: asynq.FatalLevel, ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) {
			failed <- struct{}{}
		})})
		require.NoError(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("down") })))
		_, err := client.EnqueueContext(t.Context(), asynq.NewTask("order:mail", nil), asynq.MaxRetry(0))
		require.NoError(t, err)
		<-failed
		server.Shutdown()
		archived, err := inspector.ListArchivedTasks("default")
		require.NoError(t, err)
		require.Len(t, archived, 1)
		require.Equal(t, "down", archived[0].LastErr)
		require.NoError(t, inspector.RunTask("default", archived[0].ID))
	})
}
