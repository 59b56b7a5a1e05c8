package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// client is an operator over HTTP.
type client struct {
	url, password string
	http          *http.Client
	out           io.Writer
}

// check requests every page, and does what an operator does. It returns the first error.
func (c *client) check(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{"groups of dead letters", c.groups},
		{"pages", c.pages},
		{"replay of a letter", c.replay},
		{"pause and resume", c.pause},
		{"bulk replay", c.bulk},
		{"audit", c.audit},
	} {
		seen, err := step.do(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(c.out, "%s: %s\n", step.name, seen)
	}
	return nil
}

// groups waits until an event has died.
func (c *client) groups(ctx context.Context) (string, error) {
	var answer struct{ Groups []eventbus.LetterGroup }
	err := c.until(ctx, func() (bool, error) {
		err := c.get(ctx, "/api/v1/groups", &answer)
		return len(answer.Groups) > 0, err
	})
	if err != nil {
		return "", err
	}
	g := answer.Groups[0]
	return fmt.Sprintf("%d, the largest of %s: %s", len(answer.Groups), g.Subscription, g.Message), nil
}

// pages looks at each page as a browser does.
func (c *client) pages(ctx context.Context) (string, error) {
	pages := []string{"/", "/groups", "/letters?subscription=billing", "/subscriptions", "/subscriptions/stock", "/events", "/explain?type=order.paid", "/audit", "/operations"}
	for _, page := range pages {
		answer, err := c.do(ctx, http.MethodGet, page, "", nil)
		if err != nil {
			return "", err
		}
		if !strings.Contains(string(answer), "<h1>") {
			return "", fmt.Errorf("%s has no heading", page)
		}
	}
	return fmt.Sprintf("%d are well", len(pages)), nil
}

// replay replays the newest letter with the form of its page.
func (c *client) replay(ctx context.Context) (string, error) {
	var page eventbus.LetterPage
	if err := c.get(ctx, "/api/v1/letters?limit=1", &page); err != nil {
		return "", err
	}
	if len(page.Letters) == 0 {
		return "", errors.New("there is no letter")
	}
	id := page.Letters[0].ID.String()
	form := url.Values{"why": {"the bank answers again"}}
	answer, err := c.do(ctx, http.MethodPost, "/letters/"+id+"/replay", "application/x-www-form-urlencoded", strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	if !strings.Contains(string(answer), page.Letters[0].Event.ID.String()) {
		return "", errors.New("the page after the replay does not show the event")
	}
	return page.Letters[0].Event.Type + " " + id, nil
}

// pause pauses a subscription, sees that deliveries are held, and resumes it.
func (c *client) pause(ctx context.Context) (string, error) {
	const mail = "/api/v1/subscriptions/mail"
	if err := c.post(ctx, mail+"/pause", map[string]any{"why": "the mail server moves"}, nil); err != nil {
		return "", err
	}
	var s eventbus.SubscriptionMetrics
	err := c.until(ctx, func() (bool, error) {
		err := c.get(ctx, mail, &s)
		return s.Paused && s.Held > 0, err
	})
	if err != nil {
		return "", err
	}
	held := s.Held
	if err := c.post(ctx, mail+"/resume", map[string]any{"why": "the mail server has moved"}, nil); err != nil {
		return "", err
	}
	err = c.until(ctx, func() (bool, error) {
		err := c.get(ctx, mail, &s)
		return !s.Paused && s.Held == 0, err
	})
	return fmt.Sprintf("%d deliveries were held and have resumed", held), err
}

// bulk waits until a payment has died, replays all letters of billing, and watches the operation.
func (c *client) bulk(ctx context.Context) (string, error) {
	var preview eventbus.ReplayPreview
	var query map[string]any
	err := c.until(ctx, func() (bool, error) {
		query = map[string]any{"subscription": "billing", "until": time.Now().UTC()}
		parameters := url.Values{"subscription": {"billing"}, "until": {query["until"].(time.Time).Format(time.RFC3339Nano)}}
		err := c.get(ctx, "/api/v1/preview?"+parameters.Encode(), &preview)
		return preview.Matched > 0, err
	})
	if err != nil {
		return "", err
	}
	var operation struct {
		ID, State, Error string
		Done             int
	}
	order := map[string]any{"action": "replay_matching", "query": query, "expect": preview.Matched, "rate": 1000, "why": "the bank answers again"}
	if err := c.post(ctx, "/api/v1/operations", order, &operation); err != nil {
		return "", err
	}
	err = c.until(ctx, func() (bool, error) {
		err := c.get(ctx, "/api/v1/operations/"+operation.ID, &operation)
		return operation.State != "running", err
	})
	if err == nil && operation.State != "done" {
		err = fmt.Errorf("the operation has ended as %s: %s", operation.State, operation.Error)
	}
	return fmt.Sprintf("%d letters", operation.Done), err
}

// audit sees that what was done above is on record.
func (c *client) audit(ctx context.Context) (string, error) {
	var page eventbus.AuditPage
	if err := c.get(ctx, "/api/v1/audit", &page); err != nil {
		return "", err
	}
	found := make(map[eventbus.AuditAction]bool)
	for _, e := range page.Entries {
		found[e.Action] = e.By == operator && e.Why != ""
	}
	for _, action := range []eventbus.AuditAction{eventbus.AuditReplay, eventbus.AuditPause, eventbus.AuditResume, eventbus.AuditReplayMatching} {
		if !found[action] {
			return "", fmt.Errorf("no entry for %s with who and why", action)
		}
	}
	return fmt.Sprintf("%d entries", len(page.Entries)), nil
}

// until calls done until it is done, for up to 30 s.
func (c *client) until(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("it took longer than 30 s"))
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *client) get(ctx context.Context, path string, answer any) error {
	body, err := c.do(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, answer)
}

// post sends JSON. answer may be nil.
func (c *client) post(ctx context.Context, path string, value, answer any) error {
	body, err := json.Marshal(value)
	if err == nil {
		body, err = c.do(ctx, http.MethodPost, path, "application/json", bytes.NewReader(body))
	}
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(body, answer)
}

// do sends a request and follows redirects. It returns the body of an answer with the status 2xx.
func (c *client) do(ctx context.Context, method, path, contentType string, body io.Reader) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	r.SetBasicAuth(operator, c.password)
	if body != nil {
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Sec-Fetch-Site", "same-origin") // as a browser does
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text[:min(len(text), 500)])
	}
	return text, err
}
