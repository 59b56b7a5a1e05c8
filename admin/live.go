package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// Limits of live streams.
const (
	liveInterval = time.Second
	maxLive      = 256              // streams
	reservedLive = 64               // that an operator gets from those who may only look
	liveBacklog  = 2                // messages that wait for a slow client, before it is dropped
	liveCheck    = 10 * time.Second // between two looks at the credentials of a stream
	liveTimeout  = 2 * time.Second  // of the rendering of a page
	liveLifetime = 5 * time.Minute  // a browser reconnects, and is authorized again
)

// live renews what open pages show, once a second. Streams of the same content share one topic, and all topics of a round
// share one snapshot. It runs only while there are streams. However many there are, it takes at most 1/20 of the time.
type live struct {
	mu      sync.Mutex // guards the following and the fields of topics and streams; a leaf
	streams []*stream  // oldest first
	topics  map[string]*topic
	runs    bool

	expensive time.Time // when the next expensive topic may be rendered; of the loop
}

// topic is a content that streams show.
type topic struct {
	key     string
	view    view
	streams int
	// The following are of the loop.
	rendered time.Time
	cost     time.Duration
}

// view renders a content.
type view interface {
	// render renders the content anew. patch is what changes for a stream that has the last one, or nil.
	render(ctx context.Context, taken *snapshot) (patch []byte)
	// whole returns the content for a stream that has none, or nil before the first render.
	whole() []byte
}

// stream is a client.
type stream struct {
	topic    *topic
	who      string
	changes  bool        // the operator may change something
	messages chan []byte // closed when the stream ends
	ends     ending      // why it was closed
	begun    bool        // it has the content, and needs patches only
}

// ending is why a stream ends.
type ending string

// The endings. A client that gets none has lost the connection.
const (
	endAgain    ending = "again"    // connect again at once
	endFull     ending = "full"     // another operator needs the place
	endDenied   ending = "denied"   // the credentials are no longer valid
	endStopping ending = "stopping" // the bus is being shut down
	endSlow     ending = "slow"     // the client did not take what was sent
)

// join adds a stream. content is called for a new topic. It returns nil if there is no place.
func (l *live) join(s *server, key, who string, changes bool, content func() view) *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.makePlaceLocked(who, changes) {
		return nil
	}
	t := l.topics[key]
	if t == nil {
		t = &topic{key: key, view: content()}
		if l.topics == nil {
			l.topics = map[string]*topic{}
		}
		l.topics[key] = t
	}
	t.streams++
	st := &stream{topic: t, who: who, changes: changes, messages: newMessages()}
	l.streams = append(l.streams, st)
	if !l.runs {
		l.runs = true
		go l.run(s)
	}
	return st
}

func newMessages() chan []byte { return make(chan []byte, liveBacklog) }

// makePlaceLocked ends another stream if there is no place. The operator with most streams gives one to an operator who has
// at least two less. Those who may only look give one to an operator with less than reservedLive who may change something.
func (l *live) makePlaceLocked(who string, changes bool) bool {
	if len(l.streams) < maxLive {
		return true
	}
	counts := make(map[string]int)
	for _, st := range l.streams {
		counts[st.who]++
	}
	most := slices.MaxFunc(l.streams, func(x, y *stream) int { return cmp.Compare(counts[x.who], counts[y.who]) }).who
	gives := -1
	switch {
	case counts[most] >= counts[who]+2:
		gives = slices.IndexFunc(l.streams, func(st *stream) bool { return st.who == most })
	case changes && counts[who] < reservedLive:
		gives = slices.IndexFunc(l.streams, func(st *stream) bool { return !st.changes })
	}
	if gives < 0 {
		return false
	}
	l.endLocked(l.streams[gives], endFull)
	return true
}

// leave removes a stream. One that has ended is none.
func (l *live) leave(st *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(st, "")
}

func (l *live) endLocked(st *stream, why ending) {
	i := slices.Index(l.streams, st)
	if i < 0 {
		return
	}
	l.streams = slices.Delete(l.streams, i, i+1)
	if st.topic.streams--; st.topic.streams == 0 {
		delete(l.topics, st.topic.key)
	}
	st.ends = why
	close(st.messages)
}

// run renews the topics until the last stream has left or the bus stops.
func (l *live) run(s *server) {
	for {
		took, more := l.round(s)
		if !more {
			return
		}
		next := time.NewTimer(max(liveInterval, shareOfCPU*took))
		select {
		case <-next.C:
		case <-s.bus.Stopping():
			next.Stop()
			l.endAll()
			return
		}
	}
}

// endAll ends all streams because the bus stops.
func (l *live) endAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.streams) > 0 {
		l.endLocked(l.streams[0], endStopping)
	}
	l.runs = false
}

// round renews each topic. It returns the time that this took, apart from expensive topics, of which a round renews one at most. more is
// false without streams.
func (l *live) round(s *server) (took time.Duration, more bool) {
	topics := l.present()
	if len(topics) == 0 {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), causesTimeout)
	defer cancel()
	_, _ = s.causes(ctx) // paced by itself
	began := time.Now()
	taken := s.takeSnapshot(ctx)
	for _, t := range topics {
		now := time.Now()
		if t.cost > cheapRead && (now.Before(l.expensive) || now.Before(t.rendered.Add(shareOfCPU*t.cost))) {
			l.deliver(t, nil)
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), liveTimeout)
		patch := t.view.render(ctx, taken)
		cancel()
		t.rendered, t.cost = time.Now(), time.Since(now)
		if t.cost > cheapRead {
			l.expensive = t.rendered.Add(shareOfCPU * t.cost)
			began = began.Add(t.cost)
		}
		l.deliver(t, patch)
	}
	return time.Since(began), true
}

// present returns the topics, the one that was rendered first in front. Without topics the loop ends.
func (l *live) present() (topics []*topic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.topics {
		topics = append(topics, t)
	}
	l.runs = len(topics) > 0
	slices.SortFunc(topics, func(x, y *topic) int { return x.rendered.Compare(y.rendered) })
	return topics
}

// deliver passes a patch to the streams of a topic, and the whole content to those that have none. It drops those that are
// too slow.
func (l *live) deliver(t *topic, patch []byte) {
	whole := t.view.whole()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, st := range slices.Clone(l.streams) {
		message := patch
		if !st.begun {
			message = whole
		}
		if st.topic != t || message == nil {
			continue
		}
		select {
		case st.messages <- message:
			st.begun = true
		default:
			l.endLocked(st, endSlow)
		}
	}
}

// overviewView is the overview as JSON. It changes in each round.
type overviewView struct {
	s    *server
	last []byte
}

func (v *overviewView) render(ctx context.Context, taken *snapshot) []byte {
	o := v.s.overview(ctx, taken)
	o.Metrics.Types = map[string]eventbus.TypeMetrics{} // up to 1,000, every second
	o.History = o.History[len(o.History)-1:]
	message, err := json.Marshal(o)
	if err != nil {
		v.s.log.Error("admin live overview cannot be encoded", "error", err.Error())
		return nil
	}
	v.last = message
	return message
}

func (v *overviewView) whole() []byte { return v.last }

func (c *call) getLive() (any, error) {
	if err := c.parameters(nil); err != nil {
		return nil, err
	}
	return nil, c.follow("overview", "overview", func() view { return &overviewView{s: c.server} })
}

// follow writes the messages of a topic until the stream ends. event is their name.
func (c *call) follow(event, key string, content func() view) error {
	permitted := c.permissions()
	changes := slices.ContainsFunc(Actions(), func(a Action) bool { return a.changes() && permitted[a] })
	st := c.live.join(c.server, key, c.who.Name, changes, content)
	if st == nil {
		return &Error{Code: CodeRateLimited, Message: "too many live pages are open", Remedy: "close one, or reload this one", header: map[string]string{"Retry-After": "10"}}
	}
	defer c.live.leave(st)
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.setWriteDeadline(writeTimeout)
	if http.NewResponseController(c.w).Flush() != nil { // the client need not wait for a message to know that it is connected
		return nil
	}
	c.relay(event, st, permitted)
	return nil
}

// relay writes the messages of a stream until it ends, the client has gone, or its credentials are no longer valid.
func (c *call) relay(event string, st *stream, permitted map[Action]bool) {
	end, check := time.NewTimer(liveLifetime), time.NewTicker(liveCheck)
	defer end.Stop()
	defer check.Stop()
	for {
		select {
		case message, ok := <-st.messages:
			if !ok {
				if st.ends != endSlow {
					c.sendEnding(st.ends)
				}
				return
			}
			if !c.sendEvent(event, message) {
				return
			}
		case <-check.C:
			if !c.stillSees(permitted) {
				c.sendEnding(endDenied)
				return
			}
			if !c.sendEvent("beat", []byte(`{}`)) { // the client notices a connection that is gone
				return
			}
		case <-end.C:
			c.sendEnding(endAgain)
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// permissions asks the authorizer for each action.
func (c *call) permissions() map[Action]bool {
	permitted := make(map[Action]bool)
	for _, action := range Actions() {
		permitted[action] = c.may(action)
	}
	return permitted
}

// stillSees reports whether the request may still see what it was permitted to see.
func (c *call) stillSees(permitted map[Action]bool) bool {
	for _, action := range Actions() {
		if action.changes() || !permitted[action] {
			continue
		}
		if err := c.authorizeOne(action); err != nil {
			c.log.Warn("admin live page ended", c.attributes("reason", errorOf(err).Message)...)
			return false
		}
	}
	return true
}

func (c *call) sendEnding(why ending) {
	text, _ := json.Marshal(struct {
		Why ending `json:"why"`
	}{why}) // a string always encodes
	c.sendEvent("end", text)
}

// sendEvent writes a server-sent event, and reports whether the peer has taken it.
func (c *call) sendEvent(event string, message []byte) bool {
	c.setWriteDeadline(writeTimeout)
	for _, part := range [][]byte{[]byte("event: " + event + "\ndata: "), message, []byte("\n\n")} {
		if _, err := c.w.Write(part); err != nil {
			return false
		}
	}
	return http.NewResponseController(c.w).Flush() == nil
}
