package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// client speaks to the admin API of a running bus.
type client struct {
	base string // without a slash at the end, and without credentials
	http *http.Client
	auth string // of the Authorization header, or ""

	header http.Header // of --header and EVENTBUS_HEADERS
}

// requestTimeout bounds a request that is not a stream.
const requestTimeout = 60 * time.Second

// maxAnswer bounds an answer that is not a stream.
const maxAnswer = 256 << 20

func newClient(base string, with connection) (*client, error) {
	const next = "give the address of the admin page, such as --url https://shop.example/admin"
	u, err := url.Parse(base)
	if err != nil {
		// The error of Parse has the URL, which may have a password.
		return nil, usage(next, "the URL is invalid")
	}
	switch {
	case u.User != nil:
		return nil, usage("set EVENTBUS_USER and EVENTBUS_PASSWORD, or EVENTBUS_TOKEN", "the URL %s has credentials, which others could see", u.Redacted())
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, usage(next, "the URL %q is not of the form http://HOST/PATH or https://HOST/PATH", base)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, usage(next, "the URL has a query or a fragment")
	}
	c := &client{base: strings.TrimRight(u.String(), "/")}
	if c.auth, err = credentials(); err != nil {
		return nil, err
	}
	if c.header, err = with.header(); err != nil {
		return nil, err
	}
	settings, err := with.tls()
	switch plain := u.Scheme == "http"; {
	case err != nil:
		return nil, err
	case c.auth != "" && c.header.Get("Authorization") != "":
		return nil, usage("unset one of them", "EVENTBUS_HEADERS has Authorization, and EVENTBUS_TOKEN or EVENTBUS_USER is set")
	case (c.auth != "" || len(c.header) > 0) && plain && !isLoopback(u.Hostname()):
		what := "credentials"
		if c.auth == "" {
			what = "headers"
		}
		return nil, usage("use https, or a tunnel such as ssh -L 8080:localhost:8080 "+u.Hostname(), "http://%s would send the %s unencrypted", u.Host, what)
	case plain && settings != nil:
		return nil, usage("use https", "--client-cert, --client-key and --ca need https, and the URL is http")
	}
	c.http = &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: requestTimeout, TLSClientConfig: settings, ForceAttemptHTTP2: true},
		// A redirect could carry the credentials elsewhere, or turn a POST into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// credentials returns the Authorization header that the environment gives.
func credentials() (string, error) {
	token, user, password := env("EVENTBUS_TOKEN"), env("EVENTBUS_USER"), env("EVENTBUS_PASSWORD")
	switch {
	case token != "" && (user != "" || password != ""):
		return "", usage("unset one of them", "EVENTBUS_TOKEN and EVENTBUS_USER or EVENTBUS_PASSWORD are set")
	case token != "":
		return "Bearer " + token, nil
	case (user == "") != (password == ""):
		return "", usage("set both", "only one of EVENTBUS_USER and EVENTBUS_PASSWORD is set")
	case user != "":
		r := http.Request{Header: make(http.Header)}
		r.SetBasicAuth(user, password)
		return r.Header.Get("Authorization"), nil
	}
	return "", nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// apiError is the error of an answer.
type apiError struct {
	Status    int    `json:"-"`
	Code      string `json:"code"`
	Message   string `json:"message"`
	Remedy    string `json:"remedy"`
	RequestID string `json:"request_id"`

	Report *eventbus.ActionReport `json:"report"` // of nothing_done
}

func (e *apiError) Error() string {
	text := e.Message
	if e.Code != "" {
		text = e.Code + ": " + text
	}
	if e.RequestID != "" {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// exitCodeOf returns the exit code for the code of an answer.
func (e *apiError) exitCode() int {
	switch e.Code {
	case "bad_request", "unprocessable", "too_large":
		return exitUsage
	case "not_found":
		return exitNotFound
	case "conflict", "stale_count", "no_subscription", "settled", "nothing_done":
		return exitConflict
	}
	return exitFailure
}

// do sends a request and returns the answer, whose body the caller closes. An answer with another status than
// 2xx is an error.
func (c *client) do(ctx context.Context, method, path string, query url.Values, mediaType string, body io.Reader) (*http.Response, error) {
	target := c.base + "/api/v1" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "eventbus")
	if mediaType != "" {
		r.Header.Set("Content-Type", mediaType)
	}
	if c.auth != "" {
		r.Header.Set("Authorization", c.auth)
	}
	for name, values := range c.header {
		r.Header[name] = values
	}
	answer, err := c.http.Do(r)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, which is long
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, failed(connectNext(err), "%s: %w", c.base, err)
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	return nil, c.refusal(answer)
}

// refusal returns the error of an answer.
func (c *client) refusal(answer *http.Response) error {
	const most = 64 << 10
	text, _ := io.ReadAll(io.LimitReader(answer.Body, most)) // a part tells enough
	e := struct {
		Error *apiError `json:"error"`
	}{}
	if json.Unmarshal(text, &e) == nil && e.Error != nil && e.Error.Message != "" {
		e.Error.Status = answer.StatusCode
		return &failure{e.Error.exitCode(), e.Error, e.Error.Remedy}
	}
	if location := answer.Header.Get("Location"); location != "" {
		return failed("give that address as --url, if you trust it; for a login before the page, see EVENTBUS_HEADERS and --client-cert in 'eventbus help environment'", "%s redirects to %s", c.base, location)
	}
	return failed("check that the URL is that of the admin page, with its prefix; for a login before it, see EVENTBUS_HEADERS and --client-cert in 'eventbus help environment'", "%s answers %s, and not as the admin API", c.base, answer.Status)
}

// get reads a JSON answer.
func (c *client) get(ctx context.Context, path string, query url.Values, to any) error {
	return c.call(ctx, http.MethodGet, path, query, nil, to)
}

// post sends a JSON body and reads a JSON answer.
func (c *client) post(ctx context.Context, path string, body, to any) error {
	return c.call(ctx, http.MethodPost, path, nil, body, to)
}

func (c *client) call(ctx context.Context, method, path string, query url.Values, body, to any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var in io.Reader
	mediaType := ""
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in, mediaType = bytes.NewReader(text), "application/json"
	}
	answer, err := c.do(ctx, method, path, query, mediaType, in)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: answer: %w", c.base, err)
	}
	if raw, ok := to.(*[]byte); ok {
		*raw = text
		return nil
	}
	if err := json.Unmarshal(text, to); err != nil {
		return failed("check that the URL is that of the admin page, of the same version as this command", "%s: answer to %s: %w", c.base, path, err)
	}
	return nil
}

// parameters builds a query string. Empty values are left out.
type parameters url.Values

func (p parameters) text(name, value string) parameters {
	if value != "" {
		url.Values(p).Set(name, value)
	}
	return p
}

func (p parameters) time(name string, t time.Time) parameters {
	if !t.IsZero() {
		p.text(name, t.UTC().Format(time.RFC3339Nano))
	}
	return p
}

func (p parameters) number(name string, n int64) parameters {
	if n != 0 {
		p.text(name, strconv.FormatInt(n, 10))
	}
	return p
}

func (p parameters) flag(name string, set bool) parameters {
	if set {
		p.text(name, "true")
	}
	return p
}
