package admin

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Action names what a request does, for an Authorizer. Every route has one.
type Action string

// The actions. All but ActionView and ActionViewPayload change the bus.
const (
	ActionView        Action = "view"         // lists, metrics and letters without payloads
	ActionViewPayload Action = "view_payload" // payloads, and the export of letters
	ActionReplay      Action = "replay"
	ActionEdit        Action = "edit" // replay with another payload
	ActionImport      Action = "import"
	ActionPurge       Action = "purge"
	ActionControl     Action = "control" // pause, resume, hold, trip and reset a subscription
	ActionCancel      Action = "cancel"  // cancel an event that has not settled
	ActionRetry       Action = "retry"   // end the wait of an event for its retry
	ActionGiveUp      Action = "give_up" // turn a waiting event into dead letters
	ActionRetire      Action = "retire"  // end the name of a subscription, with its deliveries
)

// Actions returns all actions.
func Actions() []Action {
	return []Action{
		ActionView, ActionViewPayload, ActionReplay, ActionEdit, ActionImport, ActionPurge, ActionControl, ActionCancel, ActionRetry,
		ActionGiveUp, ActionRetire,
	}
}

// changes reports whether the action changes the bus.
func (a Action) changes() bool { return a != ActionView && a != ActionViewPayload }

// Principal is the operator on whose behalf a request is made.
type Principal struct {
	// Name is the operator's name in the audit: 1 to 255 bytes of UTF-8 without control characters.
	Name string
}

// Authorizer decides whether a request may perform an action, and returns who makes it. The handler calls it for every
// request, also for unknown paths, and may call it several times for a request, with different actions. It must be safe
// for concurrent use.
//
// Errors: ErrUnauthenticated or a *ChallengeError if the request has no valid credentials (401), ErrForbidden if the
// operator may not perform the action (403), a *RateLimitError (429). The answer to any other error, and to
// a panic, is 500. Every error denies the request. With ErrForbidden, return the principal too: the audit has
// denied changes.
type Authorizer func(r *http.Request, action Action) (Principal, error)

// Errors of an Authorizer, for errors.Is.
var (
	// ErrUnauthenticated reports that a request has no valid credentials.
	ErrUnauthenticated = errors.New("admin: no valid credentials")
	// ErrForbidden reports that an operator may not perform an action.
	ErrForbidden = errors.New("admin: action not permitted")
)

// ChallengeError reports that a request has no valid credentials, and how to authenticate. It matches
// ErrUnauthenticated.
type ChallengeError struct {
	Challenge string // the WWW-Authenticate header of the answer: `Basic realm="eventbus"`
}

// Error returns the text of the error.
func (e *ChallengeError) Error() string { return ErrUnauthenticated.Error() }

// Is reports whether target is ErrUnauthenticated.
func (e *ChallengeError) Is(target error) bool { return target == ErrUnauthenticated }

// RateLimitError reports that a peer has failed to authenticate too often.
type RateLimitError struct {
	RetryAfter time.Duration // until the next attempt is accepted
}

// Error returns the text of the error.
func (e *RateLimitError) Error() string {
	return "admin: too many failed logins; try again in " + strconv.Itoa(e.seconds()) + " s"
}

// seconds returns RetryAfter, rounded up.
func (e *RateLimitError) seconds() int { return int((e.RetryAfter + time.Second - 1) / time.Second) }

// forwarded are headers that a proxy adds. A loopback peer that sends one is a proxy, and its client is unknown.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"}

// authorizeLocal is the authorizer of a handler without WithAuthorizer.
func authorizeLocal(r *http.Request, action Action) (Principal, error) {
	who := Principal{Name: "local"}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() ||
		slices.ContainsFunc(forwarded, func(name string) bool { return len(r.Header.Values(name)) > 0 }) {
		return Principal{}, forbidden("without an authorizer, only loopback peers are served, and not through a proxy",
			"give the handler admin.WithAuthorizer, for example admin.BasicAuth")
	}
	switch {
	case action.changes():
		return who, readOnly("without an authorizer, the handler is read-only",
			"give the handler admin.WithAuthorizer, for example admin.BasicAuth")
	case action != ActionView:
		return who, forbidden("without an authorizer, payloads are hidden",
			"give the handler admin.WithAuthorizer, and permit "+string(action))
	}
	return who, nil
}
