package docs_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/storetest"
)

func TestDocs_Webhooks(t *testing.T) {
	docpagetest.Page(t, "webhooks.md",
		docpagetest.Code(docsWebhooksIn),
		docpagetest.Code(docsWebhooksOut), // the three blocks about what goes out
		docpagetest.Code(docsWebhooksOut),
		docpagetest.Code(docsWebhooksOut),
	)
}

func docsWebhooksIn(t *testing.T) error {
	secret := []byte("only the bank and you know it")
	receiver := func(bus *eventbus.Bus) (post func(body string, secret []byte) (status int, retryAfter string)) {
		mux := http.NewServeMux()
		type Payment struct {
			ID    string `json:"id"` // the same in each repetition
			Order string `json:"order"`
			Cents int    `json:"cents"`
		}
		mux.HandleFunc("POST /hooks/bank", func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
			if err != nil {
				http.Error(w, "too large", http.StatusRequestEntityTooLarge)
				return
			}
			mac := hmac.New(sha256.New, secret) // see how your sender signs: here, the HMAC of the body in hex
			mac.Write(body)
			sent, err := hex.DecodeString(r.Header.Get("X-Signature"))
			if err != nil || !hmac.Equal(sent, mac.Sum(nil)) {
				http.Error(w, "wrong signature", http.StatusUnauthorized)
				return
			}
			var p Payment
			if err := json.Unmarshal(body, &p); err != nil || p.ID == "" {
				http.Error(w, "invalid payment", http.StatusBadRequest)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second) // Publish waits for room, or for the disk
			defer cancel()
			_, err = bus.Publish(ctx, "payment.reported", p, eventbus.Key(p.Order), eventbus.IdempotencyKey("bank:"+p.ID))
			switch {
			case err == nil:
				w.WriteHeader(http.StatusOK) // accepted now, or before
			case errors.Is(err, eventbus.ErrDuplicateID):
				http.Error(w, "this id has another order", http.StatusConflict)
			case errors.Is(err, eventbus.ErrInvalidEvent):
				http.Error(w, "invalid payment", http.StatusUnprocessableEntity)
			case errors.Is(err, eventbus.ErrQueueFull):
				w.Header().Set("Retry-After", "30")
				http.Error(w, "busy", http.StatusServiceUnavailable)
			default:
				w.Header().Set("Retry-After", "5")
				http.Error(w, "try again", http.StatusServiceUnavailable)
			}
		})
		return func(body string, secret []byte) (int, string) {
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte(body))
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/bank", strings.NewReader(body))
			request.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
			answer := httptest.NewRecorder()
			mux.ServeHTTP(answer, request)
			return answer.Code, answer.Header().Get("Retry-After")
		}
	}
	expect := func(post func(string, []byte) (int, string), body string, status int, retryAfter string) {
		t.Helper()
		got, after := post(body, secret)
		require.Equal(t, status, got)
		require.Equal(t, retryAfter, after)
	}
	payment := `{"id": "p-1", "order": "o-1", "cents": 4200}`

	inMemoryAndStored(t, func(t *testing.T, newBus func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus) {
		var rec eventbustest.Recorder
		bus := newBus(t)
		_, err := bus.Subscribe("payment.*", rec.Handle, eventbus.Named("ledger"))
		require.NoError(t, err)
		post := receiver(bus)
		expect(post, payment, http.StatusOK, "")
		expect(post, payment, http.StatusOK, "")                                           // a repetition
		expect(post, `{"id": "p-1", "order": "o-1", "cents": 1}`, http.StatusOK, "")       // with another body
		expect(post, `{"id": "p-1", "order": "o-2", "cents": 1}`, http.StatusConflict, "") // with another order
		expect(post, `{"id": "`+strings.Repeat("p", 300)+`"}`, http.StatusUnprocessableEntity, "")
		expect(post, `{"id": 1}`, http.StatusBadRequest, "")
		expect(post, strings.Repeat(" ", 1<<20+1), http.StatusRequestEntityTooLarge, "")
		status, _ := post(payment, []byte("guessed"))
		require.Equal(t, http.StatusUnauthorized, status)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 1, rec.Len())

		// With an id instead of the key, a store refuses another body.
		id := eventbus.DeriveID(eventbus.NewEventID(), "p-1")
		_, err = bus.Publish(t.Context(), "payment.reported", 1, eventbus.ID(id))
		require.NoError(t, err)
		_, err = bus.Publish(t.Context(), "payment.reported", 2, eventbus.ID(id))
		if bus.Metrics().Store == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		}
		require.NoError(t, bus.Shutdown(t.Context()))
		expect(post, payment, http.StatusServiceUnavailable, "5") // ErrShutdown
	})

	full := eventbustest.NewUnstarted(t, eventbus.WithQueueCapacity(1))
	_, err := full.Subscribe("payment.*", func(context.Context, eventbus.Event) error { return nil })
	require.NoError(t, err)
	post := receiver(full)
	expect(post, payment, http.StatusOK, "")
	expect(post, `{"id": "p-2", "order": "o-1"}`, http.StatusServiceUnavailable, "30")
	expect(post, payment, http.StatusOK, "") // a repetition needs no room
	return full.Start(t.Context())
}

// receivers are the services of the customers.
type receivers struct{ sync.Map }

func (r *receivers) RoundTrip(request *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	serve, ok := r.Load(request.URL.Host)
	if !ok {
		return nil, errors.New("connection refused")
	}
	serve.(http.HandlerFunc)(answer, request)
	return answer.Result(), request.Context().Err()
}

func answers(status int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
	}
}

func docsWebhooksOut(t *testing.T) error {
	inMemoryAndStored(t, func(t *testing.T, newBus func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus) {
		synctest.Test(t, func(t *testing.T) {
			type Invoice struct{ Number int }
			ctx, invoice := t.Context(), Invoice{17}
			transport := new(receivers)
			urlOf := func(customer string) string { return "https://" + customer + "/hooks" }
			var rec eventbustest.Recorder
			bus := newBus(t, eventbus.WithLogger(zap.NewNop()), eventbus.WithMiddleware(rec.Wrap))
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
			var received shared[[]string]
			transport.Store("acme", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				received.do(func(all *[]string) { *all = append(*all, r.Header.Get("Webhook-Id")+" "+string(body)) })
			}))
			outgoing := func() error {
				client := &http.Client{
					Transport:     transport, // an http.RoundTripper: customers choose the URLs, so it must refuse addresses of your network
					CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
				}
				send := func(ctx context.Context, e eventbus.Event) error {
					customer := e.Metadata.Get("customer")
					body, err := json.Marshal(e.Payload)
					if err != nil {
						return eventbus.Permanent(err)
					}
					request, err := http.NewRequestWithContext(ctx, http.MethodPost, urlOf(customer), bytes.NewReader(body))
					if err != nil {
						return eventbus.Permanent(err)
					}
					request.Header.Set("Webhook-Id", e.ID.String()) // the same in each attempt: the receiver's idempotency key
					response, err := client.Do(request)
					if err != nil {
						return err
					}
					defer response.Body.Close()
					failed := fmt.Errorf("webhook of %s: %s", customer, response.Status)
					switch code := response.StatusCode; {
					case code < 300:
						return nil
					case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
						after, _ := time.ParseDuration(response.Header.Get("Retry-After") + "s")
						return eventbus.Throttle(failed, after) // without Retry-After in seconds: a failure as usual
					case code == http.StatusRequestTimeout, code >= 500:
						return failed
					}
					return eventbus.Permanent(failed) // a redirect, or 4xx
				}
				_, err := bus.Subscribe("invoice.*", send, eventbus.Named("webhooks"), eventbus.Isolated(),
					eventbus.PerDestination(func(e eventbus.Event) string { return e.Metadata.Get("customer") }),
					eventbus.Concurrency(2), eventbus.Timeout(10*time.Second),
					eventbus.Retry(eventbus.Delays(time.Minute, 10*time.Minute, time.Hour, 6*time.Hour)))
				if err != nil {
					return err
				}
				_, err = bus.Publish(ctx, "invoice.sent", invoice, eventbus.Metadata("customer", "acme"), eventbus.ExpiresIn(72*time.Hour))
				return err
			}
			require.NoError(t, outgoing())
			eventbustest.WaitSettled(t, bus)
			require.Equal(t, []string{rec.Deliveries()[0].Event.ID.String() + ` {"Number":17}`}, received.get())

			var mails shared[[]string]
			mail := func(_ context.Context, customer string, letter eventbus.DeadLetter) error {
				mails.do(func(all *[]string) { *all = append(*all, fmt.Sprint(customer, " ", letter.Reason)) })
				return nil
			}
			guard := func() error {
				_, err := bus.OnDeadLetter("invoice.*", func(ctx context.Context, letter eventbus.DeadLetter) error {
					if letter.Subscription != "webhooks" {
						return nil
					}
					customer := letter.Event.Metadata.Get("customer")
					hook := bus.Subscription("webhooks").Destination(customer)
					if err := hook.Pause(eventbus.By("webhook-guard"), eventbus.Because("dead letter: "+string(letter.Reason))); err != nil {
						return err // it is retried
					}
					return mail(ctx, customer, letter)
				}, eventbus.Named("webhook-guard"))
				return err
			}
			require.NoError(t, guard())

			send := func(customer string) (id eventbus.EventID) {
				id, err := bus.Publish(ctx, "invoice.sent", invoice, eventbus.Metadata("customer", customer))
				require.NoError(t, err)
				return id
			}
			waits := func(d time.Duration) { time.Sleep(d); synctest.Wait() }

			// 429: all of this customer wait, without attempts.
			transport.Store("globex", answers(http.StatusTooManyRequests, "Retry-After", "120"))
			id, next := send("globex"), send("globex")
			waits(119 * time.Second)
			require.Len(t, rec.ByEvent(id), 1)
			transport.Store("globex", answers(http.StatusOK))
			waits(2 * time.Second)
			require.Len(t, rec.ByEvent(id), 2)
			require.Equal(t, 1, rec.ByEvent(id)[1].Attempt)
			require.NoError(t, rec.ByEvent(next)[len(rec.ByEvent(next))-1].Err)
			require.Equal(t, 1, rec.ByEvent(next)[len(rec.ByEvent(next))-1].Attempt)

			// A redirect and a 410 die at once. A 500, a 503 without seconds in Retry-After and a dead host are retried.
			transport.Store("redirected", answers(http.StatusFound, "Location", "https://globex/hooks"))
			transport.Store("broken", answers(http.StatusInternalServerError))
			transport.Store("busy", answers(http.StatusServiceUnavailable, "Retry-After", "Mon, 30 Nov 2026 12:00:00 GMT"))
			send("redirected")
			broken, busy, dead := send("broken"), send("busy"), send("dead")
			transport.Store("slow", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			slow := send("slow")
			waits(time.Second)
			require.Equal(t, []string{"redirected permanent"}, mails.get())
			waits(10 * time.Second)
			transport.Store("slow", answers(http.StatusOK))
			waits(24 * time.Hour)
			delays := []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour}
			for _, id := range []eventbus.EventID{broken, busy, dead} {
				require.Len(t, rec.Delays(id), len(delays))
				for i, d := range rec.Delays(id) {
					require.InEpsilon(t, delays[i], d, 0.11)
				}
			}
			require.Len(t, rec.ByEvent(slow), 2)
			require.InDelta(t, 10, rec.ByEvent(slow)[0].EndedAt.Sub(rec.ByEvent(slow)[0].Begun).Seconds(), 0.1)
			require.ElementsMatch(t, []string{"redirected permanent", "broken exhausted", "busy exhausted", "dead exhausted"}, mails.get())

			// The webhook of acme is gone, and comes back.
			transport.Store("acme", answers(http.StatusGone))
			send("acme")
			waits(time.Second)
			require.Contains(t, mails.get(), "acme permanent")
			send("acme")
			waits(time.Hour)
			require.Equal(t, 1, bus.Metrics().Held)
			var sent atomic.Int32
			transport.Store("acme", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
			mended := func() error {
				if err := bus.Subscription("webhooks").Destination("acme").Resume(eventbus.Because("new URL")); err != nil {
					return err
				}
				letters := eventbus.LetterQuery{Subscription: "webhooks", MetadataName: "customer", MetadataValue: "acme"}
				report, err := bus.DLQ().ReplayMatching(ctx, letters, eventbus.Rate(10), eventbus.Because("new URL"))
				require.Equal(t, 1, report.Replayed)
				return err
			}
			require.NoError(t, mended())
			waits(time.Second)
			require.EqualValues(t, 2, sent.Load())
		})
	})
	return nil
}

// With a store, the pause of a destination survives a restart.
func TestPages_WebhooksPauseSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		var rec eventbustest.Recorder
		start := func() *eventbus.Bus {
			bus := eventbustest.New(t, eventbus.WithStore(model.Open()), eventbus.WithLogger(zap.NewNop()))
			_, err := bus.Subscribe("invoice.*", rec.Handle, eventbus.Named("webhooks"),
				eventbus.PerDestination(func(e eventbus.Event) string { return e.Metadata.Get("customer") }))
			require.NoError(t, err)
			return bus
		}
		bus := start()
		require.NoError(t, bus.Subscription("webhooks").Destination("acme").Pause())
		eventbustest.Crash(t, bus, model.Crash)
		bus = start()
		_, err := bus.Publish(t.Context(), "invoice.sent", 17, eventbus.Metadata("customer", "acme"))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.Zero(t, rec.Len())
		require.NoError(t, bus.Subscription("webhooks").Destination("acme").Resume())
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 1, rec.Len())
	})
}

// Snooze does not end by itself, and ExpiresIn ends what waits.
func TestPages_WebhooksWithoutAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventbustest.New(t, eventbus.WithLogger(zap.NewNop()))
		for name, opts := range map[string][]eventbus.SubscribeOption{"forever": nil, "bounded": {eventbus.Retry(eventbus.MaxElapsed(time.Hour))}} {
			_, err := bus.Subscribe("invoice.*", func(context.Context, eventbus.Event) error {
				return eventbus.Snooze(time.Minute)
			}, append(opts, eventbus.Named(name), eventbus.Isolated())...)
			require.NoError(t, err)
		}
		_, err := bus.Publish(t.Context(), "invoice.sent", 17, eventbus.ExpiresIn(72*time.Hour))
		require.NoError(t, err)
		time.Sleep(2*time.Hour + 30*time.Second) // not when a snooze ends
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Len(t, page.Letters, 1)
		require.Equal(t, eventbus.ReasonExpired, page.Letters[0].Reason)
		require.Equal(t, 1, bus.Metrics().Snoozed)
		time.Sleep(71 * time.Hour)
		require.Equal(t, eventbus.ReasonExpired, eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Subscription: "bounded"}).Reason)
		require.Equal(t, eventbus.ReasonTooLate, eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Subscription: "forever"}).Reason)
	})
}

// inMemoryAndStored is eventbustest.Both without subtests: a block of code is one.
func inMemoryAndStored(t *testing.T, test func(t *testing.T, newBus func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus)) {
	t.Helper()
	test(t, eventbustest.New)
	test(t, func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
		return eventbustest.New(t, append([]eventbus.Option{eventbus.WithStore(storetest.NewModel().Open())}, opts...)...)
	})
}
