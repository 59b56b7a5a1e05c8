package sqlite

import (
	"fmt"
	"runtime"
	"time"

	"go.uber.org/zap"
)

// Option is an option of Open.
type Option func(*config) error

type config struct {
	mustExist    bool
	normal       bool
	network      bool
	exclusive    bool
	logger       *zap.Logger
	lockWait     time.Duration
	checkpointAt int           // pages
	history      time.Duration // 0: none
}

const (
	defaultLockWait = 10 * time.Second
	maxLockWait     = time.Hour
)

func newConfig(opts []Option) (*config, error) {
	c := &config{logger: zap.NewNop(), lockWait: defaultLockWait, checkpointAt: defaultCheckpoint}
	for _, o := range opts {
		if o == nil {
			continue
		}
		if err := o(c); err != nil {
			return nil, err
		}
	}
	if c.exclusive && runtime.GOOS == "windows" {
		return nil, &OptionError{Option: "WithExclusive", Reason: "is not available on Windows"}
	}
	return c, nil
}

// MustExist makes Open fail if the file does not exist (fs.ErrNotExist) or has an older schema (ErrNotMigrated). Use it
// in tools, which must neither create nor migrate the file of a bus.
func MustExist() Option {
	return func(c *config) error {
		c.mustExist = true
		return nil
	}
}

// WithLogger sets the logger for warnings about the file. The default is zap.NewNop(). nil is
// ignored.
func WithLogger(l *zap.Logger) Option {
	return func(c *config) error {
		if l != nil {
			c.logger = l
		}
		return nil
	}
}

// WithNormalSync makes commits return before the disk has stored them (synchronous=NORMAL). A single publisher is then
// several times as fast. The file survives the end of the process, SIGKILL included. A power cut, or a crash of the
// operating system, can lose all commits since the last checkpoint. Then accepted events are lost, handled events are
// handled again, and purged letters return. It does not corrupt the file. If a checkpoint cannot sync a file, the store
// fails, and the bus reopens it. On Linux, a file that lost commits in another way, such as a damaged log after
// SIGKILL, is refused as without this option.
func WithNormalSync() Option {
	return func(c *config) error {
		c.normal = true
		return nil
	}
}

// WithExclusive opens the file for this process alone, with the index of the write-ahead log in memory. Without it, the
// index is a mapped file (-shm). While the disk hangs or a snapshot freezes the file system, a write to the map blocks
// in the kernel, where the Go runtime cannot interrupt it. The next garbage collection then stops the whole program
// until the disk works again. With WithExclusive, only calls that wait for the store block.
//
// The store locks the lease file from Open to Close, also while it has no lease. In other processes Open fails with a
// *LockedError, so there are no standbys. Tools use the admin API of the running bus (the program eventbus with --url).
// With this option, Open fails with a *LockedError if another store has the lease. It fails with ErrShared if another
// process still has the file open after WithLockWait. WithExclusive is not available on Windows (*OptionError).
func WithExclusive() Option {
	return func(c *config) error {
		c.exclusive = true
		return nil
	}
}

// WithLockWait sets how long the store waits while another program holds the write lock. Then Open, Acquire, Release,
// Reopen and Close fail with ErrBusy. A commit continues to wait, and the store does not fail. The bus ends the waiting
// publications with an unknown outcome (see Store.Blocked). The default is 10 s. d must be from 1 ms to 1 hour.
func WithLockWait(d time.Duration) Option {
	return func(c *config) error {
		if d < time.Millisecond || d > maxLockWait {
			return &OptionError{
				Option: "WithLockWait", Value: d.String(),
				Reason: fmt.Sprintf("must be from %v to %v", time.Millisecond, maxLockWait),
			}
		}
		c.lockWait = d
		return nil
	}
}

// AllowNetworkFileSystem opens a file on a network or FUSE file system, which Open otherwise
// refuses with ErrNetworkFileSystem. Use it only if the file system supports shared memory maps and
// file locks, and only one host uses the file. Otherwise events are lost.
func AllowNetworkFileSystem() Option {
	return func(c *config) error {
		c.network = true
		return nil
	}
}
