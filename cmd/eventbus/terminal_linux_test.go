package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// terminal returns both ends of a pseudo terminal.
func terminal(t *testing.T) (operator, program *os.File) {
	t.Helper()
	operator, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	var number, unlock int32
	for request, value := range map[uintptr]*int32{syscall.TIOCGPTN: &number, syscall.TIOCSPTLCK: &unlock} {
		_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, operator.Fd(), request, uintptr(unsafe.Pointer(value)))
		require.Zero(t, failed)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _ = program.Close(), operator.Close()
	})
	return operator, program
}

// asked calls a function once a text was written that ends as a question does.
type asked struct {
	bytes.Buffer
	once sync.Once
	then func()
}

func (a *asked) Write(text []byte) (int, error) {
	if bytes.HasSuffix(text, []byte("? [y/N] ")) || bytes.HasSuffix(text, []byte("to confirm: ")) {
		a.once.Do(a.then)
	}
	return a.Buffer.Write(text)
}

// An interrupt at the question changes nothing.
func TestL4_AnInterruptAtTheQuestion(t *testing.T) {
	for _, args := range [][]string{
		{"dlq", "replay", "--all"},
		{"dlq", "purge", "--all"},
		{"dlq", "purge", "01940000-0000-7000-8000-000000000001"},
	} {
		path := newStore(t, "letters.jsonl")
		ctx, interrupt := context.WithCancel(t.Context())
		_, program := terminal(t)
		var out bytes.Buffer
		errOut := &asked{then: interrupt}
		require.Equal(t, exitFailure, run(ctx, append(args, "--store", path), program, &out, errOut))
		require.Contains(t, errOut.String(), "interrupted: nothing was done")
		require.Empty(t, out.String())
		_, list, _ := call(t, "dlq", "list", "--json", "--store", path)
		require.Equal(t, 4, strings.Count(list, "\n"))
	}
}

// On a terminal, a step that takes long shows a line, which is gone afterwards.
func TestL4_LongStepsShowALine(t *testing.T) {
	operator, program := terminal(t)
	path := newStore(t, "letters.jsonl")
	var out bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"dlq", "replay", "--all", "--yes", "--store", path}, strings.NewReader(""), &out, program))
	text := make([]byte, 64<<10)
	n, err := operator.Read(text)
	require.NoError(t, err)
	require.Contains(t, string(text[:n]), "\rlooking for the letters…\r"+strings.Repeat(" ", 24)+"\r")
	require.Contains(t, string(text[:n]), "\rreplay: fixing the set…\r")
	require.True(t, strings.HasSuffix(string(text[:n]), "\r"), "the last line is removed")
}
