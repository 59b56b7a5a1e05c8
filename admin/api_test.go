package admin_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// operation is an operation of the OpenAPI document.
type operation struct {
	method, path string
	status       string
	media        string
	actions      []admin.Action
	schema       *jsonschema.Schema // of the answer; nil if it is not JSON with a schema
	failed       *jsonschema.Schema // of an error
}

// operations reads the document that the handler serves.
func operations(t *testing.T, h http.Handler) (all []operation) {
	t.Helper()
	w := serve(h, request(t, http.MethodGet, "/api/v1/openapi.json", ""))
	require.Equal(t, http.StatusOK, w.Code)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(w.Body.Bytes()))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource("openapi.json", document))
	var read struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			Actions   []admin.Action `json:"x-actions"`
			Responses map[string]struct {
				Content map[string]json.RawMessage `json:"content"`
			} `json:"responses"`
		} `json:"paths"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &read))
	require.Equal(t, "3.1.0", read.OpenAPI)
	for path, methods := range read.Paths {
		for method, described := range methods {
			op := operation{method: strings.ToUpper(method), path: path, actions: described.Actions}
			at := "openapi.json#/paths/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(path) + "/" + method + "/responses/"
			op.failed = compiler.MustCompile(at + "default/content/application~1json/schema")
			for status, response := range described.Responses {
				if status == "default" {
					continue
				}
				op.status = status
				for media, content := range response.Content {
					if op.media = media; string(content) != "{}" {
						op.schema = compiler.MustCompile(at + status + "/content/" + strings.ReplaceAll(media, "/", "~1") + "/schema")
					}
				}
			}
			all = append(all, op)
		}
	}
	require.NotEmpty(t, all)
	slices.SortFunc(all, func(x, y operation) int { return cmp.Or(cmp.Compare(x.method, y.method), cmp.Compare(x.path, y.path)) }) // reads first
	return all
}

// fixture has what the paths of the API need.
type fixture struct {
	letters   []eventbus.DeadLetter
	scheduled eventbus.EventID
	later     eventbus.EventID // scheduled
	waiting   eventbus.EventID // for a retry
	op        admin.Operation
}

// newFixture fills a bus: 5 letters, events that have not settled, one operation.
func newFixture(t *testing.T, bus *failing, h http.Handler) *fixture {
	t.Helper()
	f := &fixture{letters: bus.die(t, 5, eventbus.Metadata("trace", "t-1"), eventbus.Key("customer-1"))}
	var err error
	_, err = bus.Subscribe("late.*", func(context.Context, eventbus.Event) error { return errDeclined }, eventbus.Named("late"),
		eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
	require.NoError(t, err)
	for id, opts := range map[*eventbus.EventID][]eventbus.PublishOption{&f.scheduled: {eventbus.After(time.Hour)}, &f.later: {eventbus.After(time.Hour)}, &f.waiting: {eventbus.IdempotencyKey("once-1")}} {
		*id, err = bus.Publish(t.Context(), "late.order", order{Number: 9}, opts...)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = bus.Cancel(context.WithoutCancel(t.Context()), *id) }) // if the test has not
	}
	gone, err := bus.Subscribe("gone.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("gone"))
	require.NoError(t, err)
	require.NoError(t, gone.Detach())
	f.op = post[admin.Operation](t, h, "/api/v1/operations", `{"action":"purge_matching","query":{"reason":"overflow"},"expect":0}`)
	f.op = finished(t, h, f.op)
	return f
}

// request returns a valid request of an operation.
func (f *fixture) request(t *testing.T, op operation) *http.Request {
	t.Helper()
	letter := f.letters[0].ID.String()
	switch op.path { // those that take a letter take one each
	case "/api/v1/letters/{id}/edit":
		letter = f.letters[1].ID.String()
	case "/api/v1/letters/{id}/purge":
		letter = f.letters[2].ID.String()
	case "/api/v1/letters/{id}", "/api/v1/letters/{id}/payload":
		letter = f.letters[3].ID.String()
	}
	id := letter
	switch {
	case strings.HasSuffix(op.path, "/retry"):
		id = f.waiting.String()
	case strings.HasSuffix(op.path, "/give-up"):
		id = f.later.String()
	case strings.Contains(op.path, "/events/"):
		id = f.scheduled.String()
	case strings.Contains(op.path, "/operations/"):
		id = f.op.ID
	}
	name := "billing"
	if strings.HasSuffix(op.path, "/retire") {
		name = "gone"
	}
	target := strings.NewReplacer("{id}", id, "{name}", name).Replace(op.path)
	body := ""
	if op.method == http.MethodPost {
		body = `{"why":"because"}`
	}
	switch op.path {
	case "/api/v1/events":
		target += "?type=late.order&idempotency_key=once-1"
	case "/api/v1/explain":
		target += "?type=order.placed"
	case "/api/v1/letters/{id}/edit":
		body = `{"payload":{"number":8},"why":"because"}`
	case "/api/v1/subscriptions/{name}/hold-until":
		body = `{"until":"9999-01-01T00:00:00Z"}`
	case "/api/v1/operations":
		if op.method == http.MethodPost {
			body = `{"action":"replay_matching","query":{"reason":"crash"},"expect":0}`
		}
	}
	r := request(t, op.method, target, body)
	if op.path == "/api/v1/letters/import" {
		r = request(t, op.method, target, "\n")
		r.Header.Set("Content-Type", "application/jsonl")
	}
	return r
}

// newStore returns a store in memory.
func newStore(t *testing.T) driver.Store {
	t.Helper()
	store := storetest.NewModel().Open()
	return store
}

func TestAPI_AnswersAsTheDocumentSays(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%t", stored), func(t *testing.T) {
			var options []eventbus.Option
			if stored {
				options = append(options, eventbus.WithStore(newStore(t)))
			}
			bus := newFailing(t, options...)
			h := newHandler(t, bus.Bus)
			f := newFixture(t, bus, h)
			for _, op := range operations(t, h) {
				name := op.method + " " + op.path
				r := f.request(t, op)
				if op.path == "/api/v1/live" {
					ctx, cancel := context.WithCancel(r.Context())
					r = r.WithContext(ctx)
					w := &cancelOnWrite{httptest.NewRecorder(), cancel}
					h.ServeHTTP(w, r)
					require.Equal(t, op.media, w.Header().Get("Content-Type"))
					continue
				}
				w := serve(h, r)
				switch name {
				case "POST /api/v1/subscriptions/{name}/trip", "POST /api/v1/subscriptions/{name}/reset":
					_ = errorIn(t, w, admin.CodeConflict) // billing has no circuit
					validate(t, op.failed, w.Body.Bytes(), name)
					continue
				case "POST /api/v1/operations/{id}/cancel": // it has ended, or does so now
					if w.Code == http.StatusConflict {
						validate(t, op.failed, w.Body.Bytes(), name)
						continue
					}
				}
				require.Equal(t, op.status, fmt.Sprint(w.Code), "%s: %s", name, w.Body)
				require.Equal(t, op.media, strings.TrimSuffix(w.Header().Get("Content-Type"), "; charset=utf-8"), name)
				if op.schema != nil {
					validate(t, op.schema, w.Body.Bytes(), name)
				}
			}
		})
	}
}

// cancelOnWrite cancels the request when it is answered.
type cancelOnWrite struct {
	*httptest.ResponseRecorder
	cancel context.CancelFunc
}

func (w *cancelOnWrite) Write(data []byte) (int, error) {
	w.cancel()
	return w.ResponseRecorder.Write(data)
}

func validate(t *testing.T, schema *jsonschema.Schema, body []byte, name string) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	require.NoError(t, err, name)
	require.NoError(t, schema.Validate(value), "%s: %s", name, body)
}

func TestAPI_RefusesBadInput(t *testing.T) {
	bus := newFailing(t)
	h := newHandler(t, bus.Bus)
	letter := bus.die(t, 1)[0].ID.String()
	get := func(target string) *http.Request { return request(t, http.MethodGet, target, "") }
	post := func(target, body string) *http.Request { return request(t, http.MethodPost, target, body) }
	other := func(r *http.Request, contentType string) *http.Request {
		r.Header.Set("Content-Type", contentType)
		return r
	}
	begin := func(fields string) *http.Request { return post("/api/v1/operations", "{"+fields+"}") }
	unknown := eventbus.NewEventID().String()
	for name, test := range map[string]struct {
		request *http.Request
		code    admin.Code
	}{
		"unknown parameter":      {get("/api/v1/letters?colour=red"), admin.CodeBadRequest},
		"repeated parameter":     {get("/api/v1/letters?type=a&type=b"), admin.CodeBadRequest},
		"empty parameter":        {get("/api/v1/letters?type="), admin.CodeBadRequest},
		"malformed query":        {get("/api/v1/letters?type=%zz"), admin.CodeBadRequest},
		"bad pattern":            {get("/api/v1/letters?type=" + url.QueryEscape("a..b")), admin.CodeBadRequest},
		"bad reason":             {get("/api/v1/letters?reason=sad"), admin.CodeBadRequest},
		"bad time":               {get("/api/v1/letters?since=yesterday"), admin.CodeBadRequest},
		"bad boolean":            {get("/api/v1/letters?all=yes"), admin.CodeBadRequest},
		"bad id":                 {get("/api/v1/letters?event=7"), admin.CodeBadRequest},
		"page too large":         {get("/api/v1/letters?limit=501"), admin.CodeBadRequest},
		"page of nothing":        {get("/api/v1/letters?limit=0"), admin.CodeBadRequest},
		"bad letter id":          {get("/api/v1/letters/7"), admin.CodeBadRequest},
		"unknown letter":         {get("/api/v1/letters/" + unknown), admin.CodeNotFound},
		"unknown event":          {get("/api/v1/events/" + unknown), admin.CodeNotFound},
		"bad event id":           {get("/api/v1/events/7"), admin.CodeBadRequest},
		"unknown subscription":   {get("/api/v1/subscriptions/mail"), admin.CodeNotFound},
		"unknown operation":      {get("/api/v1/operations/" + unknown), admin.CodeNotFound},
		"bad dispatch state":     {get("/api/v1/dispatches?state=asleep"), admin.CodeBadRequest},
		"bad audit action":       {get("/api/v1/audit?action=shout"), admin.CodeBadRequest},
		"explain nothing":        {get("/api/v1/explain"), admin.CodeBadRequest},
		"overview of something":  {get("/api/v1/overview?limit=1"), admin.CodeBadRequest},
		"offset below 0":         {get("/api/v1/groups?offset=-1"), admin.CodeBadRequest},
		"unknown path":           {get("/api/v1/lettres"), admin.CodeNotFound},
		"GET of a change":        {get("/api/v1/letters/" + letter + "/purge"), admin.CodeMethodNotAllowed},
		"DELETE":                 {request(t, http.MethodDelete, "/api/v1/letters/"+letter, ""), admin.CodeMethodNotAllowed},
		"other media type":       {other(post("/api/v1/letters/"+letter+"/purge", `{}`), "application/yaml"), admin.CodeUnsupportedMediaType},
		"no body":                {post("/api/v1/letters/"+letter+"/purge", ""), admin.CodeBadRequest},
		"not JSON":               {post("/api/v1/letters/"+letter+"/purge", "why not"), admin.CodeBadRequest},
		"unknown field":          {post("/api/v1/letters/"+letter+"/purge", `{"wyh":""}`), admin.CodeBadRequest},
		"two values":             {post("/api/v1/letters/"+letter+"/purge", `{}{}`), admin.CodeBadRequest},
		"invalid UTF-8":          {post("/api/v1/letters/"+letter+"/purge", "{\"why\":\"\xff\"}"), admin.CodeBadRequest},
		"reason with newline":    {post("/api/v1/letters/"+letter+"/purge", `{"why":"a\nb"}`), admin.CodeBadRequest},
		"long reason":            {post("/api/v1/letters/"+letter+"/purge", `{"why":"`+strings.Repeat("a", 256)+`"}`), admin.CodeBadRequest},
		"edit without payload":   {post("/api/v1/letters/"+letter+"/edit", `{"why":"a"}`), admin.CodeBadRequest},
		"cancel of no event":     {post("/api/v1/events/"+unknown+"/cancel", `{}`), admin.CodeNotFound},
		"retry of no event":      {post("/api/v1/events/"+unknown+"/retry", `{"probe":true}`), admin.CodeNotFound},
		"no event is given up":   {post("/api/v1/events/"+unknown+"/give-up", `{}`), admin.CodeNotFound},
		"cancel of a bad id":     {post("/api/v1/events/7/cancel", `{}`), admin.CodeBadRequest},
		"cancel that probes":     {post("/api/v1/events/"+unknown+"/cancel", `{"probe":true}`), admin.CodeBadRequest},
		"give up and probe":      {post("/api/v1/events/"+unknown+"/give-up", `{"probe":true}`), admin.CodeBadRequest},
		"probe that is a text":   {post("/api/v1/events/"+unknown+"/retry", `{"probe":"yes"}`), admin.CodeBadRequest},
		"bad name of a delivery": {post("/api/v1/events/"+unknown+"/cancel", `{"subscription":"a\nb"}`), admin.CodeBadRequest},
		"long name":              {post("/api/v1/events/"+unknown+"/retry", `{"subscription":"`+strings.Repeat("x", 8192)+`"}`), admin.CodeBadRequest},
		"order to nobody":        {post("/api/v1/subscriptions/mail/pause", `{}`), admin.CodeNotFound},
		"unknown order":          {post("/api/v1/subscriptions/billing/stop", `{}`), admin.CodeNotFound},
		"hold until the past":    {post("/api/v1/subscriptions/billing/hold-until", `{"until":"2001-01-01T00:00:00Z"}`), admin.CodeBadRequest},
		"hold without an end":    {post("/api/v1/subscriptions/billing/hold-until", `{}`), admin.CodeBadRequest},
		"pause with an end":      {post("/api/v1/subscriptions/billing/pause", `{"until":"2101-01-01T00:00:00Z"}`), admin.CodeBadRequest},
		"trip without a circuit": {post("/api/v1/subscriptions/billing/trip", `{}`), admin.CodeConflict},
		"operation of no kind":   {begin(`"action":"edit","query":{"all":true},"expect":1`), admin.CodeBadRequest},
		"empty query":            {begin(`"action":"purge_matching","query":{},"expect":1`), admin.CodeBadRequest},
		"empty time":             {begin(`"action":"purge_matching","query":{"since":"0001-01-01T02:00:00+02:00"},"expect":1`), admin.CodeBadRequest},
		"no expectation":         {begin(`"action":"purge_matching","query":{"all":true}`), admin.CodeBadRequest},
		"negative rate":          {begin(`"action":"purge_matching","query":{"all":true},"expect":1,"rate":-1`), admin.CodeBadRequest},
		"purge with stop_after":  {begin(`"action":"purge_matching","query":{"all":true},"expect":1,"stop_after":1`), admin.CodeBadRequest},
		"operation with a page":  {begin(`"action":"purge_matching","query":{"all":true,"limit":1},"expect":1`), admin.CodeBadRequest},
		"bad pattern of a purge": {begin(`"action":"purge_matching","query":{"type":"a..b"},"expect":1`), admin.CodeBadRequest},
		"cancel of no operation": {post("/api/v1/operations/"+unknown+"/cancel", `{}`), admin.CodeNotFound},
		"import of no letters":   {other(post("/api/v1/letters/import", "{}\n"), "application/jsonl"), admin.CodeUnprocessable},
	} {
		t.Run(name, func(t *testing.T) {
			_ = refused(t, h, test.request, test.code)
			require.Equal(t, 1, bus.letters(t), "bad input changes nothing")
		})
	}
}

func TestHandler_RefusesBadOptions(t *testing.T) {
	bus := newFailing(t).Bus
	for name, opts := range map[string][]admin.Option{
		"nil option":     {nil},
		"nil authorizer": {admin.WithAuthorizer(nil)},
		"nil redactor":   {admin.WithRedactor(nil)},
		"nil logger":     {admin.WithLogger(nil)},
		"host pattern":   {admin.WithHosts("*.example.com")},
		"empty host":     {admin.WithHosts("")},
		"host as URL":    {admin.WithHosts("https://example.com")},
		"prefix unclean": {admin.WithPrefix("/admin/../x")},
		"no slash":       {admin.WithPrefix("admin")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := admin.New(bus, opts...)
			var refused *eventbus.OptionError
			require.ErrorAs(t, err, &refused)
			w := serve(admin.Handler(bus, opts...), request(t, http.MethodGet, "/", ""))
			require.Equal(t, refused.Error(), errorIn(t, w, admin.CodeInternal).Message)
		})
	}
	for _, b := range []*eventbus.Bus{nil, new(eventbus.Bus)} {
		_, err := admin.New(b)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	}
	require.Equal(t, http.StatusOK, serve(admin.Handler(bus), request(t, http.MethodGet, "/api/v1/overview", "")).Code)
}
