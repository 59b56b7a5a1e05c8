package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// Limits of live streams.
const (
	liveInterval = time.Second
	maxLive      = 256             // clients
	liveBacklog  = 2               // messages that wait for a slow client, before it is dropped
	liveLifetime = 5 * time.Minute // a browser reconnects, and is authorized again
)

// live sends the overview to all clients once a second. It reads the metrics once for all of them, and runs only while
// there are clients.
type live struct {
	mu      sync.Mutex // guards clients; a leaf
	clients map[chan []byte]bool
}

// join adds a client. It is full if there are too many.
func (l *live) join(s *server) (messages chan []byte, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.clients) >= maxLive {
		return nil, true
	}
	messages = make(chan []byte, liveBacklog)
	if len(l.clients) == 0 {
		l.clients = make(map[chan []byte]bool)
		go l.run(s, l.clients)
	}
	l.clients[messages] = true
	return messages, false
}

// leave removes a client.
func (l *live) leave(messages chan []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.clients, messages)
}

// run sends until the last client has left or the bus stops. of identifies this run: the next one has a map of its own.
func (l *live) run(s *server, of map[chan []byte]bool) {
	ticks := time.NewTicker(liveInterval)
	defer ticks.Stop()
	for {
		if !l.send(s.liveMessage(), of) {
			return
		}
		select {
		case <-ticks.C:
		case <-s.bus.Stopping():
			l.send(nil, of)
			return
		}
	}
}

// liveMessage returns the overview, or nil if it cannot be encoded.
func (s *server) liveMessage() []byte {
	ctx, cancel := context.WithTimeout(context.Background(), liveInterval)
	defer cancel()
	o := s.overview(ctx)
	o.Metrics.Types = map[string]eventbus.TypeMetrics{} // up to 1,000, every second
	o.History = o.History[len(o.History)-1:]
	message, err := json.Marshal(o)
	if err != nil {
		s.log.Error("admin live overview cannot be encoded", "error", err.Error())
	}
	return message
}

// send passes a message to each client, or closes all of them for a nil message. It drops those that are too slow. It
// reports whether clients are left.
func (l *live) send(message []byte, of map[chan []byte]bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for client := range of {
		slow := false
		if message != nil {
			select {
			case client <- message:
			default:
				slow = true
			}
		}
		if message == nil || slow {
			close(client)
			delete(of, client)
		}
	}
	return len(of) > 0
}

func (c *call) getLive() (any, error) {
	if err := c.parameters(nil); err != nil {
		return nil, err
	}
	messages, full := c.live.join(c.server)
	if full {
		return nil, &Error{Code: CodeRateLimited, Message: "too many live pages are open", Remedy: "close one, or reload this one", header: map[string]string{"Retry-After": "10"}}
	}
	defer c.live.leave(messages)
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.setWriteDeadline(writeTimeout)
	if http.NewResponseController(c.w).Flush() != nil { // the client need not wait for a message to know that it is connected
		return nil, nil
	}
	end := time.NewTimer(liveLifetime)
	defer end.Stop()
	for {
		select {
		case message, ok := <-messages:
			if !ok || !c.sendEvent(message) {
				return nil, nil
			}
		case <-end.C:
			return nil, nil
		case <-c.ctx.Done():
			return nil, nil
		}
	}
}

// sendEvent writes a server-sent event, and reports whether the peer has taken it.
func (c *call) sendEvent(message []byte) bool {
	c.setWriteDeadline(writeTimeout)
	for _, part := range [][]byte{[]byte("event: overview\ndata: "), message, []byte("\n\n")} {
		if _, err := c.w.Write(part); err != nil {
			return false
		}
	}
	return http.NewResponseController(c.w).Flush() == nil
}
