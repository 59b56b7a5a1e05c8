package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// minToken is the least length of a bearer token, in bytes.
const minToken = 16

// Operator has the credentials and the permissions of an operator.
type Operator struct {
	Name    string   // the name of the Principal
	Secret  string   // the password, or the token
	Actions []Action // the permitted actions; nil permits all
}

// BasicAuth returns an authorizer for operators with a name and a password. Serve over TLS only: the browser
// sends the password with each request.
//
// Every comparison takes the same time, whether the name or the password is wrong. After 5 failures, the requests of a
// peer return a *RateLimitError, also with the right password, apart from one attempt each second. A peer is an IPv4
// address, or the first 64 bits of an IPv6 address. A peer without failures is admitted at once with the right
// password, however many other peers fail. 65,536 peers are counted, which takes about 10 MB.
//
// Behind a proxy, all clients are one peer, so an attacker locks out the others. Use a handler in front that sets
// Request.RemoteAddr from a header that the proxy overwrites.
//
// Errors: an *eventbus.OptionError without operators, for a repeated or invalid name, an unknown action, and
// an empty password, such as one from an unset environment variable.
func BasicAuth(operators ...Operator) (Authorizer, error) {
	return newCredentials("BasicAuth", 1, `Basic realm="eventbus", charset="UTF-8"`, operators,
		func(o Operator) string { return o.Name + ":" + o.Secret },
		func(r *http.Request) (string, bool) {
			name, password, given := r.BasicAuth()
			return name + ":" + password, given
		})
}

// BearerToken returns an authorizer for programs that send "Authorization: Bearer TOKEN". A token has at least 16
// bytes. Comparisons and rate limits work as in BasicAuth: after 5 failures a peer gets a *RateLimitError, and one
// attempt each second.
//
// Errors: those of BasicAuth, and an *eventbus.OptionError for a token that is too short.
func BearerToken(operators ...Operator) (Authorizer, error) {
	return newCredentials("BearerToken", minToken, `Bearer realm="eventbus"`, operators,
		func(o Operator) string { return o.Secret },
		func(r *http.Request) (string, bool) {
			scheme, token, given := strings.Cut(r.Header.Get("Authorization"), " ")
			return token, given && strings.EqualFold(scheme, "Bearer")
		})
}

// credentials authorizes operators by what a request presents.
type credentials struct {
	operators []Operator // without secrets
	digests   [][sha256.Size]byte
	challenge string
	presented func(*http.Request) (text string, given bool)
	failures  limiter
}

// newCredentials returns an authorizer. text is what a request of an operator presents.
func newCredentials(option string, minSecret int, challenge string, operators []Operator,
	text func(Operator) string, presented func(*http.Request) (string, bool),
) (Authorizer, error) {
	c := &credentials{challenge: challenge, presented: presented}
	for i, o := range operators {
		refuse := func(reason string) (Authorizer, error) {
			return nil, invalid(option, fmt.Sprintf("operator %d", i), reason)
		}
		switch {
		case !validName(o.Name) || strings.Contains(o.Name, ":"):
			return refuse("the name must have 1 to 255 bytes of UTF-8 without colons and control characters")
		case slices.ContainsFunc(c.operators, func(x Operator) bool { return x.Name == o.Name }):
			return refuse("another operator has the name; give each a name of its own, for the audit")
		case len(o.Secret) < minSecret:
			return refuse(fmt.Sprintf("the password or token must have at least %d bytes; is its environment variable set?", minSecret))
		case slices.ContainsFunc(o.Actions, func(a Action) bool { return !slices.Contains(Actions(), a) }):
			return refuse(fmt.Sprintf("an action is unknown; use those of %v", Actions()))
		}
		c.digests = append(c.digests, sha256.Sum256([]byte(text(o))))
		o.Secret, o.Actions = "", slices.Clone(o.Actions)
		c.operators = append(c.operators, o)
	}
	if len(operators) == 0 {
		return nil, invalid(option, "none", "give at least one operator")
	}
	return c.authorize, nil
}

func (c *credentials) authorize(r *http.Request, action Action) (Principal, error) {
	text, given := c.presented(r)
	if !given { // a browser's first request has none
		return Principal{}, &ChallengeError{c.challenge}
	}
	digest := sha256.Sum256([]byte(text)) // of up to a megabyte: not under the lock of the limiter
	var who *Operator
	if wait := c.failures.attempt(peerOf(r.RemoteAddr), func() bool {
		who = c.operator(digest)
		return who != nil
	}); wait > 0 {
		return Principal{}, &RateLimitError{RetryAfter: wait}
	}
	switch {
	case who == nil:
		return Principal{}, &ChallengeError{c.challenge}
	case who.Actions != nil && !slices.Contains(who.Actions, action):
		return Principal{Name: who.Name}, ErrForbidden
	}
	return Principal{Name: who.Name}, nil
}

// operator returns the operator with a digest, or nil. It compares all of them, so that the time says nothing.
func (c *credentials) operator(digest [sha256.Size]byte) (found *Operator) {
	for i := range c.digests {
		if subtle.ConstantTimeCompare(digest[:], c.digests[i][:]) == 1 {
			found = &c.operators[i]
		}
	}
	return found
}
