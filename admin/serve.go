package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/surebus/eventbus"
)

// Limits of a request.
const (
	maxBody        = 64 << 10 // bytes
	maxQuery       = 4 << 10  // bytes of a query string
	requestTimeout = 30 * time.Second
	// answerTimeout bounds the write of an answer. Before it, the server may read the rest of a body for requestTimeout.
	answerTimeout = requestTimeout + writeTimeout
)

// call is a request in progress.
type call struct {
	*server
	w     http.ResponseWriter
	r     *http.Request
	ctx   context.Context // of the request, with its timeout
	id    string          // the request's id
	route *route          // nil if there is none
	args  map[string]string
	who   Principal
	taken *snapshot // of the page; nil if no figure was needed yet

	// The following are set while a page is drawn for its streams.
	permitted map[Action]bool // instead of the authorizer
	fragment  *bytes.Buffer   // takes the content
	problem   error           // that the page shows
}

// ServeHTTP answers a request. It checks, in this order: host, origin, path, credentials, ReadOnly, and the limits.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{server: s, w: w, r: r, ctx: r.Context(), id: newRequestID()}
	c.setHeaders()
	defer c.recover()
	if r.ContentLength != 0 {
		// Also for peers that are refused: before it answers, the server reads what is left of the body.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(requestTimeout))
	}
	if err := c.serve(); err != nil {
		c.fail(err)
	}
}

func (c *call) serve() error {
	if err := c.checkHost(); err != nil {
		return err
	}
	var unknown error
	c.route, c.args, unknown = c.findRoute()
	if unknown != nil || !c.route.stream && !c.wantsStream() {
		ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
		defer cancel()
		c.ctx = ctx
	}
	actions := []Action{ActionView} // for an unknown path: only operators learn that it is unknown
	if unknown == nil {
		actions = c.route.actions
	}
	if err := c.checkOrigin(); err != nil {
		return err
	}
	if err := c.authorizeAny(actions); err != nil {
		return err
	}
	if unknown != nil {
		return unknown
	}
	if len(c.r.URL.RawQuery) > maxQuery {
		return &Error{Code: CodeTooLarge, Message: "the query is longer than 4096 bytes", Remedy: "send a shorter one"}
	}
	return c.answer()
}

// answer serves the route, for which the request is authorized.
func (c *call) answer() error {
	if c.wantsStream() {
		return c.followPage()
	}
	answer, err := c.route.serve(c)
	if c.route.changes() {
		c.changed()
	}
	if err != nil || answer == nil {
		return err
	}
	status := c.route.status
	if status == 0 {
		status = http.StatusOK
	}
	return c.writeJSON(status, answer)
}

// findRoute returns the route of the path behind the prefix.
func (c *call) findRoute() (*route, map[string]string, error) {
	rest, ok := strings.CutPrefix(c.r.URL.EscapedPath(), c.prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return nil, nil, notFound("there is no such path", "the handler is mounted at "+c.prefix+"/")
	}
	return find(c.routes, c.r.Method, rest)
}

// setHeaders sets the headers of every answer.
func (c *call) setHeaders() {
	h := c.w.Header()
	h.Set("X-Request-Id", c.id)
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "+
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// checkHost refuses names that are not the handler's own. A page of another name may resolve to this address (DNS
// rebinding), and the browser would take the handler for a part of its site.
func (c *call) checkHost() error {
	name, port := splitHost(c.r.Host)
	switch name {
	case "localhost", "127.0.0.1", "::1":
		return nil
	}
	for _, h := range c.hosts {
		wantName, wantPort := splitHost(h)
		if name != "" && name == wantName && (wantPort == "" || wantPort == port) {
			return nil
		}
	}
	return forbidden("the handler is not served under this host name", "use localhost, or add the name with admin.WithHosts")
}

// checkOrigin refuses changes that a page of another origin has sent.
func (c *call) checkOrigin() error {
	switch c.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return nil
	}
	err := c.protection.Check(c.r)
	origin := c.r.Header.Get("Origin")
	if origin != "" && origin != "null" && err == nil {
		// The protection compares hosts only, and ignores a user in front of them.
		if u, bad := url.Parse(origin); bad != nil || u.Scheme+"://"+u.Host != origin {
			err = errors.New("origin is malformed")
		}
	}
	if err == nil && c.r.Method == http.MethodPost && origin == "" && c.r.Header.Get("Sec-Fetch-Site") == "" && isForm(c.r) {
		err = errors.New("form without an origin") // any site can send one from an old browser
	}
	if err != nil {
		return &Error{Code: CodeForbidden, Message: "the request comes from another site", Remedy: "use the pages of this handler, over TLS or on localhost; a program sends Content-Type: application/json", err: err}
	}
	return nil
}

// isForm reports whether a page of any site could send the request without asking first.
func isForm(r *http.Request) bool {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err != nil || media == "application/x-www-form-urlencoded" || media == "multipart/form-data" || media == "text/plain"
}

// authorizeAny authorizes the request for one of several actions.
func (c *call) authorizeAny(actions []Action) (err error) {
	for _, action := range actions {
		if err = c.authorizeOne(action); err == nil {
			return nil
		}
	}
	c.auditDenied(actions[0], err, bulkSet{}, "")
	return err
}

// needFor authorizes the request for an action that its path does not determine, with a query and a reason for the
// audit.
func (c *call) needFor(action Action, set bulkSet, why string) error {
	err := c.authorizeOne(action)
	if err != nil {
		c.auditDenied(action, err, set, why)
	}
	return err
}

// may reports whether the operator may perform an action.
func (c *call) may(action Action) bool { return c.authorizeOne(action) == nil }

// authorizeOne asks the authorizer, and applies ReadOnly.
func (c *call) authorizeOne(action Action) error {
	if c.permitted != nil {
		if !c.permitted[action] {
			return ErrForbidden
		}
		return nil
	}
	authorize := c.authorize
	if authorize == nil {
		authorize = authorizeLocal
	}
	who, err := authorized(authorize, c.r, action)
	if who.Name != "" {
		c.who = who
	}
	var own *Error
	switch {
	case err != nil && !errors.As(err, &own) && !errors.As(err, new(*RateLimitError)) && !errors.Is(err, ErrUnauthenticated) && !errors.Is(err, ErrForbidden):
		return internal("the authorizer failed", err)
	case err != nil:
		return err
	case !validName(who.Name):
		return internal("the authorizer returned an invalid principal", fmt.Errorf("name %q must have 1 to 255 bytes of UTF-8 without control characters", who.Name))
	case c.readOnly && action.changes():
		return readOnly("the handler is read-only", "use one that was made without admin.ReadOnly")
	}
	return nil
}

// authorized calls an authorizer, which may panic.
func authorized(authorize Authorizer, r *http.Request, action Action) (who Principal, err error) {
	defer func() {
		if p := recover(); p != nil {
			who, err = Principal{}, fmt.Errorf("authorizer panicked: %s", panicText(p))
		}
	}()
	return authorize(r, action)
}

func validName(name string) bool {
	return name != "" && len(name) <= 255 && utf8.ValidString(name) && strings.IndexFunc(name, unicode.IsControl) < 0
}

// panicText returns the value of a panic if it is a string or an error, and its type otherwise.
func panicText(p any) string {
	switch p := p.(type) {
	case string:
		return p
	case error:
		return p.Error()
	}
	return fmt.Sprintf("%T", p)
}

// attributes returns the log attributes of the request. The values are untrusted: slog's handlers quote them.
func (c *call) attributes(more ...any) []any {
	return append([]any{
		slog.String("request_id", c.id), slog.String("remote", cut(c.r.RemoteAddr, 200)), slog.String("by", c.who.Name),
		slog.String("method", cut(c.r.Method, 20)), slog.String("path", cut(c.r.URL.Path, 200)),
	}, more...)
}

// cut shortens a text for the log.
func cut(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// auditText returns a text that the audit accepts.
func auditText(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, cut(text, 200))
}

// operator returns the options that name the operator and the reason.
func (c *call) operator(why string) []eventbus.DirectiveOption {
	opts := []eventbus.DirectiveOption{eventbus.By(c.who.Name), eventbus.FromRequest(auditText(c.r.RemoteAddr), c.id)}
	if why != "" {
		opts = append(opts, eventbus.Because(why))
	}
	return opts
}

// recover answers a panic of the function, or of user code such as the MarshalJSON of a payload.
func (c *call) recover() {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(p)
	}
	c.log.Error("admin request panicked", c.attributes(slog.String("panic", panicText(p)), slog.String("stack", string(debug.Stack())))...)
	c.fail(internal("an internal error", nil))
}

// fail writes an error.
func (c *call) fail(err error) {
	e := c.report(err)
	for name, value := range e.header {
		c.w.Header().Set(name, value)
	}
	if c.route != nil && c.wantsStream() {
		c.w.Header().Del("WWW-Authenticate") // the browser would ask for a password in the middle of a page
	}
	if c.isPage() {
		c.failPage(e)
		return
	}
	if err := c.writeJSON(e.Status(), ErrorAnswer{e}); err != nil {
		c.log.Error("admin answer failed", c.attributes(slog.String("error", err.Error()))...)
	}
}

// report logs an error, and returns what the peer may see of it.
func (c *call) report(err error) *Error {
	e := *errorOf(err)
	e.RequestID = c.id
	if e.err != nil && !errors.Is(e.err, context.Canceled) {
		c.log.Error("admin request failed", c.attributes(slog.String("code", string(e.Code)), slog.String("error", cut(e.err.Error(), 4096)))...)
	}
	switch e.Code { //nolint:exhaustive // the others are no denials
	case CodeUnauthenticated, CodeForbidden, CodeReadOnly, CodeRateLimited:
		c.log.Warn("admin request denied", c.attributes(slog.String("code", string(e.Code)), slog.String("reason", e.Message))...)
	}
	return &e
}

// writeJSON writes an answer. An error means that nothing was written.
func (c *call) writeJSON(status int, answer any) error {
	body, err := json.Marshal(answer)
	if err != nil {
		return internal("the answer cannot be encoded", err)
	}
	c.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	c.setWriteDeadline(answerTimeout)
	c.w.WriteHeader(status)
	_, _ = c.w.Write(append(body, '\n')) // the peer may have gone
	return nil
}
