package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/storetest"
)

// watcher is a browser that has a page open. It keeps the content as the script of the page does.
type watcher struct {
	*httptest.ResponseRecorder
	ended chan struct{} // closed when the stream has ended
	close context.CancelFunc

	mu      sync.Mutex // guards the following
	text    []byte
	lines   []string
	problem string
	ending  string
	events  int
}

// watch opens the stream of a page.
func watch(t *testing.T, h http.Handler, r *http.Request) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{ResponseRecorder: httptest.NewRecorder(), ended: make(chan struct{}), close: cancel}
	t.Cleanup(cancel)
	r.Header.Set("Accept", "text/event-stream")
	go func() {
		defer close(w.ended)
		h.ServeHTTP(w, r.WithContext(ctx))
	}()
	return w
}

func watchPage(t *testing.T, h http.Handler, path, user string) *watcher {
	t.Helper()
	r := request(t, http.MethodGet, path, "")
	r.Header.Set("X-Test-User", user)
	return watch(t, h, r)
}

func (w *watcher) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Code != http.StatusOK { // an error
		return len(data), nil
	}
	w.text = append(w.text, data...)
	for {
		message, rest, ok := bytes.Cut(w.text, []byte("\n\n"))
		if !ok {
			return len(data), nil
		}
		w.text = slices.Clone(rest)
		w.take(string(message))
	}
}

func (w *watcher) take(text string) {
	event, data, _ := strings.Cut(text, "\ndata: ")
	var m struct {
		Why     string
		Lines   []string
		Splices []struct {
			At, Cut int
			Put     []string
		}
		Problem string
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		panic(fmt.Sprintf("%s: %q", err, text))
	}
	switch event {
	case "event: end":
		w.ending = m.Why
	case "event: page":
		w.events++
		w.problem = m.Problem
		if m.Lines != nil {
			w.lines = m.Lines
		}
		for _, s := range slices.Backward(m.Splices) {
			w.lines = slices.Replace(w.lines, s.At, s.At+s.Cut, s.Put...)
		}
	}
}

func (w *watcher) Flush() {}

// shows returns the content of the page, as the text of its elements.
func (w *watcher) shows(t *testing.T) string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	page := httptest.NewRecorder()
	_, _ = page.WriteString("<html><main>" + strings.Join(w.lines, "\n") + "</main></html>")
	return parse(t, page).text()
}

func (w *watcher) said() (problem, ending string, events int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem, w.ending, w.events
}

// tick lets a second pass, in which open pages are renewed.
func tick() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// Each page that shows figures is a stream, which has at each time what the page would have.
func TestLive_PagesAreStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newRefusing(t, eventbus.WithStore(storetest.NewModel().Open()))
		h := newHandler(t, bus)
		refuse(t, bus, 2, "card declined")
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		letter := page.Letters[0]
		watchers := make(map[string]*watcher)
		for _, path := range []string{
			"/", "/groups", "/letters?type=order.*", "/letters/" + letter.ID.String(), "/operations", "/subscriptions?sort=-failures",
			"/subscriptions/billing", "/subscriptions/billing?span=day", "/events", "/events/" + letter.Event.ID.String(), "/audit",
		} {
			watchers[path] = watchPage(t, h, path, "anna")
		}
		same := func() {
			t.Helper()
			tick()
			for path, w := range watchers {
				fresh := parse(t, serve(h, request(t, http.MethodGet, path, "")))
				badge := attention(fresh) + " "
				require.Equal(t, strings.TrimSpace(badge+fresh.text()), w.shows(t), path)
			}
		}
		same()
		refuse(t, bus, 3, "bank is closed")
		same()
		require.NoError(t, bus.Subscription("billing").Pause(eventbus.By("anna")))
		_, err = bus.Publish(t.Context(), "order.placed", "")
		require.NoError(t, err)
		same()
		require.Contains(t, watchers["/"].shows(t), "billing is paused")
		_, err = bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Error: "bank"})
		require.NoError(t, err)
		same()

		_, _, before := watchers["/operations"].said()
		for range 5 {
			tick()
		}
		_, _, after := watchers["/operations"].said()
		require.Equal(t, before, after, "nothing is sent while nothing changes")

		plain := serve(h, request(t, http.MethodGet, "/explain", ""))
		r := request(t, http.MethodGet, "/explain", "")
		r.Header.Set("Accept", "text/event-stream")
		require.Equal(t, plain.Body.String(), serve(h, r).Body.String(), "a page without figures is no stream")
	})
}

// What a page shows may go away, or be refused by the store, while it is open. The page then says so, and goes on.
func TestLive_AChangedSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newRefusing(t)
		h := newHandler(t, bus)
		refuse(t, bus, 2, "card declined")
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		letter, list := watchPage(t, h, "/letters/"+page.Letters[0].ID.String(), "anna"), watchPage(t, h, "/letters", "anna")
		group := watchPage(t, h, "/letters?fingerprint="+page.Letters[0].Group().Fingerprint, "anna")
		tick()
		require.Contains(t, list.shows(t), "2 letters")
		require.NoError(t, bus.DLQ().Purge(t.Context(), page.Letters[0].ID))
		tick()
		require.Contains(t, list.shows(t), "1 letter")
		require.Contains(t, group.shows(t), "1 letter")
		require.Contains(t, letter.shows(t), "card declined", "it stays to be read")
		problem, ending, _ := letter.said()
		require.Contains(t, problem, "the letter is gone: purge")
		require.Empty(t, ending)
		require.NoError(t, bus.DLQ().Purge(t.Context(), page.Letters[1].ID))
		tick()
		require.Contains(t, group.shows(t), "No letter matches.")

		require.NoError(t, bus.Shutdown(t.Context()))
		for _, w := range []*watcher{letter, list, group} {
			<-w.ended
			_, ending, _ := w.said()
			require.Equal(t, "stopping", ending)
		}
	})
}

// A stream ends when its credentials are no longer valid, and when a permission to see something ends.
func TestZ4_ALivePageEndsWithItsCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var password, payloads atomic.Bool
		password.Store(true)
		payloads.Store(true)
		h := newHandler(t, newFailing(t).Bus, admin.WithAuthorizer(func(_ *http.Request, action admin.Action) (admin.Principal, error) {
			switch {
			case !password.Load():
				return admin.Principal{}, admin.ErrUnauthenticated
			case action == admin.ActionViewPayload && !payloads.Load():
				return admin.Principal{Name: "anna"}, admin.ErrForbidden
			}
			return admin.Principal{Name: "anna"}, nil
		}))
		first, api := watchPage(t, h, "/", "anna"), watchPage(t, h, "/api/v1/live", "anna")
		time.Sleep(time.Minute)
		synctest.Wait()
		_, ending, _ := first.said()
		require.Empty(t, ending)
		payloads.Store(false)
		time.Sleep(10 * time.Second)
		<-first.ended
		<-api.ended
		_, ending, _ = first.said()
		require.Equal(t, "denied", ending)

		second := watchPage(t, h, "/", "anna")
		time.Sleep(time.Minute)
		password.Store(false)
		time.Sleep(10 * time.Second)
		<-second.ended
		_, ending, _ = second.said()
		require.Equal(t, "denied", ending)
		require.Equal(t, http.StatusUnauthorized, serve(h, request(t, http.MethodGet, "/", "")).Code)
	})
}

// Operators with different permissions have a page open at once: a stream has no more than its own operator may see.
func TestZ11_LivePagesDoNotShareWhatOnlyOneMaySee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "4111-1111"
		bus := newFailing(t)
		letter := func() string {
			_, err := bus.PublishAndWait(t.Context(), "order.placed", order{Card: secret})
			var failed *eventbus.DeliveryError
			require.ErrorAs(t, err, &failed)
			return failed.Letters[0].ID.String()
		}()
		h := newHandler(t, bus.Bus, admin.WithAuthorizer(func(r *http.Request, action admin.Action) (admin.Principal, error) {
			who := admin.Principal{Name: r.Header.Get("X-Test-User")}
			if who.Name == "vera" && action != admin.ActionView {
				return who, admin.ErrForbidden
			}
			return who, nil
		}))
		for range 2 { // each of them first
			anna, vera := watchPage(t, h, "/letters/"+letter, "anna"), watchPage(t, h, "/letters/"+letter, "vera")
			tick()
			require.Contains(t, anna.shows(t), secret)
			require.NotContains(t, vera.shows(t), secret)
			require.NotContains(t, vera.shows(t), "Replay")
			vera.close()
			<-vera.ended
			again := watchPage(t, h, "/letters/"+letter, "vera")
			tick()
			require.NotContains(t, again.shows(t), secret)
			anna.close()
			again.close()
			synctest.Wait()
		}
		r := request(t, http.MethodGet, "/letters/"+letter+"/edit", "")
		r.Header.Set("X-Test-User", "vera")
		r.Header.Set("Accept", "text/event-stream")
		require.Equal(t, http.StatusForbidden, serve(h, r).Code)
	})
}

// slots is a handler with operators anna and ben, and viewers with other names.
func newSlots(t *testing.T) (h http.Handler, bus *eventbus.Bus) {
	t.Helper()
	bus = newFailing(t).Bus
	return newHandler(t, bus, admin.WithAuthorizer(func(r *http.Request, action admin.Action) (admin.Principal, error) {
		who := admin.Principal{Name: r.Header.Get("X-Test-User")}
		if who.Name != "anna" && who.Name != "ben" && action != admin.ActionView {
			return who, admin.ErrForbidden
		}
		return who, nil
	})), bus
}

// An operator who may only look can take all live pages while nobody else needs one, and keeps none from others.
func TestZ18_NoOperatorTakesAllLivePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newSlots(t)
		open := func(user string, n int) (all []*watcher) {
			for range n {
				all = append(all, watchPage(t, h, "/", user))
				synctest.Wait()
			}
			return all
		}
		alive := func(all []*watcher) (n int) {
			synctest.Wait()
			for _, w := range all {
				select {
				case <-w.ended:
				default:
					n++
				}
			}
			return n
		}
		guest := open("guest", 300)
		require.Equal(t, 256, alive(guest), "as long as nobody else needs one")
		require.Equal(t, http.StatusTooManyRequests, guest[299].Code)
		anna := open("anna", 3)
		require.Equal(t, 3, alive(anna))
		require.Equal(t, 253, alive(guest))
		_, ending, _ := guest[0].said()
		require.Equal(t, "full", ending, "the oldest page is the one that was forgotten")
		vera := open("vera", 200)
		require.InDelta(t, alive(vera), alive(guest), 1, "those who may only look share")
		require.Equal(t, 3, alive(anna))
		again := open("guest", 100)
		require.InDelta(t, alive(vera), alive(guest)+alive(again), 2)
	})
}

// Many viewers with a page each do not lock out an operator who may change something.
func TestZ18_ManyViewersDoNotLockOutAnOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newSlots(t)
		for i := range 256 {
			watchPage(t, h, "/", fmt.Sprint("viewer", i))
		}
		synctest.Wait()
		late := watchPage(t, h, "/", "viewer256")
		<-late.ended
		require.Equal(t, http.StatusTooManyRequests, late.Code)
		var anna []*watcher
		for range 70 {
			anna = append(anna, watchPage(t, h, "/", "anna"))
			synctest.Wait()
		}
		tick()
		open := 0
		for _, w := range anna {
			if _, _, events := w.said(); events > 0 {
				open++
			}
		}
		require.Equal(t, 64, open, "the others keep some")
		ben := watchPage(t, h, "/", "ben")
		tick()
		_, _, events := ben.said()
		require.Equal(t, 1, events)
	})
}

// Ten thousand streams at once: 256 are open, the others are refused, and an operator still gets one. All end with the bus.
func TestZ18_TenThousandStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, bus := newSlots(t)
		all := make([]*watcher, 10_000)
		for i := range all {
			all[i] = watchPage(t, h, []string{"/", "/subscriptions", "/groups", "/events?limit=" + fmt.Sprint(1+i%500)}[i%4], fmt.Sprint("viewer", i%50))
		}
		synctest.Wait()
		tick()
		open := 0
		for _, w := range all {
			select {
			case <-w.ended:
				_, ending, _ := w.said()
				require.True(t, w.Code == http.StatusTooManyRequests || ending == "full", w.Code)
			default:
				open++
			}
		}
		require.Equal(t, 256, open)
		anna := watchPage(t, h, "/subscriptions/billing", "anna")
		tick()
		require.Contains(t, anna.shows(t), "billing")
		require.NoError(t, bus.Shutdown(t.Context()))
		for _, w := range all {
			<-w.ended
		}
		<-anna.ended
	})
}

// 200 open pages of several kinds read the metrics once a second, and render each kind once.
func TestZ18_OpenPagesShareOneSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: newStore(t)}
		bus := newFailing(t, eventbus.WithStore(store))
		h := newHandler(t, bus.Bus)
		_ = bus.die(t, 3)
		var pages []*watcher
		for i := range 200 {
			pages = append(pages, watchPage(t, h, []string{"/", "/groups", "/subscriptions", "/subscriptions/billing"}[i%4], "anna"))
		}
		tick()
		before := store.stats.Load()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.LessOrEqual(t, store.stats.Load()-before, int64(11))
		for _, w := range pages {
			require.NotEmpty(t, w.shows(t))
			w.close()
		}
		synctest.Wait()
		before = store.stats.Load()
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, store.stats.Load()-before, int64(2), "no page, no read, but that of the minute")
	})
}

// Names, keys and errors of every kind reach a live page as texts on one line each.
func TestZ9_HostileTextsOnLivePages(t *testing.T) {
	for i, text := range append(hostileTexts, strings.Repeat("long ", 8<<10/5), "a\n\ndata: x\nevent: end\ndata: {\"why\":\"denied\"}\n\n") {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				name := strings.ToValidUTF8(strings.Map(func(r rune) rune {
					if unicode.IsControl(r) {
						return -1
					}
					return r
				}, text), "")
				name = strings.ToValidUTF8(name[:min(len(name), 200)], "")
				bus := newBus(t)
				_, err := bus.Subscribe("**", func(context.Context, eventbus.Event) error { return eventbus.Permanent(errors.New(text)) },
					eventbus.Named(name), eventbus.Circuit(eventbus.NoCircuit()))
				require.NoError(t, err)
				require.NoError(t, bus.Start(t.Context()))
				h := newHandler(t, bus)
				var all []*watcher
				for _, path := range []string{"/", "/letters", "/groups", "/subscriptions"} {
					all = append(all, watchPage(t, h, path, "anna"))
				}
				tick()
				_, err = bus.PublishAndWait(t.Context(), "order.placed", 1, eventbus.Key(name))
				require.ErrorAs(t, err, new(*eventbus.DeliveryError))
				tick()
				for _, w := range all {
					problem, ending, events := w.said()
					require.Empty(t, problem)
					require.Empty(t, ending)
					require.GreaterOrEqual(t, events, 2)
					for _, line := range w.lines {
						line = values.ReplaceAllString(line, "")
						require.Negative(t, strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }), line)
						require.NotContains(t, line, "<script")
						require.NotContains(t, line, "<img")
					}
				}
			})
		})
	}
}
