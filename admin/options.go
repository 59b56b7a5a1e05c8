package admin

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path"
	"strings"

	"github.com/surebus/eventbus"
)

// Option is an option of New and Handler.
type Option func(*config) error

// config has the options of a handler.
type config struct {
	authorize Authorizer // nil: local reads only
	readOnly  bool
	hosts     []string // besides the loopback names
	prefix    string   // "" or "/admin"
	redact    func(Text) string
	log       *slog.Logger
}

func newConfig(opts []Option) (*config, error) {
	c := &config{log: slog.New(slog.DiscardHandler)}
	for i, o := range opts {
		if o == nil {
			return nil, invalid("New", "nil", fmt.Sprintf("option %d is nil; leave it out", i))
		}
		if err := o(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func invalid(option, value, reason string) error {
	return &eventbus.OptionError{Option: option, Value: value, Reason: reason}
}

// WithAuthorizer sets the function that decides which operator may perform which action. Without it the handler is
// read-only, and serves loopback peers only.
func WithAuthorizer(a Authorizer) Option {
	return func(c *config) error {
		if a == nil {
			return invalid("WithAuthorizer", "nil", "leave the option out for local reads only")
		}
		c.authorize = a
		return nil
	}
}

// ReadOnly refuses every change with the code read_only, whatever the authorizer permits.
func ReadOnly() Option {
	return func(c *config) error {
		c.readOnly = true
		return nil
	}
}

// WithHosts adds names to the Host headers that the handler serves: "admin.example.com" with any port, or
// "admin.example.com:8443". Without it, the handler serves localhost, 127.0.0.1 and [::1] only, which stops DNS
// rebinding. Give the name that the browser shows, also behind a proxy.
func WithHosts(hosts ...string) Option {
	return func(c *config) error {
		for _, h := range hosts {
			name, port := splitHost(h)
			_, err := netip.ParseAddr(name)
			if name == "" || err != nil && strings.ContainsAny(name, ":/*@ \t\r\n[]") || strings.Trim(port, "0123456789") != "" {
				return invalid("WithHosts", fmt.Sprintf("%q", h), `must be a host, or a host and a port, as in "admin.example.com:8443"; patterns are not supported`)
			}
			c.hosts = append(c.hosts, strings.ToLower(h))
		}
		return nil
	}
}

// splitHost splits a Host header into a name, in lower case and without brackets, and a port, which may be empty.
func splitHost(host string) (name, port string) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ""
	}
	return strings.ToLower(name), port
}

// WithPrefix sets the path under which the handler is mounted: "/admin" for mux.Handle("/admin/", handler).
// The handler removes it from the paths of requests; do not use http.StripPrefix as well. By default it is
// mounted at the root.
func WithPrefix(prefix string) Option {
	return func(c *config) error {
		trimmed := strings.TrimSuffix(prefix, "/")
		if trimmed != "" && (path.Clean(trimmed) != trimmed || trimmed[0] != '/' || strings.ContainsAny(trimmed, "%?#{}\\\" ")) {
			return invalid("WithPrefix", fmt.Sprintf("%q", prefix), `must be a clean absolute path without escapes, as in "/admin"`)
		}
		c.prefix = trimmed
		return nil
	}
}

// WithRedactor sets a function that replaces texts from events and handlers in all answers: error texts, metadata
// values, keys, and payloads for operators with ActionViewPayload. The function must be safe for concurrent use. If it
// panics, the text is replaced. With a redactor, the export of dead letters is refused: an import of redacted letters
// would replay wrong events.
//
// Without it, every operator with ActionView sees error texts, metadata and keys. ActionViewPayload is needed for
// payloads.
func WithRedactor(redact func(Text) string) Option {
	return func(c *config) error {
		if redact == nil {
			return invalid("WithRedactor", "nil", "leave the option out to show texts unchanged")
		}
		c.redact = redact
		return nil
	}
}

// WithLogger sets the log for denied calls, changes and internal errors. Entries have the request id, and no payloads
// and no credentials. By default the handler does not log.
func WithLogger(log *slog.Logger) Option {
	return func(c *config) error {
		if log == nil {
			return invalid("WithLogger", "nil", "leave the option out for no log")
		}
		c.log = log
		return nil
	}
}
