package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/eventbustest"
)

// interrupting is a backend that interrupts the command in a phase.
type interrupting struct {
	backend
	phase     string
	interrupt func()
}

// The phases of bulk operations beside a store.
const (
	phasePreview = "while it looks for the letters"
	phaseSet     = "while the set is being fixed"
	phaseMiddle  = "in the middle"
	phaseEnd     = "after the last letter"
)

func (b *interrupting) at(phase string) {
	if b.phase == phase {
		b.interrupt()
	}
}

func (b *interrupting) Preview(ctx context.Context, q eventbus.LetterQuery) (eventbus.ReplayPreview, error) {
	b.at(phasePreview)
	return b.backend.Preview(ctx, q)
}

// progress interrupts once a letter is done, or the last one.
func (b *interrupting) progress(p eventbus.BulkProgress) {
	if p.Done == p.Matched {
		b.at(phaseEnd)
	} else if p.Done > 0 {
		b.at(phaseMiddle)
	}
}

func (b *interrupting) ReplayMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (eventbus.ReplayReport, error) {
	b.at(phaseSet)
	o.progress = b.progress
	return b.backend.ReplayMatching(ctx, q, o)
}

func (b *interrupting) PurgeMatching(ctx context.Context, q eventbus.LetterQuery, o bulk) (eventbus.PurgeReport, error) {
	b.at(phaseSet)
	o.progress = b.progress
	return b.backend.PurgeMatching(ctx, q, o)
}

func (b *interrupting) Export(ctx context.Context, w io.Writer, q eventbus.LetterQuery, _ func(eventbus.BulkProgress)) (eventbus.ExportReport, error) {
	b.at(phaseSet)
	return b.backend.Export(ctx, w, q, b.progress)
}

func (b *interrupting) Import(ctx context.Context, r io.Reader, o operator, _ func(eventbus.BulkProgress)) (eventbus.ImportReport, error) {
	b.at(phaseSet)
	return b.backend.Import(ctx, r, o, b.progress)
}

// manyLetters writes letters as JSON lines, which several parts of an operation have.
func manyLetters(t *testing.T, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"id":"01940000-0000-7000-9000-%012d","event":{"id":"01930000-0000-7000-9000-%012d","type":"order.placed","time":"2025-01-01T00:00:00Z"},`+
			`"reason":"exhausted","subscription":"billing","attempts":1,"died_at":"2025-01-01T00:00:00Z"}`+"\n", i+1, i+1)
	}
	path := filepath.Join(t.TempDir(), "many.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

const many = 1100

// runWith runs the command with a backend that interrupts it.
func runWith(t *testing.T, b backend, phase string, args ...string) (f *failure, out, errOut string) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var o, e bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &o, err: &e, opened: &interrupting{b, phase, interrupt}}
	root := a.root()
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		f = describe(err, a.began)
	}
	return f, o.String(), e.String()
}

// An interrupt in each phase of each bulk operation beside a store says what was done, and the same command goes on.
func TestL4_AnInterruptInEachPhase(t *testing.T) {
	if testing.Short() && raceEnabled {
		t.Skip("the store takes ten times as long")
	}
	letters := manyLetters(t, many)
	for operation, phases := range map[string]map[string]string{
		"replay": {
			phasePreview: "interrupted: nothing was replayed yet", phaseSet: "interrupted: nothing was replayed yet",
			phaseMiddle: `interrupted: [1-9][0-9,]* letters left`, phaseEnd: "",
		},
		"purge": {
			phasePreview: "interrupted: nothing was purged yet", phaseSet: "interrupted: nothing was purged yet",
			phaseMiddle: "interrupted: 600 letters left", phaseEnd: "",
		},
		"export": {
			phaseSet: "interrupted: nothing was exported yet", phaseMiddle: `interrupted: [1-9]\d* of 1,100 letters were exported`, phaseEnd: "",
		},
		"import": {phaseSet: "interrupted: nothing was imported yet", phaseMiddle: "interrupted: 500 letters were imported", phaseEnd: "interrupted: 1,100 letters were imported"},
	} {
		for phase, want := range phases {
			t.Run(operation+" "+phase, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "x.db")
				makeFile(t, path)
				if operation != "import" {
					code, _, errOut := call(t, "dlq", "import", "--store", path, letters)
					require.Zero(t, code, errOut)
				}
				exported := filepath.Join(t.TempDir(), "out.jsonl")
				args := map[string][]string{
					"replay": {"dlq", "replay", "--all", "--yes"}, "purge": {"dlq", "purge", "--all", "--yes"},
					"export": {"dlq", "export", "--output", exported}, "import": {"dlq", "import", letters},
				}[operation]
				b, err := openStore(t.Context(), place{file: path})
				require.NoError(t, err)
				f, out, errOut := runWith(t, b, phase, args...)
				require.NotContains(t, out+errOut, "of 0 letters")
				if want == "" {
					require.Nil(t, f, "%v", f)
				} else {
					require.NotNil(t, f, out)
					require.Regexp(t, "^"+want+"$", f.Error())
					require.Equal(t, exitFailure, f.code)
					require.NotEmpty(t, f.next)
					require.NoFileExists(t, exported)
					require.NoFileExists(t, exported+".part")
					code, _, errOut := call(t, append(args, "--store", path)...) // it goes on
					require.Zero(t, code, errOut)
				}
				code, out, errOut := call(t, "stats", "--store", path, "--json")
				require.Zero(t, code, errOut)
				require.Contains(t, out, map[string]string{
					"replay": `"letters":0,"incoming":1100`, "purge": `"letters":0,"incoming":0`, "export": `"letters":1100`, "import": `"letters":1100`,
				}[operation])
				if operation == "export" {
					text, err := os.ReadFile(exported)
					require.NoError(t, err)
					require.Equal(t, many, bytes.Count(text, []byte("\n")))
				}
			})
		}
	}
}

// An import whose input does not come is interrupted at once, and has added nothing.
func TestL4_AnInterruptWhileAnImportReads(t *testing.T) {
	for _, where := range []string{"--store", "--url"} {
		ctx, interrupt := context.WithCancel(t.Context())
		in, letters := io.Pipe()
		target := filepath.Join(t.TempDir(), "x.db")
		if where == "--store" {
			makeFile(t, target)
		} else {
			target = newServed(t, nil).URL
		}
		line, err := os.ReadFile(manyLetters(t, 1))
		require.NoError(t, err)
		go func() {
			_, _ = letters.Write(line)
			interrupt()
		}()
		var out, errOut bytes.Buffer
		require.Equal(t, exitFailure, run(ctx, []string{"dlq", "import", where, target}, in, &out, &errOut))
		require.Equal(t, "eventbus: interrupted: nothing was imported yet\nnext: run the command again\n", errOut.String(), where)
		require.NoError(t, letters.Close())
	}
}

// served is the admin API of a bus. It calls a function before it serves a request.
type served struct {
	*httptest.Server
	bus *eventbus.Bus
}

func newServed(t *testing.T, before func(*http.Request)) *served {
	t.Helper()
	bus := eventbustest.NewUnstarted(t)
	eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
	_, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("billing"))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	h, err := admin.New(bus, admin.WithAuthorizer(func(*http.Request, admin.Action) (admin.Principal, error) {
		return admin.Principal{Name: "anna"}, nil
	}))
	require.NoError(t, err)
	s := &served{bus: bus}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before != nil {
			before(r)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// An interrupt at each request to a server says what was done, and leaves no operation behind.
func TestL4_AnInterruptAtEachRequest(t *testing.T) {
	letters := manyLetters(t, 50)
	for _, verb := range []string{"replay", "purge"} {
		for at, want := range map[string]string{
			"GET /api/v1/preview":     "nothing was PAST yet",
			"POST /api/v1/operations": "(nothing was PAST yet|[1-4][0-9] letters left)",
			"GET /api/v1/operations/": "[1-4][0-9] letters left",
		} {
			t.Run(verb+" "+at, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				var armed atomic.Bool
				s := newServed(t, func(r *http.Request) {
					if armed.Load() && strings.HasPrefix(r.Method+" "+r.URL.Path, at) {
						interrupt()
					}
				})
				file, err := os.Open(letters)
				require.NoError(t, err)
				defer file.Close()
				_, err = s.bus.DLQ().Import(t.Context(), file)
				require.NoError(t, err)
				armed.Store(true)
				var out, errOut bytes.Buffer
				code := run(ctx, []string{"dlq", verb, "--all", "--yes", "--rate", "10", "--url", s.URL}, strings.NewReader(""), &out, &errOut)
				require.Equal(t, exitFailure, code, errOut.String())
				past := map[string]string{"replay": "replayed", "purge": "purged"}[verb]
				require.Regexp(t, "(?m)^eventbus: interrupted: "+strings.ReplaceAll(want, "PAST", past)+"$", errOut.String())
				require.NotContains(t, out.String()+errOut.String(), "of 0 letters")
				_, list, _ := call(t, "operations", "list", "--json", "--url", s.URL)
				require.NotContains(t, list, `"state":"running"`)
				code, _, text := call(t, "dlq", verb, "--all", "--yes", "--url", s.URL)
				require.Zero(t, code, text)
				require.Zero(t, s.bus.Metrics().DeadLetters)
			})
		}
	}
}

// An export over a URL that is interrupted leaves no file.
func TestL4_AnInterruptOfAnExportFromAServer(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	s := newServed(t, func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/export") {
			interrupt()
			<-r.Context().Done()
		}
	})
	path := filepath.Join(t.TempDir(), "out.jsonl")
	var out, errOut bytes.Buffer
	require.Equal(t, exitFailure, run(ctx, []string{"dlq", "export", "--output", path, "--url", s.URL}, strings.NewReader(""), &out, &errOut))
	require.Equal(t, "eventbus: interrupted: nothing was exported yet\nnext: run the command again\n", errOut.String())
	require.NoFileExists(t, path)
	require.NoFileExists(t, path+".part")
}

// A command that was interrupted while it only reads says no more than that.
func TestL4_AnInterruptOfAList(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	path := newStore(t, "letters.jsonl")
	var out, errOut bytes.Buffer
	require.Equal(t, exitFailure, run(ctx, []string{"dlq", "groups", "--store", path}, strings.NewReader(""), &out, &errOut))
	require.Equal(t, "eventbus: interrupted\nnext: run the command again\n", errOut.String())
}

// What another operator cancels is no interrupt.
func TestL4_AnOperationThatAnotherOperatorCancels(t *testing.T) {
	b := operationServer(t, func(w http.ResponseWriter) {
		fmt.Fprint(w, `{"id":"1","state":"cancelled","cancelled_by":"ben","total":2,"done":1,"replay_report":{"matched":2,"replayed":1}}`)
	}, nil)
	_, err := b.ReplayMatching(t.Context(), eventbus.LetterQuery{All: true}, bulk{expect: 2})
	require.EqualError(t, err, `operation 1 was cancelled by "ben"`)
	require.NotEmpty(t, describe(err, true).next)
}

// An import over a URL that is interrupted once the server has all letters may have added some; the same import skips them.
func TestL4_AnInterruptWhileAServerImports(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	s := newServed(t, nil)
	handler := s.Config.Handler
	reads := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if !assert.NoError(t, err) {
			return
		}
		again := r.WithContext(context.WithoutCancel(r.Context()))
		again.Body = io.NopCloser(bytes.NewReader(text))
		handler.ServeHTTP(httptest.NewRecorder(), again)
		interrupt()
		<-r.Context().Done() // the answer is lost
	}))
	defer reads.Close()
	file := manyLetters(t, 10)
	var out, errOut bytes.Buffer
	require.Equal(t, exitFailure, run(ctx, []string{"dlq", "import", file, "--url", reads.URL}, strings.NewReader(""), &out, &errOut))
	require.Equal(t, "eventbus: interrupted: the server may have imported some of the letters\nnext: repeat the same import: it skips the letters that are there\n", errOut.String())
	code, text, problem := call(t, "dlq", "import", file, "--url", s.URL)
	require.Zero(t, code, problem)
	require.Equal(t, "imported 0 letters, skipped 10\n", text)
}

// An export over a URL that is interrupted in the middle says so, and leaves no file.
func TestL4_AnInterruptInTheMiddleOfAnExportFromAServer(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	letters, err := os.ReadFile(manyLetters(t, 10))
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(letters)
		_ = http.NewResponseController(w).Flush()
		interrupt()
		<-r.Context().Done()
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	var out, errOut bytes.Buffer
	require.Equal(t, exitFailure, run(ctx, []string{"dlq", "export", "--output", path, "--url", server.URL}, strings.NewReader(""), &out, &errOut))
	require.Regexp(t, `^eventbus: interrupted: (nothing was exported yet|\d+ of \d+ letters were exported)\nnext: run the command again`, errOut.String())
	require.NoFileExists(t, path)
	require.NoFileExists(t, path+".part")
}
