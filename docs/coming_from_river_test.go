package docs_test

import (
	"context"
	"database/sql"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/store/sqlite"
)

func TestDocs_ComingFromRiver(t *testing.T) {
	docpagetest.Page(t, "coming-from/river.md",
		docpagetest.Code(docsRiverArgs),
		docpagetest.Code(docsRiverTheirs),
		docpagetest.Code(docsRiverOurs),
	)
}

type MailArgs struct {
	OrderID string `json:"order_id"`
}

func (MailArgs) Kind() string { return "mail" }

func docsRiverArgs(t *testing.T) error {
	require.Equal(t, "mail", MailArgs{}.Kind())
	return nil
}

func docsRiverTheirs(t *testing.T) error {
	ctx, db := t.Context(), riverDB(t)
	type Order struct{ ID string }
	sendMail, sent := failsOnce(func(o Order) string { return o.ID })
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[MailArgs]) error {
		return sendMail(ctx, Order{ID: job.Args.OrderID})
	}))
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}
	client, err := river.NewClient(riversqlite.New(db), &river.Config{Queues: queues, Workers: workers})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}

	err = inTx(ctx, db, func(tx *sql.Tx) error {
		if err := saveOrder(ctx, tx, "o-17"); err != nil {
			return err
		}
		_, err := client.InsertTx(ctx, tx, MailArgs{OrderID: "o-17"}, nil)
		return err
	})
	if err != nil {
		return err
	}
	<-sent
	require.Equal(t, 1, savedOrders(t, db))
	return client.Stop(ctx)
}

func docsRiverOurs(t *testing.T) error {
	ctx, file := t.Context(), filepath.Join(t.TempDir(), "shop.db")
	makeStore(t, file)
	db := shopDB(t, file)
	type Order struct{ ID string }
	sendMail, sent := failsOnce(func(o Order) string { return o.ID })
	store, err := sqlite.Open(ctx, file) // before your own tables: it makes the file
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store))
	if err != nil {
		return err
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(sendMail), eventbus.Named("mail"))
	if err != nil {
		return err
	}
	if err := bus.Start(ctx); err != nil {
		return err
	}

	err = inTx(ctx, db, func(tx *sql.Tx) error {
		if err := saveOrder(ctx, tx, "o-17"); err != nil {
			return err
		}
		_, err := bus.PublishTx(ctx, tx, "order.placed", Order{ID: "o-17"})
		return err
	})
	if err != nil {
		return err
	}
	<-sent
	require.Equal(t, 1, savedOrders(t, db))
	return bus.Shutdown(ctx)
}

func riverDB(t *testing.T) *sql.DB {
	file := filepath.Join(t.TempDir(), "shop.db")
	makeStore(t, file) // both fit into one file, as the steps of the page say
	db := shopDB(t, file)
	migrator, err := rivermigrate.New(riversqlite.New(db), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(t, err)
	return db
}

// What the page says of River, beside the code that it shows.
func TestPages_ComingFromRiver_Theirs(t *testing.T) {
	t.Run("25 attempts take about three weeks", func(t *testing.T) {
		var total time.Duration
		policy, job := river.DefaultClientRetryPolicy{}, rivertype.JobRow{}
		for attempt := 1; attempt < river.MaxAttemptsDefault; attempt++ {
			total += time.Until(policy.NextRetry(&job))
			job.Errors = append(job.Errors, rivertype.AttemptError{Attempt: attempt})
		}
		require.Equal(t, 25, river.MaxAttemptsDefault)
		require.InDelta(t, 20.4, total.Hours()/24, 2.1)
	})
	t.Run("timeout", func(t *testing.T) { require.Equal(t, time.Minute, river.JobTimeoutDefault) })
	t.Run("one worker a kind", func(t *testing.T) {
		workers, worker := river.NewWorkers(), river.WorkFunc(func(context.Context, *river.Job[MailArgs]) error { return nil })
		require.NoError(t, river.AddWorkerSafely(workers, worker))
		require.Error(t, river.AddWorkerSafely(workers, worker))
	})
}
