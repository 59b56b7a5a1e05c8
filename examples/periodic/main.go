// Command periodic shows two processes on one SQLite file that publish an event every two seconds: one event for each tick,
// through kills and restarts.
//
//	go run ./examples/periodic
//
// The program starts two processes of its own executable. Both have the same schedule, and the one with the lease of the store
// publishes. Meanwhile, the program
//
//   - kills the active process with SIGKILL: the standby continues with the next tick;
//   - starts a process in its place, and shuts the active one down;
//   - kills the last process, and starts another one after two ticks: CatchUp publishes the latest tick that was missed.
//
// It prints a line for each tick, and takes about 15 s. The exit status is 0 if each tick has one event that was handled. If
// several ticks pass while no process runs, only the latest one has an event.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

const (
	spec   = "*/2 * * * * *"
	period = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if isChild() {
		os.Exit(childMain(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "periodic:", err)
		os.Exit(1)
	}
}

// run runs the processes. stderr is a file, which they share.
func run(ctx context.Context, out io.Writer, stderr *os.File) (err error) {
	dir, err := os.MkdirTemp("", "periodic")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &show{ctx: ctx, file: filepath.Join(dir, "events.db"), out: out, stderr: stderr, lines: make(chan line), books: books{}}
	defer func() { err = errors.Join(err, s.killAll()) }()

	fmt.Fprint(out, "Two processes have the same schedule, a tick every two seconds. The program kills them in turn. Each tick has one event.\n\n")
	fmt.Fprintln(out, "tick      handled by   late")
	if err := s.runs(); err != nil {
		return err
	}
	return s.books.balance(out)
}

// runs starts processes, and ends them in each way.
func (s *show) runs() error {
	first, err := s.start()
	if err != nil {
		return err
	}
	if err := s.await(first, 1); err != nil {
		return err
	}
	second, err := s.start()
	if err != nil {
		return err
	}
	if err := s.await(first, 1); err != nil {
		return err
	}
	s.say("kill process %d", first.number)
	if err := errors.Join(first.kill(), s.await(second, 2)); err != nil {
		return err
	}
	third, err := s.start()
	if err != nil {
		return err
	}
	s.say("shut down process %d", second.number)
	if err := errors.Join(second.end(), s.await(third, 2)); err != nil {
		return err
	}
	s.say("kill process %d, and start another one after two ticks", third.number)
	if err := errors.Join(third.kill(), sleep(s.ctx, 2*period+period/2)); err != nil {
		return err
	}
	s.books.outage()
	fourth, err := s.start()
	if err != nil {
		return err
	}
	return errors.Join(s.await(fourth, 2), fourth.end())
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// show has the processes.
type show struct {
	ctx    context.Context
	file   string
	out    io.Writer
	stderr *os.File
	lines  chan line
	all    []*process
	books  books
}

// line is a line that a process has written.
type line struct {
	of    *process
	words []string
}

// process is a child.
type process struct {
	number int
	cmd    *exec.Cmd
	input  io.WriteCloser
	ended  chan struct{} // closed when the process has ended
	err    error         // fixed before ended is closed
}

func (s *show) say(format string, args ...any) {
	fmt.Fprintf(s.out, "          "+format+"\n", args...)
}

// start starts a process.
func (s *show) start() (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{number: len(s.all) + 1, cmd: exec.CommandContext(s.ctx, self, "child", s.file), ended: make(chan struct{})}
	p.cmd.Stderr = s.stderr
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	s.all = append(s.all, p)
	s.say("start process %d", p.number)
	go func() {
		for text := bufio.NewScanner(output); text.Scan(); {
			select {
			case s.lines <- line{p, strings.Fields(text.Text())}:
			case <-s.ctx.Done():
			}
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// await waits until a process has handled some ticks.
func (s *show) await(p *process, ticks int) error {
	for ticks > 0 {
		select {
		case l := <-s.lines:
			handled, err := s.note(l)
			if err != nil {
				return err
			}
			if handled && l.of == p {
				ticks--
			}
		case <-p.ended:
			return errors.Join(fmt.Errorf("process %d ended, and was to handle ticks", p.number), p.err)
		case <-s.ctx.Done():
			return fmt.Errorf("process %d did not handle its ticks: %w", p.number, context.Cause(s.ctx))
		}
	}
	return sleep(s.ctx, period/10) // the success is recorded
}

// note enters a line into the books, and reports whether it was about a tick.
func (s *show) note(l line) (handled bool, err error) {
	if len(l.words) != 4 || l.words[0] != "handled" {
		s.say("process %d has the lease", l.of.number)
		return false, nil
	}
	tick, err := time.Parse(time.RFC3339, l.words[1])
	if err != nil {
		return false, err
	}
	fmt.Fprintf(s.out, "%s  process %d    %s ms\n", tick.Format(time.TimeOnly), l.of.number, l.words[3])
	return true, s.books.enter(tick, l.words[2])
}

// kill kills a process, unless it has ended.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// end shuts a process down.
func (p *process) end() error { return p.input.Close() }

func (s *show) killAll() (err error) {
	for _, p := range s.all {
		err = errors.Join(err, p.kill())
	}
	for _, p := range s.all {
		for ended := false; !ended; {
			select {
			case <-s.lines: // a process may wait for its line to be read
			case <-p.ended:
				ended = true
			}
		}
	}
	return err
}
