// Package proxy makes the way to a server longer.
package proxy

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Proxy forwards connections to a server. What it reads, it writes a fixed time later.
type Proxy struct {
	listener net.Listener
	network  string
	address  string
	delay    time.Duration

	working sync.WaitGroup
	mu      sync.Mutex // guards the following
	closed  bool
	conns   []net.Conn
}

// Start starts a proxy on a free port of 127.0.0.1. The server is at a network and address of net.Dial. Each direction
// takes the delay.
func Start(network, address string, delay time.Duration) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // there is nothing to wait for
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, network: network, address: address, delay: delay}
	p.working.Go(p.accept)
	return p, nil
}

// Port returns the port of the proxy.
func (p *Proxy) Port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close() // it may be closed already
	}
	p.mu.Unlock()
	p.working.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(p.network, p.address) //nolint:noctx // Close closes the connection
		if err != nil {
			_ = client.Close() // the client sees that
			continue
		}
		if err := p.keep(client, server); err != nil {
			return
		}
		p.working.Go(func() { p.forward(client, server) })
		p.working.Go(func() { p.forward(server, client) })
	}
}

// keep notes connections for Close.
func (p *Proxy) keep(conns ...net.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		for _, c := range conns {
			_ = c.Close() // of a proxy that is closed
		}
		return errors.New("closed")
	}
	p.conns = append(p.conns, conns...)
	return nil
}

// piece is what one read has returned.
type piece struct {
	bytes []byte
	at    time.Time
}

// forward copies one direction, until either connection is closed.
func (p *Proxy) forward(from, to net.Conn) {
	pieces := make(chan piece, 1024)
	p.working.Go(func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				pieces <- piece{buffer[:n], time.Now()}
			}
			if err != nil {
				return
			}
		}
	})
	for next := range pieces {
		if p.delay > 0 {
			sleep(p.delay - time.Since(next.at))
		}
		if _, err := to.Write(next.bytes); err != nil {
			_ = from.Close() // ends the reader
		}
	}
	_ = to.Close() // the other side sees the end
}
