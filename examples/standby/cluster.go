package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// cluster has the nodes, and reads what they report.
type cluster struct {
	file   string
	stderr *os.File

	mu    sync.Mutex // guards the following
	nodes []*node
	books *books
}

func newCluster(file string, stderr *os.File) *cluster {
	return &cluster{file: file, stderr: stderr, books: newBooks()}
}

// node is a child process.
type node struct {
	version string
	process *exec.Cmd
	input   io.WriteCloser
	ready   chan struct{} // closed when it publishes
	handled chan struct{} // closed when it has handled an event
	ended   chan struct{} // closed when the process has ended
	err     error         // fixed before ended is closed
}

// start starts a node and waits until it publishes.
func (c *cluster) start(ctx context.Context, version string) (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := &node{
		version: version, process: exec.CommandContext(ctx, self, "node", version, c.file),
		ready: make(chan struct{}), handled: make(chan struct{}), ended: make(chan struct{}),
	}
	n.process.Stderr = c.stderr
	if n.input, err = n.process.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := n.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.process.Start(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	go c.read(n, output)
	return n, c.await(ctx, n, n.ready, "publish")
}

// read enters the lines of a node into the books until it ends:
//
//	accepted EVENT
//	handled EVENT SUBSCRIPTION
func (c *cluster) read(n *node, output io.Reader) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		words := strings.Fields(lines.Text())
		c.mu.Lock()
		switch {
		case len(words) == 2 && words[0] == "accepted":
			c.books.accepted[words[1]] = n.version
			closeOnce(n.ready)
		case len(words) == 3 && words[0] == "handled":
			c.books.handle(words[1], words[2])
			closeOnce(n.handled)
		}
		c.mu.Unlock()
	}
	n.err = n.process.Wait()
	close(n.ended)
}

// closeOnce closes a channel that only the caller closes.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

func (c *cluster) await(ctx context.Context, n *node, done <-chan struct{}, what string) error {
	select {
	case <-done:
		return nil
	case <-n.ended:
		return errors.Join(fmt.Errorf("a node of version %s ended, and was to %s", n.version, what), n.err)
	case <-ctx.Done():
		return fmt.Errorf("a node of version %s did not %s: %w", n.version, what, context.Cause(ctx))
	}
}

// awaitHandled waits until a node has handled an event.
func (c *cluster) awaitHandled(ctx context.Context, n *node) error {
	return c.await(ctx, n, n.handled, "handle an event")
}

// awaitEnd waits until a node has ended by itself, and all others have.
func (c *cluster) awaitEnd(ctx context.Context, n *node) error {
	select {
	case <-n.ended:
	case <-ctx.Done():
		return fmt.Errorf("the last node did not end: %w", context.Cause(ctx))
	}
	return errors.Join(n.err, c.killAll())
}

// killAll kills the nodes that still run, and waits for their ends.
func (c *cluster) killAll() error {
	c.mu.Lock()
	nodes := c.nodes
	c.mu.Unlock()
	for _, n := range nodes {
		if err := n.kill(); err != nil {
			return err
		}
	}
	return nil
}

// kill kills a node, unless it has ended, and waits for its end.
func (n *node) kill() error {
	if err := n.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-n.ended
	return nil
}

// say writes a line to a node, which may have ended.
func (n *node) say(line string) { _, _ = fmt.Fprintln(n.input, line) }
