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
	beside       bool
	normal       bool
	network      bool
	exclusive    bool
	logger       *zap.Logger
	lockWait     time.Duration
	leaseWait    time.Duration // 0: none
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
	if reason := c.notExclusive(); c.exclusive && reason != "" {
		return nil, &OptionError{Option: "WithExclusive", Reason: reason}
	}
	if c.beside && c.leaseWait != 0 {
		return nil, &OptionError{
			Option: "WaitForLease", Value: c.leaseWait.String(),
			Reason: "cannot be combined with Beside, which takes no lease; leave it out",
		}
	}
	return c, nil
}

// notExclusive returns why WithExclusive cannot be used, or "".
func (c *config) notExclusive() string {
	switch {
	case c.beside:
		return "cannot be combined with Beside: a store with the lease has the file alone"
	case runtime.GOOS == "windows":
		return "is not available on Windows"
	}
	return ""
}

// Beside opens the file without taking the lease, for tools and other processes. The store reads and
// writes beside the bus that has the lease: it publishes free records, takes, adds and lists dead
// letters, and changes directives. Claim returns driver.ErrNoLease. Open fails if the file does not exist, or
// has an older schema (ErrNotMigrated). A bus that was made with eventbus.WithoutHandlers works on the dead letters of
// such a file and gives directives to its subscriptions, while the bus that runs the handlers works or while none does.
//
// A store that only reads takes no write lock and writes nothing. The first commit of the store waits until
// the write-ahead log is written and synced again, up to 16 MiB usually. The system's cache forgets the file
// then.
func Beside() Option {
	return func(c *config) error {
		c.beside = true
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

// WithNormalSync makes commits return before the disk has stored them (synchronous=NORMAL). A single
// publisher is then several times as fast. The file survives the end of the process, SIGKILL
// included. A power cut, or a crash of the operating system, can take all commits since the last
// checkpoint: accepted events are lost, handled events are handled again, and purged letters
// return. It does not corrupt the file. If a checkpoint cannot sync a file, the store fails, and the bus
// reopens it. On Linux, a file that lost commits in another way, such as a damaged log after SIGKILL, is
// refused as without this option.
func WithNormalSync() Option {
	return func(c *config) error {
		c.normal = true
		return nil
	}
}

// WithExclusive opens the file for this process alone, with the index of the write-ahead log in memory. Without it,
// the index is a mapped file (-shm): while the disk hangs or a snapshot freezes the file system, writing to the map
// blocks in the kernel, where the Go runtime cannot interrupt it, and the next garbage collection stops the whole
// program until the disk works again. With it, only what waits for the store waits.
//
// Other processes are refused: Beside with a *LockedError, so that a tool uses the admin API of the running
// bus (the program eventbus with --url). Open fails with ErrShared if another process still has the file open after
// WithLockWait. WithExclusive cannot be combined with Beside, and is not available on Windows (*OptionError).
func WithExclusive() Option {
	return func(c *config) error {
		c.exclusive = true
		return nil
	}
}

// WithLockWait sets how long the store waits while another process holds the write lock. Then it
// fails with ErrBusy. The default is 10 s. d must be from 1 ms to 1 hour.
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

// WaitForLease makes Open wait for up to d while another store holds the lease, for instance that of the process
// which a deploy replaces. Without it, Open fails at once. d must be more than 0. The context of Open bounds the
// wait too.
//
// Open looks every 50 ms, and takes the lease within that time after the other store is closed or its process
// has ended. Of several stores that wait, any one gets it. A process that waits has no bus yet: it can neither
// publish nor look at dead letters, and nothing of it has begun.
//
// When d is over, the error is a *LockedError with the holder and the time of the wait. When the context ends
// before, the error also matches the context's error. WaitForLease cannot be combined with Beside
// (*OptionError).
func WaitForLease(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return &OptionError{
				Option: "WaitForLease", Value: d.String(),
				Reason: "must be more than 0; leave the option out to fail at once",
			}
		}
		c.leaseWait = d
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
