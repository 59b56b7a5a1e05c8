package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// benchPath returns the path of a database on a real disk: in $EVENTBUS_BENCH_DIR, or in the
// directory of the package, because the directory for temporary files may be in memory.
func benchPath(b *testing.B) string {
	b.Helper()
	parent := os.Getenv("EVENTBUS_BENCH_DIR")
	if parent == "" {
		parent = "."
	}
	dir, err := os.MkdirTemp(parent, "bench-*.out") //nolint:usetesting // TempDir may be in memory
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "events.db")
}

var benchPayload = []byte(`{"order":"` + strings.Repeat("x", 130) + `"}`) // 150 bytes with the braces

func benchRecord() *driver.Record {
	return &driver.Record{
		ID: newID(), Type: "order.placed", Payload: benchPayload, Published: time.Now().UTC(),
		Targets: []string{"billing"}, Leased: true,
	}
}

// publish runs b.N calls of one in a number of goroutines.
func publish(b *testing.B, publishers int, one func()) {
	b.Helper()
	var left sync.WaitGroup
	b.ResetTimer()
	for p := range publishers {
		left.Go(func() {
			for i := p; i < b.N; i += publishers {
				one()
			}
		})
	}
	left.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.StopTimer()
}

func BenchmarkAccept(b *testing.B) {
	for _, publishers := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(publishers), func(b *testing.B) {
			s := openAt(b, benchPath(b))
			publish(b, publishers, func() {
				if err := submit(s, &driver.Batch{New: []*driver.Record{benchRecord()}}); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

func BenchmarkSettle(b *testing.B) {
	for _, publishers := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(publishers), func(b *testing.B) {
			s := openAt(b, benchPath(b))
			publish(b, publishers, func() {
				// As the bus does: nobody waits for the deletion.
				r := benchRecord()
				if err := submit(s, &driver.Batch{New: []*driver.Record{r}}); err != nil {
					b.Error(err)
				}
				s.Submit(&driver.Batch{Now: t0, Epoch: s.Lease().Epoch, Delete: []driver.Ref{r.Ref}}, func(err error) {
					if err != nil {
						b.Error(err)
					}
				})
			})
			b.StartTimer()
			closeStore(b, s)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// rawConn is a database with one table of ids and payloads.
func rawConn(b *testing.B) *sqlite3.Conn {
	b.Helper()
	c, err := sqlite3.OpenConn(benchPath(b), sqlite3.OpenReadWrite|sqlite3.OpenCreate|sqlite3.OpenWAL)
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.Close() })
	require.NoError(b, query(c, "PRAGMA synchronous = FULL", nil))
	require.NoError(b, query(c, "CREATE TABLE event (num INTEGER PRIMARY KEY, id BLOB NOT NULL, body BLOB NOT NULL)", nil))
	return c
}

// BenchmarkOneInsertPerCommit is the yardstick: what a program without a bus would do.
func BenchmarkOneInsertPerCommit(b *testing.B) {
	c := rawConn(b)
	publish(b, 1, func() {
		id := newID()
		if err := query(c, "INSERT INTO event (id, body) VALUES (?, ?)", nil, id[:], benchPayload); err != nil {
			b.Error(err)
		}
	})
}

// BenchmarkBareGroupedInsert is the other yardstick: commits of 512 rows, 64 to a statement, by 512
// goroutines that wait for their commit.
func BenchmarkBareGroupedInsert(b *testing.B) {
	const publishers = 512
	c := rawConn(b)
	type item struct {
		id   driver.ID
		body []byte
		done chan struct{}
	}
	queue := make(chan item, publishers)
	go func() {
		statements := make(map[int]*sqlite3.Stmt)
		for _, n := range insertSizes {
			statements[n], _ = c.Prepare("INSERT OR ROLLBACK INTO event (id, body) VALUES " + strings.Repeat("(?,?),", n-1) + "(?,?)")
		}
		for first := range queue {
			group := append(make([]item, 0, publishers), first)
			for len(group) < publishers && len(queue) > 0 {
				group = append(group, <-queue)
			}
			err := query(c, "BEGIN IMMEDIATE", nil)
			for rows := group; len(rows) > 0 && err == nil; {
				for _, n := range insertSizes {
					if n > len(rows) {
						continue
					}
					for i, row := range rows[:n] {
						statements[n].BindBytes(2*i+1, row.id[:])
						statements[n].BindBytes(2*i+2, row.body)
					}
					err = run(statements[n], nil)
					rows = rows[n:]
					break
				}
			}
			if err == nil {
				err = query(c, "COMMIT", nil)
			}
			if err != nil {
				b.Error(err)
			}
			for _, i := range group {
				close(i.done)
			}
		}
	}()
	publish(b, publishers, func() {
		i := item{newID(), benchPayload, make(chan struct{})}
		queue <- i
		<-i.done
	})
	close(queue)
}

func BenchmarkClaim(b *testing.B) {
	s := openAt(b, benchPath(b))
	for i := 0; i < b.N; {
		batch := &driver.Batch{}
		for ; len(batch.New) < 1000 && i < b.N; i++ {
			batch.New = append(batch.New, free(benchRecord()))
		}
		require.NoError(b, submit(s, batch))
	}
	b.ResetTimer()
	for n := 0; n < b.N; {
		c, err := s.Claim(context.Background(), driver.ClaimQuery{Limit: 1000})
		require.NoError(b, err)
		n += len(c.Records)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
