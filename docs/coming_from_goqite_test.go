package docs_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"maragu.dev/goqite"
	"maragu.dev/goqite/jobs"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/store/sqlite"
)

func TestDocs_ComingFromGoqite(t *testing.T) {
	docpagetest.Page(t, "coming-from/goqite.md",
		docpagetest.Code(docsGoqiteTheirs),
		docpagetest.Code(docsGoqiteOurs),
	)
}

func docsGoqiteTheirs(t *testing.T) error {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	file := filepath.Join(t.TempDir(), "shop.db")
	makeStore(t, file) // both fit into one file
	db := shopDB(t, file)
	createGoqite(t, db)
	type Order struct{ ID string }
	sendMail, sent := failsOnce(func(o Order) string { return o.ID })
	queue := goqite.New(goqite.NewOpts{DB: db, Name: "jobs", Timeout: time.Second})
	runner := jobs.NewRunner(jobs.NewRunnerOpts{Queue: queue, Limit: 100})
	runner.Register("mail", func(ctx context.Context, body []byte) error {
		var order Order
		if err := json.Unmarshal(body, &order); err != nil {
			return err
		}
		return sendMail(ctx, order)
	})
	done := make(chan struct{})
	go func() { defer close(done); runner.Start(ctx) }() // until ctx ends

	body, err := json.Marshal(Order{ID: "o-17"})
	if err != nil {
		return err
	}
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		if err := saveOrder(ctx, tx, "o-17"); err != nil {
			return err
		}
		_, err := jobs.CreateTx(ctx, tx, queue, "mail", goqite.Message{Body: body})
		return err
	})
	if err != nil {
		return err
	}
	<-sent
	stop()
	<-done
	return nil
}

func docsGoqiteOurs(t *testing.T) error {
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
	_, err = bus.Subscribe("order.placed", eventbus.Typed(sendMail), eventbus.Named("mail"), eventbus.Concurrency(100))
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

// createGoqite makes the table of goqite. Its schema is a file of the module, not a part of the package.
func createGoqite(t *testing.T, db *sql.DB) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "maragu.dev/goqite").Output()
	require.NoError(t, err)
	schema, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema_sqlite.sql"))
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), string(schema))
	require.NoError(t, err)
}

// What the page says of goqite, beside the code that it shows.
func TestPages_ComingFromGoqite_Theirs(t *testing.T) {
	db := shopDB(t, filepath.Join(t.TempDir(), "shop.db"))
	createGoqite(t, db)
	t.Run("after three receptions a row stays, and is received no more", func(t *testing.T) {
		queue := goqite.New(goqite.NewOpts{DB: db, Name: "jobs", Timeout: time.Millisecond})
		require.NoError(t, queue.Send(t.Context(), goqite.Message{Body: []byte("o-17")}))
		for range 3 {
			m, err := queue.Receive(t.Context())
			require.NoError(t, err)
			require.NotNil(t, m)
			time.Sleep(5 * time.Millisecond)
		}
		m, err := queue.Receive(t.Context())
		require.NoError(t, err)
		require.Nil(t, m)
		var rows int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM goqite WHERE received >= 3").Scan(&rows))
		require.Equal(t, 1, rows)
	})
	t.Run("the timeout is five seconds", func(t *testing.T) {
		queue := goqite.New(goqite.NewOpts{DB: db, Name: "mails"})
		require.NoError(t, queue.Send(t.Context(), goqite.Message{Body: []byte("o-17")}))
		begin := time.Now()
		m, err := queue.Receive(t.Context())
		require.NoError(t, err)
		var until string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT timeout FROM goqite WHERE id = ?", m.ID).Scan(&until))
		at, err := time.Parse(time.RFC3339, until)
		require.NoError(t, err)
		require.InDelta(t, 5, at.Sub(begin).Seconds(), 1)
	})
}
