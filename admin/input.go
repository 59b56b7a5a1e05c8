package admin

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/surebus/eventbus"
)

// parameter is a query parameter of a route, or a field of a page's form.
type parameter struct {
	name string
	kind string // "string", "integer", "boolean", "date-time", "uuid"
	set  func(value string) error
}

func textParameter[T ~string](name string, to *T) parameter {
	return parameter{name, "string", func(value string) error {
		*to = T(value)
		return nil
	}}
}

func intParameter[T int | int64](name string, to *T, least, most int64) parameter {
	return parameter{name, "integer", func(value string) error {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be a number from %d to %d", least, most)
		}
		*to = T(n)
		return nil
	}}
}

func boolParameter(name string, to *bool) parameter {
	return parameter{name, "boolean", func(value string) error {
		switch value {
		case "true", "false":
			*to = value == "true"
			return nil
		}
		return fmt.Errorf("must be true or false")
	}}
}

func timeParameter(name string, to *time.Time) parameter {
	return parameter{name, "date-time", func(value string) (err error) {
		if *to, err = time.Parse(time.RFC3339Nano, value); err != nil || to.IsZero() { // a query takes the zero time for no bound
			return fmt.Errorf("must be a time as RFC 3339, such as 2026-03-04T12:30:00Z")
		}
		return nil
	}}
}

func idParameter(name string, to encoding.TextUnmarshaler) parameter {
	return parameter{name, "uuid", func(value string) error {
		if to.UnmarshalText([]byte(value)) != nil {
			return fmt.Errorf("must be a UUID of the form 8-4-4-4-12 hexadecimal digits")
		}
		return nil
	}}
}

// maxLimit is the largest page of the API.
const maxLimit = 500

// filterParameters are the fields of a query that select letters.
func filterParameters(q *eventbus.LetterQuery) []parameter {
	return []parameter{
		textParameter("type", &q.Type), textParameter("subscription", &q.Subscription), textParameter("reason", &q.Reason),
		textParameter("fingerprint", &q.Fingerprint), idParameter("event", &q.Event), textParameter("key", &q.Key), textParameter("idempotency_key", &q.IdempotencyKey),
		textParameter("metadata_name", &q.MetadataName), textParameter("metadata_value", &q.MetadataValue),
		textParameter("error", &q.Error), timeParameter("since", &q.Since), timeParameter("until", &q.Until),
		timeParameter("published_since", &q.PublishedSince), timeParameter("published_until", &q.PublishedUntil),
		boolParameter("replayed", &q.Replayed), boolParameter("all", &q.All),
	}
}

// letterParameters are all fields of a query.
func letterParameters(q *eventbus.LetterQuery) []parameter {
	return append(filterParameters(q), intParameter("limit", &q.Limit, 1, maxLimit), idParameter("before", &q.Before),
		boolParameter("exact_total", &q.ExactTotal))
}

// window is a part of a list that has no cursor.
type window struct{ limit, offset int }

func windowParameters(w *window) []parameter {
	return []parameter{intParameter("limit", &w.limit, 1, maxLimit), intParameter("offset", &w.offset, 0, 1_000_000)}
}

const defaultLimit = 100

// of returns the part of a list, and the offset of the next part or 0.
func windowOf[T any](w window, all []T) (part []T, next int) {
	from := min(w.offset, len(all))
	to := min(from+cmp.Or(w.limit, defaultLimit), len(all))
	if to < len(all) {
		next = to
	}
	return append([]T{}, all[from:to]...), next // in JSON, a list
}

// parameters reads the query string.
func (c *call) parameters(known []parameter) error {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return badRequest("the query string is malformed", "escape its values")
	}
	return setParameters(values, known)
}

// setParameters sets the given parameters. Unknown, repeated and empty ones are errors.
func setParameters(values url.Values, known []parameter) error {
	for name, given := range values {
		i := slices.IndexFunc(known, func(p parameter) bool { return p.name == name })
		if i < 0 {
			names := make([]string, len(known))
			for i, p := range known {
				names[i] = p.name
			}
			return badRequest(fmt.Sprintf("the parameter %q is unknown", cut(name, 80)), "use one of: "+cmp.Or(strings.Join(names, ", "), "none"))
		}
		if len(given) != 1 {
			return badRequest(fmt.Sprintf("the parameter %s is repeated", name), "give it once")
		}
		if given[0] == "" || !utf8.ValidString(given[0]) {
			return badRequest(fmt.Sprintf("the parameter %s is empty or no valid UTF-8", name), "leave it out, or give it a value")
		}
		if err := known[i].set(given[0]); err != nil {
			return badRequest(fmt.Sprintf("the parameter %s=%q %s", name, cut(given[0], 80), err), "correct the value")
		}
	}
	return nil
}

// reader returns the body, which has the media type and the limit of the route.
func (c *call) reader() (io.Reader, error) {
	want := cmp.Or(c.route.media, "application/json")
	media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || media != want {
		return nil, &Error{Code: CodeUnsupportedMediaType, Message: "the body has another media type than " + want, Remedy: "send the header Content-Type: " + want}
	}
	body := http.MaxBytesReader(c.w, c.r.Body, cmp.Or(c.route.limit, maxBody))
	if c.route.stream {
		return &streamReader{c, body}, nil
	}
	return body, nil
}

// streamReader reads a body that may take longer than requestTimeout. Each read has a deadline of its own.
type streamReader struct {
	*call
	body io.Reader
}

func (r *streamReader) Read(data []byte) (int, error) {
	_ = http.NewResponseController(r.w).SetReadDeadline(time.Now().Add(writeTimeout))
	return r.body.Read(data)
}

// body decodes the JSON body. Unknown fields are errors.
func (c *call) body(into any) error {
	if err := c.parameters(nil); err != nil { // an option in the query would be ignored
		return err
	}
	from, err := c.reader()
	if err != nil {
		return err
	}
	data, err := io.ReadAll(from)
	if err != nil {
		return bodyError(err)
	}
	if !utf8.Valid(data) {
		return badRequest("the body is no valid UTF-8", "send JSON")
	}
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	if err := in.Decode(into); err != nil {
		return badRequest("the body does not have the form of this request: "+cut(err.Error(), 200), "see api/v1/openapi.json for the form")
	}
	if _, err := in.Token(); err != io.EOF {
		return badRequest("the body has more than one JSON value", "send one object")
	}
	return nil
}

// bodyError returns the error of a read of the body.
func bodyError(err error) error {
	if e := errorOf(err); e.Code == CodeTooLarge {
		return e
	}
	return badRequest("the body ended early", "send it again")
}

// letterID returns the id in the path.
func (c *call) letterID() (id eventbus.LetterID, err error) {
	err = id.UnmarshalText([]byte(c.args["id"]))
	return id, err
}

// eventID returns the id in the path.
func (c *call) eventID() (id eventbus.EventID, err error) {
	err = id.UnmarshalText([]byte(c.args["id"]))
	return id, err
}

// ChangeRequest is the body of a change that has no other fields.
type ChangeRequest struct {
	Why string `json:"why,omitempty"` // for the audit: up to 255 bytes without control characters
}
