package postgres_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
)

// The tables are on a disk of 16 MB, which another program fills.
func TestS6_ADiskThatIsReallyFullIsADelay(t *testing.T) {
	t.Parallel()
	disk, err := os.MkdirTemp("/tmp", "eventbusdisk") //nolint:usetesting // the server runs as another user, who may not enter t.TempDir
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.Remove(disk)) })
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip("it needs root:", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	server := privateServer(t)
	owner, err := os.Stat(server.Dir())
	require.NoError(t, err)
	as := owner.Sys().(*syscall.Stat_t)
	require.NoError(t, os.Mkdir(filepath.Join(disk, "tables"), 0o700))
	require.NoError(t, os.Chown(filepath.Join(disk, "tables"), int(as.Uid), int(as.Gid)))
	require.NoError(t, os.Chmod(disk, 0o755))
	require.NoError(t, server.Exec(t.Context(), "CREATE TABLESPACE small LOCATION '"+disk+"/tables'"))

	bus, err := eventbus.New(eventbus.WithStore(open(t, server.DSN()+" default_tablespace=small", "eventbus", postgres.WithLeaseTime(time.Minute))))
	require.NoError(t, err)
	var handled atomic.Int64
	_, err = bus.Subscribe("scan", eventbus.Typed(func(context.Context, []byte) error {
		handled.Add(1)
		return nil
	}), eventbus.Named("scan"))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	filler := filepath.Join(disk, "filler")
	require.ErrorIs(t, os.WriteFile(filler, make([]byte, 20<<20), 0o600), syscall.ENOSPC)
	const events = 4
	outcomes := make(chan error, events)
	for range events {
		scan := make([]byte, 200<<10)
		_, _ = rand.Read(scan)
		go func() {
			_, err := bus.Publish(context.Background(), "scan", scan)
			outcomes <- err
		}()
	}
	require.Eventually(t, func() bool { return len(outcomes) > 0 || noSpace(server.Log()) }, time.Minute, time.Millisecond)
	require.Empty(t, outcomes, "publications wait")
	require.NoError(t, os.Remove(filler))
	for range events {
		require.NoError(t, <-outcomes)
	}
	drain(t, bus)
	require.EqualValues(t, events, handled.Load())
	shutDown(t, bus)
}

func noSpace(log string) bool { return strings.Contains(log, "No space left on device") }
