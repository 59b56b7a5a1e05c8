package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// minToken is the least length of a bearer token, in bytes.
const minToken = 16

// BasicAuth returns an authorizer for one operator with a user name and a password, who may perform the given actions,
// or all without any. Serve over TLS only: the browser sends the password with each request.
//
// The comparison takes the same time for every user name and password. After 5 failures, a peer gets a
// *RateLimitError, also with the right password, and one more attempt each second.
//
// Errors: an *eventbus.OptionError for an empty user or password, such as one from an unset environment variable.
func BasicAuth(user, password string, actions ...Action) (Authorizer, error) {
	switch {
	case !validName(user) || strings.Contains(user, ":"):
		return nil, invalid("BasicAuth", "user", "the user name must have 1 to 255 bytes without colons and control characters")
	case password == "":
		return nil, invalid("BasicAuth", "password", "the password must not be empty; is its environment variable set?")
	}
	want := sha256.Sum256([]byte(user + ":" + password))
	return (&credentials{
		principal: Principal{Name: user}, actions: actions, challenge: `Basic realm="eventbus", charset="UTF-8"`,
		check: func(r *http.Request) (given, valid bool) {
			u, p, given := r.BasicAuth()
			got := sha256.Sum256([]byte(u + ":" + p))
			return given, subtle.ConstantTimeCompare(got[:], want[:]) == 1
		},
	}).authorize, nil
}

// BearerToken returns an authorizer for programs that send "Authorization: Bearer TOKEN". name is the operator in the
// audit. It is as BasicAuth otherwise. A token has at least 16 bytes.
//
// Errors: an *eventbus.OptionError for an invalid name, or a token that is empty or too short.
func BearerToken(name, token string, actions ...Action) (Authorizer, error) {
	switch {
	case !validName(name):
		return nil, invalid("BearerToken", "name", "the name must have 1 to 255 bytes without control characters")
	case len(token) < minToken:
		return nil, invalid("BearerToken", "token", "the token must have at least 16 bytes; is its environment variable set?")
	}
	want := sha256.Sum256([]byte(token))
	return (&credentials{
		principal: Principal{Name: name}, actions: actions, challenge: `Bearer realm="eventbus"`,
		check: func(r *http.Request) (given, valid bool) {
			scheme, token, given := strings.Cut(r.Header.Get("Authorization"), " ")
			given = given && strings.EqualFold(scheme, "Bearer")
			got := sha256.Sum256([]byte(token))
			return given, subtle.ConstantTimeCompare(got[:], want[:]) == 1 && given
		},
	}).authorize, nil
}

// credentials authorizes one operator.
type credentials struct {
	principal Principal
	actions   []Action // empty: all
	challenge string
	check     func(*http.Request) (given, valid bool) // fast, and without user code
	failures  limiter
}

func (c *credentials) authorize(r *http.Request, action Action) (Principal, error) {
	peer, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		peer = r.RemoteAddr
	}
	given, valid, wait := c.failures.attempt(peer, func() (given, valid bool) { return c.check(r) })
	switch {
	case wait > 0:
		return Principal{}, &RateLimitError{RetryAfter: wait}
	case !given || !valid:
		return Principal{}, &ChallengeError{c.challenge}
	case len(c.actions) > 0 && !slices.Contains(c.actions, action):
		return c.principal, ErrForbidden
	}
	return c.principal, nil
}

// Limits of failed logins.
const (
	freeFailures  = 5
	failureRefill = time.Second // until a further attempt is accepted
	maxPeers      = 1024        // that are counted apart; the others share one count
)

// limiter counts the failed logins of each peer. The zero value is ready.
type limiter struct {
	mu    sync.Mutex           // guards peers; a leaf
	peers map[string]time.Time // when each peer has no failure left that counts
}

// attempt checks the credentials of a peer, or returns how long it must wait. The lock is held during the check, so
// that concurrent guesses are counted one by one.
func (l *limiter) attempt(peer string, check func() (given, valid bool)) (given, valid bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	peer, until := l.findLocked(peer, now)
	if wait := max(until.Sub(now), 0) - (freeFailures-1)*failureRefill; wait > 0 {
		return false, false, wait
	}
	given, valid = check()
	if given && !valid {
		if until.Before(now) {
			until = now
		}
		if l.peers == nil {
			l.peers = make(map[string]time.Time)
		}
		l.peers[peer] = until.Add(failureRefill)
	}
	return given, valid, 0
}

// findLocked returns the name under which a peer is counted, and its entry.
func (l *limiter) findLocked(peer string, now time.Time) (string, time.Time) {
	until, known := l.peers[peer]
	if known || len(l.peers) < maxPeers {
		return peer, until
	}
	for name, end := range l.peers {
		if end.Before(now) {
			delete(l.peers, name)
		}
	}
	if len(l.peers) >= maxPeers {
		return "", l.peers[""]
	}
	return peer, time.Time{}
}
