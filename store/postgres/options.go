package postgres

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver/storekit"
)

// Option is an option of Open and OpenPool.
type Option func(*config) error

type config struct {
	schema    string
	leaseTime time.Duration
	history   time.Duration
	async     bool
	mustExist bool
	logger    *zap.Logger
}

const (
	defaultLeaseTime = 15 * time.Second
	leastLeaseTime   = 2 * time.Second
	maxSchemaName    = 63 // bytes of an identifier of Postgres
	identifier       = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
)

func newConfig(opts []Option) (*config, error) {
	c := &config{schema: "eventbus", leaseTime: defaultLeaseTime, logger: zap.NewNop()}
	for _, opt := range opts {
		if opt == nil {
			return nil, &OptionError{Option: "nil", Value: "nil", Reason: "an option must not be nil"}
		}
		if err := opt(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// OptionError reports an option that is wrong. It matches driver.ErrInvalidOption.
type OptionError = storekit.OptionError

// WithSchema sets the schema of the tables. The default is eventbus. Use a separate schema for each bus with data of
// its own.
func WithSchema(name string) Option {
	return func(c *config) error {
		reason := ""
		switch {
		case name == "":
			reason = "must not be empty; leave the option out for the schema eventbus"
		case len(name) > maxSchemaName:
			reason = fmt.Sprintf("is longer than %d bytes, and the server would cut it", maxSchemaName)
		case strings.Trim(name, identifier) != "":
			reason = "must have letters, digits and _ only"
		case strings.HasPrefix(name, "pg_") || name == "information_schema":
			reason = "belongs to the server"
		}
		if reason != "" {
			return &OptionError{Option: "WithSchema", Value: strconv.Quote(name), Reason: reason}
		}
		c.schema = name
		return nil
	}
}

// WithLeaseTime sets how long the lease lasts after its last renewal, by the server's clock. The default is 15 s. The
// store renews it every half second. If the server does not answer, publications wait for this time. Then the store
// fails, and a standby that reaches the server takes over. d must be at least 2 s.
func WithLeaseTime(d time.Duration) Option {
	return func(c *config) error {
		if d < leastLeaseTime {
			return &OptionError{Option: "WithLeaseTime", Value: d.String(), Reason: fmt.Sprintf("must be at least %v: shorter outages would change the active bus", leastLeaseTime)}
		}
		c.leaseTime = d
		return nil
	}
}

// WithHistory keeps the id, the type, the key and the outcome of each dispatch for some time after it has settled. Without
// the option, a handled event leaves nothing behind. See Store.History. retention must be more than 0.
func WithHistory(retention time.Duration) Option {
	return func(c *config) error {
		if retention <= 0 {
			return &OptionError{Option: "WithHistory", Value: retention.String(), Reason: "must be more than 0; leave the option out for no history"}
		}
		c.history = retention
		return nil
	}
}

// WithAsynchronousCommit commits with synchronous_commit=off: the server confirms before its disk has the commit. A
// crash of the server, but not of this process, then loses the commits of about the last 0.6 s (three times
// wal_writer_delay). Events for which Publish returned nil may be among them.
func WithAsynchronousCommit() Option {
	return func(c *config) error {
		c.async = true
		return nil
	}
}

// MustExist is for tools: Open neither creates nor migrates the schema, and returns ErrNotMigrated.
func MustExist() Option {
	return func(c *config) error {
		c.mustExist = true
		return nil
	}
}

// WithLogger sets the logger. The default logs nothing.
func WithLogger(l *zap.Logger) Option {
	return func(c *config) error {
		if l == nil {
			return &OptionError{Option: "WithLogger", Value: "nil", Reason: "must not be nil; leave the option out for no log"}
		}
		c.logger = l
		return nil
	}
}
