//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// fleet has the replicas.
type fleet struct {
	dsn    string
	stderr *os.File
	out    io.Writer
	began  time.Time
	born   int
	leader *replica // dispatches, or did last

	mu    sync.Mutex // guards the following
	alive []*replica
}

// replica is a child process.
type replica struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	leads  chan struct{} // closed when it dispatches
	ended  chan struct{} // closed when its process has ended
}

func (r *replica) String() string { return fmt.Sprintf("replica %d", r.number) }

// say prints a line of the timeline.
func (f *fleet) say(format string, args ...any) {
	fmt.Fprintf(f.out, "%6.2f s  %s\n", time.Since(f.began).Seconds(), fmt.Sprintf(format, args...))
}

// start starts a replica, as another process of this program.
func (f *fleet) start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	f.born++
	r := &replica{number: f.born, cmd: exec.CommandContext(context.Background(), program), leads: make(chan struct{}), ended: make(chan struct{})}
	r.cmd.Env, r.cmd.Stderr = append(os.Environ(), replicaVariable+"="+f.dsn), f.stderr
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive = append(f.alive, r)
	go func() {
		if lines := bufio.NewScanner(stdout); lines.Scan() { // its only line
			close(r.leads)
			_, _ = io.Copy(io.Discard, stdout)
		}
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	return nil
}

// kill kills a replica as the kernel does when memory is short.
func (r *replica) kill() error {
	err := r.cmd.Process.Signal(syscall.SIGKILL)
	<-r.ended
	return err
}

// end lets a replica shut down.
func (r *replica) end() error {
	err := r.stdin.Close()
	<-r.ended
	if code := r.cmd.ProcessState.ExitCode(); err == nil && code != 0 {
		err = fmt.Errorf("%s ended with exit status %d", r, code)
	}
	return err
}

// others returns the replicas that have not ended.
func (f *fleet) others() (all []*replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive = slices.DeleteFunc(f.alive, func(r *replica) bool {
		select {
		case <-r.ended:
			return true
		default:
			return false
		}
	})
	return slices.Clone(f.alive)
}

// awaitLead waits until one of the replicas dispatches.
func (f *fleet) awaitLead(ctx context.Context) error {
	since := time.Now()
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		for _, r := range f.others() {
			select {
			case <-r.leads:
				f.leader = r
				f.say("%s dispatches, after %.2f s", r, time.Since(since).Seconds())
				return pause(ctx)
			default:
			}
		}
	}
	return ctx.Err()
}

// awaitBill waits until one bill more is there.
func (f *fleet) awaitBill(ctx context.Context) error {
	since := time.Now()
	db, err := pgx.Connect(ctx, f.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(ctx) }()
	bills := func() (n int, err error) {
		return n, db.QueryRow(ctx, "SELECT count(*) FROM bill").Scan(&n)
	}
	before, err := bills()
	for now := before; err == nil && now == before; time.Sleep(5 * time.Millisecond) {
		now, err = bills()
	}
	if err != nil {
		return err
	}
	f.say("the next order is billed, after %.2f s", time.Since(since).Seconds())
	return pause(ctx)
}

// settle ends the replicas, the one that dispatches last. It bills what is left.
func (f *fleet) settle(ctx context.Context) error {
	for _, r := range f.others() {
		if r != f.leader {
			if err := r.end(); err != nil {
				return err
			}
		}
	}
	f.say("%s bills what is left", f.leader)
	if _, err := io.WriteString(f.leader.stdin, settle); err != nil {
		return err
	}
	return errors.Join(f.leader.end(), ctx.Err())
}

func (f *fleet) killAll() (err error) {
	for _, r := range f.others() {
		err = errors.Join(err, r.kill())
	}
	return err
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
