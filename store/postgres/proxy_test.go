//go:build unix

package postgres_test

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxy is a network between a process and a server. It delays what is sent, stalls, and resets connections.
type proxy struct {
	listener net.Listener
	all      sync.WaitGroup

	mu      sync.Mutex // guards the following
	server  string     // path of its socket
	delay   time.Duration
	stalled chan struct{}  // closed when it forwards again; nil while it forwards
	links   map[*link]bool // those that are open
}

// link is a connection through the proxy.
type link struct {
	client *net.TCPConn
	ended  chan struct{}
}

// startProxy starts a proxy to the socket of a server. It ends with the test.
func startProxy(t testing.TB, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	require.NoError(t, err)
	p := &proxy{listener: l, server: server, links: make(map[*link]bool)}
	p.all.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.reset()
	p.all.Wait()
}

// DSN returns a connection string for the server behind the proxy.
func (p *proxy) DSN() string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", p.listener.Addr().(*net.TCPAddr).Port)
}

// replication returns a connection string for pg_basebackup and a replica.
func (p *proxy) replication() string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres sslmode=disable", p.listener.Addr().(*net.TCPAddr).Port)
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		l := &link{client: client.(*net.TCPConn), ended: make(chan struct{})}
		p.mu.Lock()
		p.links[l] = true
		p.mu.Unlock()
		p.all.Go(func() { p.join(l) })
	}
}

// join forwards between a client and the server, until one of them ends the connection.
func (p *proxy) join(l *link) {
	defer p.end(l)
	if !p.pass(l) {
		return
	}
	p.mu.Lock()
	path := p.server
	p.mu.Unlock()
	server, err := net.Dial("unix", path) //nolint:noctx // a socket of this machine
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	p.all.Go(func() {
		defer p.end(l)
		p.forward(l, server, l.client)
	})
	p.all.Go(func() {
		defer p.end(l)
		p.forward(l, l.client, server)
	})
	<-l.ended
}

func (p *proxy) forward(l *link, from, to net.Conn) {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		if !p.pass(l) {
			return
		}
		if _, failed := to.Write(piece[:n]); err != nil || failed != nil {
			return
		}
	}
}

// pass waits as long as the network holds a piece up. It returns false if the connection has ended meanwhile.
func (p *proxy) pass(l *link) bool {
	p.mu.Lock()
	delay, stalled := p.delay, p.stalled
	p.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-l.ended:
			return false
		}
	}
	if delay > 0 {
		time.Sleep(delay)
	}
	return true
}

// end ends a link, with a reset.
func (p *proxy) end(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links[l] {
		delete(p.links, l)
		_ = l.client.SetLinger(0)
		_ = l.client.Close()
		close(l.ended)
	}
}

// reset resets all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	all := make([]*link, 0, len(p.links))
	for l := range p.links {
		all = append(all, l)
	}
	p.mu.Unlock()
	for _, l := range all {
		p.end(l)
	}
}

// slow sets the delay of each piece, in both directions.
func (p *proxy) slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// stall holds up everything, and what connects meanwhile, until goOn is called.
func (p *proxy) stall() (goOn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stalled := make(chan struct{})
	p.stalled = stalled
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stalled = nil
		close(stalled)
	}
}

// lead makes the proxy connect to another server, and resets all connections.
func (p *proxy) lead(server string) {
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()
	p.reset()
}
