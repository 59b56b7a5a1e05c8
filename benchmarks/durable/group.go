package durable

import "sync"

// MaxGroup is the largest number of operations in a commit to SQLite.
const MaxGroup = 512

// Group is a group commit: one goroutine commits the operations that have gathered during its last
// commit. There is no timer.
type Group[T any] struct {
	most   int
	commit func([]T) error

	mu      sync.Mutex
	gather  *sync.Cond
	waiting *group[T]
	queue   []*group[T]
	closed  bool
	ended   chan struct{}
}

// group is the operations of one commit.
type group[T any] struct {
	ops  []T
	done chan struct{} // closed after the commit
	err  error
}

// NewGroup starts the committer. commit applies at most so many operations in one transaction and
// returns after they are durable.
func NewGroup[T any](most int, commit func([]T) error) *Group[T] {
	g := &Group[T]{most: most, commit: commit, ended: make(chan struct{})}
	g.gather = sync.NewCond(&g.mu)
	go g.run()
	return g
}

// Do applies an operation and returns after it is durable.
func (g *Group[T]) Do(op T) error {
	mine := g.enqueue(op)
	<-mine.done
	return mine.err
}

// Add enqueues an operation and does not wait for its commit.
func (g *Group[T]) Add(op T) { g.enqueue(op) }

func (g *Group[T]) enqueue(op T) *group[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == nil || len(g.waiting.ops) == g.most {
		g.waiting = &group[T]{done: make(chan struct{})}
		g.queue = append(g.queue, g.waiting)
		g.gather.Signal()
	}
	g.waiting.ops = append(g.waiting.ops, op)
	return g.waiting
}

// Close commits the operations that wait and ends the committer.
func (g *Group[T]) Close() {
	g.mu.Lock()
	g.closed = true
	g.gather.Signal()
	g.mu.Unlock()
	<-g.ended
}

func (g *Group[T]) run() {
	defer close(g.ended)
	for {
		g.mu.Lock()
		for len(g.queue) == 0 && !g.closed {
			g.gather.Wait()
		}
		if len(g.queue) == 0 {
			g.mu.Unlock()
			return
		}
		next := g.queue[0]
		g.queue = g.queue[1:]
		if next == g.waiting {
			g.waiting = nil
		}
		g.mu.Unlock()
		next.err = g.commit(next.ops)
		close(next.done)
	}
}
