package sqlite

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/surebus/eventbus/driver"
)

// smallDisk mounts a file system in memory of a size.
func smallDisk(t *testing.T, size string) (dir string, resize func(size string)) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIP: mounting a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, func(size string) {
		require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size="+size))
	}
}

func TestStore_FullDisk(t *testing.T) {
	dir, resize := smallDisk(t, "1m")
	path := filepath.Join(dir, "events.db")
	s := openAt(t, path)
	accepted := 0
	var err error
	for err == nil {
		r := ready("")
		r.Payload = make([]byte, 5000)
		if err = submit(s, &driver.Batch{New: []*driver.Record{r}}); err == nil {
			accepted++
		}
	}
	require.ErrorIs(t, err, ErrFull)
	require.ErrorIs(t, err, driver.ErrFailed)
	if err := s.Reopen(context.Background()); err != nil {
		require.ErrorIs(t, err, ErrFull)
	}
	resize("16m")
	require.NoError(t, s.Reopen(context.Background()))
	require.Len(t, claim(t, s, driver.ClaimQuery{Limit: 10_000}).Records, accepted)
	accept(t, s, ready(""))
	t.Logf("%d events accepted before the disk was full", accepted)
}

func TestStore_ReadOnlyDisk(t *testing.T) {
	dir, _ := smallDisk(t, "4m")
	path := filepath.Join(dir, "events.db")
	s := openAt(t, path)
	accept(t, s, ready(""))
	closeStore(t, s)
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err := Open(context.Background(), path)
	require.ErrorIs(t, err, unix.EROFS)
}

func TestStore_RefusesNetworkFileSystems(t *testing.T) {
	var st unix.Statfs_t
	dir := t.TempDir()
	require.NoError(t, unix.Statfs(dir, &st))
	kind := uint32(st.Type)
	require.Empty(t, networkFileSystem(dir))
	networkFileSystems[kind] = "test"
	defer delete(networkFileSystems, kind)
	_, err := Open(context.Background(), filepath.Join(dir, "x.db"))
	require.ErrorIs(t, err, ErrNetworkFileSystem)
	openAt(t, filepath.Join(dir, "x.db"), AllowNetworkFileSystem())
}
