package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
)

// A page that shows figures is also a stream: asked for as text/event-stream, it sends its content, and then the lines that
// change.

// wantsStream reports whether the request asks for the stream of its page.
func (c *call) wantsStream() bool {
	return c.route.live && c.r.Method == http.MethodGet && strings.Contains(c.r.Header.Get("Accept"), "text/event-stream")
}

// followPage serves the stream of a page.
func (c *call) followPage() error {
	c.w.Header().Add("Vary", "Accept")
	permitted := c.permissions()
	key := "page " + c.r.URL.EscapedPath() + "?" + c.r.URL.RawQuery
	for _, action := range Actions() {
		if permitted[action] {
			key += " " + string(action) // what a page offers depends on the permissions, and on nothing else of the operator
		}
	}
	return c.follow("page", key, func() view {
		return &pageView{of: call{server: c.server, r: c.r.Clone(context.Background()), route: c.route, args: c.args, who: c.who, permitted: permitted}}
	})
}

// pageView is the content of a page.
type pageView struct {
	of      call
	lines   []string
	problem string
}

// pageMessage is a message of the stream of a page. Lines is the whole content, and Splices are changes of it.
type pageMessage struct {
	Lines   []string `json:"lines,omitempty"`
	Splices []splice `json:"splices,omitempty"`
	Problem string   `json:"problem,omitempty"` // why the content is not current
}

// splice replaces Cut lines from At on.
type splice struct {
	At  int      `json:"at"`
	Cut int      `json:"cut"`
	Put []string `json:"put"`
}

func (v *pageView) render(ctx context.Context, taken *snapshot) []byte {
	lines, problem := v.draw(ctx, taken)
	m := pageMessage{Problem: problem}
	if lines == nil {
		lines = v.lines
	}
	changes := problem != v.problem
	if v.lines == nil {
		m.Lines, changes = lines, true
	} else if m.Splices = splicesOf(v.lines, lines); len(m.Splices) > 0 {
		changes = true
	}
	v.lines, v.problem = lines, problem
	if !changes {
		return nil
	}
	return m.encode()
}

func (v *pageView) whole() []byte {
	if v.lines == nil && v.problem == "" {
		return nil
	}
	return pageMessage{Lines: v.lines, Problem: v.problem}.encode()
}

// encode returns the message as one line of JSON.
func (m pageMessage) encode() []byte {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	if out.Encode(m) != nil {
		return nil // strings always encode
	}
	return bytes.TrimSpace(b.Bytes())
}

// draw renders the page. lines is nil if there is a problem instead.
func (v *pageView) draw(ctx context.Context, taken *snapshot) (lines []string, problem string) {
	c := v.of
	c.id, c.ctx, c.taken, c.w, c.fragment = newRequestID(), ctx, taken, nowhere{}, new(bytes.Buffer)
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("admin live page panicked", c.attributes(slog.String("panic", panicText(p)))...)
			lines, problem = nil, "the page cannot be shown"
		}
	}()
	_, err := c.route.serve(&c)
	if err == nil {
		err = c.problem
	}
	if err != nil {
		problem = errorOf(err).Message
	}
	if c.fragment.Len() > 0 {
		lines = strings.Split(strings.TrimSpace(c.fragment.String()), "\n")
	}
	return lines, problem
}

// nowhere is the http.ResponseWriter of a page that is drawn for its streams.
type nowhere struct{}

func (nowhere) Header() http.Header            { return http.Header{} }
func (nowhere) Write(data []byte) (int, error) { return len(data), nil }
func (nowhere) WriteHeader(int)                {}

// splicesOf returns the changes between two contents: line by line if they have as many lines, and otherwise as one.
func splicesOf(old, now []string) (all []splice) {
	if len(old) == len(now) {
		for i := 0; i < len(now); i++ {
			from := i
			for i < len(now) && old[i] != now[i] {
				i++
			}
			if i > from {
				all = append(all, splice{from, i - from, slices.Clone(now[from:i])})
			}
		}
		return all
	}
	start, end := 0, 0
	for start < min(len(old), len(now)) && old[start] == now[start] {
		start++
	}
	for end < min(len(old), len(now))-start && old[len(old)-1-end] == now[len(now)-1-end] {
		end++
	}
	return []splice{{start, len(old) - end - start, append([]string{}, now[start:len(now)-end]...)}}
}
