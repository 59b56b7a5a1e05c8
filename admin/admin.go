package admin

import (
	"html/template"
	"log/slog"
	"net/http"

	"github.com/surebus/eventbus"
)

// New returns a handler for a bus, in memory or with a store, running or made WithoutHandlers.
//
// The handler does not listen, and registers nowhere. It has one timer while the bus lives, for the charts, and goroutines
// while operations run and live pages are open. They end when Shutdown of the bus begins.
//
// Errors: an *eventbus.OptionError for a nil bus and for an invalid option.
func New(bus *eventbus.Bus, opts ...Option) (http.Handler, error) {
	if bus.Stopping() == nil {
		return nil, invalid("New", "nil", "the bus must be made with eventbus.New")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s := &server{bus: bus, tool: isTool(bus), config: c, protection: http.NewCrossOriginProtection()}
	s.routes = append(apiRoutes(), pageRoutes()...)
	if s.pages, err = parsePages(c.prefix); err != nil {
		return nil, err // a mistake in this package
	}
	s.history.start(bus)
	return s, nil
}

// Handler is New for a bus and options that are known to be valid. It does not panic: after an error of New, the
// handler answers every request with the status 500 and the error.
func Handler(bus *eventbus.Bus, opts ...Option) http.Handler {
	h, err := New(bus, opts...)
	if err == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{server: &server{config: &config{log: slog.New(slog.DiscardHandler)}}, w: w, r: r, id: newRequestID()}
		c.setHeaders()
		c.fail(&Error{Code: CodeInternal, Message: err.Error(), Remedy: "correct the options of admin.Handler"})
	})
}

// server is the handler.
type server struct {
	*config
	bus        *eventbus.Bus
	tool       bool // made WithoutHandlers
	routes     []*route
	pages      map[string]*template.Template
	protection *http.CrossOriginProtection

	history      history
	operations   operations
	reports      reports
	live         live
	oldest       oldest
	sharedCauses shared[causes]
}

func newRequestID() string { return eventbus.NewEventID().String() }
