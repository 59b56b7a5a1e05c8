//go:build unix

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
	"github.com/surebus/eventbus/store/sqlite"
)

// BenchmarkSpeed times every page and GET of the admin handler and every command, over a store with 200,000 dead letters, 10,000
// orphans and 2,000 deliveries that wait for a retry. The bound is one second of cpu-ms/op: the time of all threads of this
// process, which other programs on the machine change little. That of a Postgres server is not in it. With -short, the store has
// fewer, and each page and command is timed once.
//
//	go test -run '^$' -bench Speed -benchtime 1x -timeout 30m ./cmd/eventbus
//	go test -run '^$' -bench Speed/sqlite/store/dlq -benchtime 1x ./cmd/eventbus
//
// The name of a benchmark begins with the store: sqlite, or postgres, which needs the programs of a server.
func BenchmarkSpeed(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) {
		file := filepath.Join(b.TempDir(), "shop.db")
		newSpeed(b, func() driver.Store {
			s, err := sqlite.Open(b.Context(), file)
			require.NoError(b, err)
			return s
		}, "--store", file).run()
	})
	b.Run("postgres", func(b *testing.B) {
		server, schema := postgrestest.Shared(b), postgrestest.NewSchema()
		b.Setenv("PGUSER", "postgres")
		newSpeed(b, func() driver.Store {
			s, err := postgres.Open(b.Context(), server.DSN(), postgres.WithSchema(schema))
			require.NoError(b, err)
			return s
		}, "--store", "postgres:///postgres?host="+filepath.Dir(server.Socket()), "--schema", schema).run()
	})
}

// speed has the store whose surfaces are timed, and what fills their parameters.
type speed struct {
	*testing.B
	bus   *eventbus.Bus // with the handlers
	tool  *eventbus.Bus // beside it
	store []string      // the flags of the command
	dir   string

	letters, events []string // ids that were not used yet
	operation       string
	gone            int // names that were retired
	keys            int // whose letters were replayed
}

// What the store has. The names of subscriptions that are gone are gone-0 to gone-9.
const (
	speedSubscriptions = 20
	speedGone          = 10
	speedKeys          = 1000
)

func newSpeed(b *testing.B, open func() driver.Store, store ...string) *speed {
	s := &speed{B: b, store: store, dir: b.TempDir()}
	letters, orphans, retried := 200_000, 10_000, 2_000
	if testing.Short() {
		letters, orphans, retried = 2_000, 1_000, 200
	}
	newBus := func(opts ...eventbus.Option) *eventbus.Bus {
		bus, err := eventbus.New(append(opts, eventbus.WithStore(open()), eventbus.WithLogger(zap.NewNop()))...)
		require.NoError(b, err)
		return bus
	}
	first := newBus()
	require.NoError(b, first.Start(b.Context()))
	for i := range speedGone {
		s.fill(first, fmt.Sprintf("gone-%d", i), orphans/speedGone, true)
	}
	require.NoError(b, first.Shutdown(context.Background()))

	s.bus = newBus()
	for i := range speedSubscriptions {
		_, err := s.bus.Subscribe(fmt.Sprintf("order.%d", i), func(context.Context, eventbus.Event) error {
			return eventbus.Permanent(errors.New("the bank says no"))
		}, eventbus.Named(fmt.Sprintf("billing-%d", i)))
		require.NoError(b, err)
	}
	require.NoError(b, s.bus.Start(b.Context()))
	s.fill(s.bus, "retried", retried, false)
	report, err := s.bus.DLQ().Import(b.Context(), speedLetters(letters))
	require.NoError(b, err)
	require.Equal(b, letters, report.Imported)
	s.tool = newBus(eventbus.WithoutHandlers())
	b.Cleanup(func() {
		require.NoError(b, errors.Join(s.tool.Shutdown(context.Background()), s.bus.Shutdown(context.Background())))
	})
	return s
}

// fill makes a subscription, and publishes events that it holds, or fails at and retries later.
func (s *speed) fill(bus *eventbus.Bus, name string, events int, holds bool) {
	sub, err := bus.Subscribe(name+".*", func(context.Context, eventbus.Event) error { return errors.New("the bank says no") },
		eventbus.Named(name), eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(s, err)
	if holds {
		require.NoError(s, sub.Pause())
	}
	batch := make([]eventbus.Publication, events)
	for i := range batch {
		batch[i] = eventbus.Publication{Type: name + ".by", Payload: i}
	}
	batch[0].Options = []eventbus.PublishOption{eventbus.IdempotencyKey("once")}
	for part := range slices.Chunk(batch, 1000) {
		_, err := bus.PublishBatch(s.Context(), part)
		require.NoError(s, err)
	}
}

// speedLetters returns letters of the last two hours as an export has them, each with three failures, of 200 causes.
func speedLetters(n int) io.Reader {
	var all bytes.Buffer
	now := time.Now().UTC()
	for i := range n {
		died := now.Add(-2 * time.Hour / time.Duration(n) * time.Duration(n-i)).Format(time.RFC3339Nano)
		subscription := fmt.Sprintf("billing-%d", i%speedSubscriptions)
		failure := fmt.Sprintf(`{"attempt":1,"subscription":%q,"time":%q,"duration":40000000,"class":"*net.OpError",`+
			`"error":"charge order %d: dial tcp 10.1.2.3:443: connect: connection refused by bank %c"}`, subscription, died, i, 'a'+i/speedSubscriptions%10)
		fmt.Fprintf(&all, `{"id":"01940000-0000-7000-9000-%012d","event":{"id":"01930000-0000-7000-9000-%012d","type":"order.%d","time":%q,"key":"order-%d",`+
			`"metadata":{"tenant":"tenant-%d"},"payload":{"order":%d,"lines":[{"article":"4711","count":2},{"article":"4712","count":1}]}},`+
			`"reason":"exhausted","subscription":%q,"attempts":3,"died_at":%q,"failures":[%s]}`+"\n",
			i+1, i+1, i%speedSubscriptions, died, i%speedKeys, i%50, i, subscription, died, strings.Join([]string{failure, failure, failure}, ","))
	}
	return &all
}

func (s *speed) run() {
	page, err := s.bus.DLQ().List(s.Context(), eventbus.LetterQuery{Limit: 2000})
	require.NoError(s, err)
	for i := range page.Letters {
		s.letters = append(s.letters, page.Letters[i].ID.String())
	}
	dispatches, err := s.bus.Dispatches(s.Context(), eventbus.DispatchQuery{Subscription: "retried", Limit: 2000})
	require.NoError(s, err)
	for i := range dispatches.Dispatches {
		s.events = append(s.events, dispatches.Dispatches[i].Event.String())
	}
	values := s.values(&page.Letters[0])
	for _, place := range []struct {
		name string
		bus  *eventbus.Bus
		args []string
	}{{"url", s.bus, nil}, {"store", s.tool, s.store}} {
		handler, err := admin.New(place.bus, admin.WithAuthorizer(func(*http.Request, admin.Action) (admin.Principal, error) {
			return admin.Principal{Name: "anna"}, nil
		}))
		require.NoError(s, err)
		server := httptest.NewServer(handler)
		s.Cleanup(server.Close)
		s.findOperation([]string{"--url", server.URL}) // a handler knows its own ones only
		s.pages(place.name, handler, values)
		if place.args == nil {
			place.args = []string{"--url", server.URL}
		} else {
			s.findOperation(place.args)
		}
		s.commands(place.name, place.args, values)
	}
}

// values returns query strings for each parameter of the API, without the escapes of URLs. Flags of the command have the same names,
// with hyphens.
func (s *speed) values(l *eventbus.DeadLetter) map[string][]string {
	hour := func(ago time.Duration) string { return time.Now().UTC().Add(-ago).Format(time.RFC3339) }
	return map[string][]string{
		"type": {"type=order.3", "type=order.*"}, "subscription": {"subscription=billing-3"}, "reason": {"reason=exhausted"},
		"fingerprint": {"fingerprint=" + l.Fingerprint}, "event": {"event=" + l.Event.ID.String()}, "key": {"key=order-17"},
		"idempotency_key": {"idempotency_key=none"}, "metadata_name": {"metadata_name=tenant", "metadata_name=none"},
		"metadata_value": {"metadata_name=tenant&metadata_value=tenant-3"},
		"error":          {"error=no such text", "error=connection refused", "error=bank c"}, "replayed": {"replayed=true"}, "all": {"all=true"},
		"since": {"since=" + hour(time.Hour), "since=" + hour(time.Minute)}, "until": {"until=" + hour(time.Hour), "until=" + hour(-time.Hour)},
		"published_since": {"published_since=" + hour(time.Hour)}, "published_until": {"published_until=" + hour(time.Hour)},
		"limit": {"limit=500"}, "offset": {"offset=100"}, "before": {"before=" + l.ID.String()}, "exact_total": {"exact_total=true"},
		"sort": {"sort=-failures", "sort=-letters"}, "span": {"span=day"}, "state": {"state=parked"}, "destination": {"destination=bank-a"},
		"action": {"action=replay_matching"}, "by": {"by=anna"}, "request_id": {"request_id=none"}, "denied": {"denied=true"},
		"letter_id": {"letter_id=" + l.ID.String()}, "event_id": {"event_id=" + l.Event.ID.String()},
	}
}

// time runs f as a benchmark that reports the time of the processors.
func (s *speed) time(name string, f func()) {
	s.Run(name, func(b *testing.B) {
		before := cpuTime(b)
		for b.Loop() {
			f()
		}
		b.ReportMetric(float64(cpuTime(b)-before)/float64(time.Millisecond)/float64(b.N), "cpu-ms/op")
	})
}

func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// pagePaths are the paths in the table of the pages, which no document has.
var pagePaths = regexp.MustCompile(`\b(?:get|live)\("(/[^"]*)"`)

// pages loads each page and each GET of the API, plain and with each value of each of its parameters.
func (s *speed) pages(place string, handler http.Handler, values map[string][]string) {
	load := func(path string) []byte {
		r := httptest.NewRequestWithContext(s.Context(), http.MethodGet, path, http.NoBody)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(s, http.StatusOK, w.Code, "%s: %s", path, w.Body)
		return w.Body.Bytes()
	}
	var document struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		}
	}
	require.NoError(s, json.Unmarshal(load("/api/v1/openapi.json"), &document))
	source, err := os.ReadFile("../../admin/pages.go")
	require.NoError(s, err)
	paths := make(map[string][]string) // with their parameters
	for path, methods := range document.Paths {
		if get, ok := methods["get"]; ok {
			paths[path] = []string{}
			for _, p := range get.Parameters {
				if p.In == "query" {
					paths[path] = append(paths[path], p.Name)
				}
			}
		}
	}
	pages := pagePaths.FindAllSubmatch(source, -1)
	require.Greater(s, len(pages), 15)
	for _, p := range pages {
		path := string(p[1])
		of := map[string]string{"/bulk": "/preview", "/events": "/dispatches", "/events/bulk": "/dispatches/preview"} // the API calls them otherwise
		paths[path] = paths["/api/v1"+cmp.Or(of[path], path)]
	}
	delete(paths, "/api/v1/live")           // a stream
	delete(paths, "/api/v1/letters/export") // as long as there are letters
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		at := s.place(path)
		for _, query := range s.queries(path, paths[path], values) {
			from := at
			if query != "" {
				all := make(url.Values)
				for pair := range strings.SplitSeq(query, "&") {
					name, value, _ := strings.Cut(pair, "=")
					all.Set(name, value)
				}
				from += "?" + all.Encode()
			}
			s.time(place+path+" "+query, func() { load(from) })
		}
	}
}

// place fills the names in a path.
func (s *speed) place(path string) string {
	of := map[string]string{"letters": s.letters[0], "events": s.events[0], "operations": s.operation, "subscriptions": "billing-3", "static": "app.js"}
	if strings.HasSuffix(path, "/retire") {
		of["subscriptions"] = "gone-9"
	}
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, "{") {
			require.NotEmpty(s, of[parts[i-1]], "%s needs a value", path)
			parts[i] = of[parts[i-1]]
		}
	}
	return strings.Join(parts, "/")
}

// queries returns the query strings with which a path is loaded.
func (s *speed) queries(path string, parameters []string, values map[string][]string) []string {
	var all []string
	switch {
	case path == "/bulk", path == "/events/bulk":
		action := "action=replay_matching"
		if path == "/events/bulk" {
			action = "action=give_up_matching"
		}
		all = append(all, action)
		for _, p := range parameters {
			for _, v := range values[p] {
				all = append(all, action+"&"+v)
			}
		}
		return some(all)
	case path == "/api/v1/events":
		return []string{"type=retried.by&idempotency_key=once"}
	case strings.HasSuffix(path, "/explain"):
		return []string{"type=order.3"}
	}
	all = append(all, "")
	for _, p := range parameters {
		if (p == "before" || p == "after") && !strings.Contains(path, "letters") {
			continue // of a page before
		}
		require.NotEmpty(s, values[p], "the parameter %s of %s needs a value", p, path)
		all = append(all, values[p]...)
	}
	return some(all)
}

// some returns the first of all with -short.
func some[T any](all []T) []T {
	if testing.Short() {
		return all[:1]
	}
	return all
}

// findOperation makes a bulk operation, and finds its id.
func (s *speed) findOperation(place []string) {
	s.call(append(place, "dlq", "replay", "--yes", "--key", s.key())...)
	var newest struct{ ID string }
	require.NoError(s, json.NewDecoder(strings.NewReader(s.call(append(place, "operations", "list", "--json")...))).Decode(&newest))
	s.operation = newest.ID
}

// call runs the command, which must succeed.
func (s *speed) call(args ...string) string {
	var out, errOut bytes.Buffer
	require.Zero(s, run(s.Context(), args, strings.NewReader(`{"new":true}`), &out, &errOut), "%q: %s", args, &errOut)
	return out.String()
}

// key returns the key of letters that are there.
func (s *speed) key() string {
	s.keys++
	return fmt.Sprintf("order-%d", s.keys)
}

// next returns an id that was not used before.
func next(ids *[]string) string {
	id := (*ids)[0]
	*ids = append((*ids)[1:], id)
	return id
}

// commands runs each command, and with each value of each of its flags if it only reads.
func (s *speed) commands(place string, flags []string, values map[string][]string) {
	letters := filepath.Join(s.dir, "letters.jsonl")
	in, err := os.Create(letters)
	require.NoError(s, err)
	_, err = io.Copy(in, speedLetters(1000))
	require.NoError(s, errors.Join(err, in.Close()))
	forms := s.forms(letters)
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		for _, sub := range c.Commands() {
			walk(sub, append(slices.Clone(path), sub.Name()))
		}
		if c.HasSubCommands() || !c.Runnable() || path[0] == "help" || path[0] == "completion" {
			return
		}
		name := strings.Join(path, " ")
		form, known := forms[name]
		require.True(s, known, "the command %q needs a form", name)
		if form == nil || !s.works(name, place) {
			return
		}
		for _, more := range s.variants(c, values) {
			s.time(place+"/"+strings.Join(append(path, more...), " "), func() {
				s.call(slices.Concat(flags, path, form(), more)...)
			})
		}
	}
	walk((&app{}).root(), nil)
}

// works reports whether a command works at a place: backup needs a file, and doctor a server.
func (s *speed) works(name, place string) bool {
	isServer := slices.Contains(s.store, "--schema")
	return name != "backup" && name != "doctor" || place == "store" && isServer == (name == "doctor")
}

// forms returns the arguments of each command. nil stands for a command that is not timed: it is as long as there are letters, or
// runs until it is stopped.
func (s *speed) forms(letters string) map[string]func() []string {
	args := func(a ...string) func() []string { return func() []string { return a } }
	letter := func(a ...string) func() []string { return func() []string { return append(a, next(&s.letters)) } }
	event := func() []string { return []string{next(&s.events)} }
	made := 0
	return map[string]func() []string{
		"dlq list": args(), "dlq groups": args(), "dlq show": letter(), "dlq edit": letter("--yes", "--payload-file", "-"),
		"dlq replay": args("--dry-run"), "dlq purge": args("--dry-run"), "dlq import": args(letters), "dlq export": nil,
		"operations list": args(), "operations show": func() []string { return []string{s.operation} }, "operations cancel": nil,
		"events list": args(), "events show": event, "events retry": event, "events cancel": event, "events give-up": event,
		"subs list": args(), "subs show": args("billing-3"), "subs pause": args("billing-1"), "subs resume": args("billing-1"),
		"subs hold-until": args("billing-1", "1h"), "subs trip": args("billing-2"), "subs reset": args("billing-2"),
		"subs retire": func() []string {
			s.gone++
			return []string{"--yes", fmt.Sprintf("gone-%d", s.gone%speedGone)}
		},
		"explain": args("order.3"), "stats": args(), "audit": args(), "doctor": args(), "man": args(s.dir),
		"backup": func() []string {
			made++
			return []string{filepath.Join(s.dir, fmt.Sprint("backup-", made))}
		},
		"verify": nil, "serve": nil,
	}
}

// variants returns the flags with which a command is run: those that select.
func (s *speed) variants(c *cobra.Command, values map[string][]string) (all [][]string) {
	reads := map[string]bool{"list": true, "groups": true, "replay": true, "purge": true, "audit": true}
	bulk := c.Flag("all") != nil // needs a filter
	if !bulk {
		all = append(all, nil)
	}
	if !reads[c.Name()] {
		return all
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		name := strings.ReplaceAll(f.Name, "-", "_")
		if name == "before" && c.Flag("exact-total") == nil || name == "by" && bulk { // of a page before; not a filter
			return
		}
		for _, v := range values[name] {
			var flags []string
			for pair := range strings.SplitSeq(v, "&") {
				name, value, _ := strings.Cut(pair, "=")
				flags = append(flags, "--"+strings.ReplaceAll(name, "_", "-")+"="+value)
			}
			all = append(all, flags)
		}
	})
	return some(all)
}
