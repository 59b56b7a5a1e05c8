package main

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/surebus/eventbus"
)

// interruptible reads from a stream that may block, such as the standard input, until a context ends.
type interruptible struct {
	*io.PipeReader
	stop func() // ends the reads
	all  atomic.Bool
}

func newInterruptible(ctx context.Context, from io.Reader) *interruptible {
	out, in := io.Pipe()
	r := &interruptible{PipeReader: out}
	unwatch := context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	r.stop = func() {
		unwatch()
		in.CloseWithError(io.ErrClosedPipe)
	}
	go func() { // it ends with the stream, or with the process
		_, err := io.Copy(in, from)
		in.CloseWithError(err)
	}()
	return r
}

// Read notes the end of the stream.
func (r *interruptible) Read(data []byte) (int, error) {
	n, err := r.PipeReader.Read(data)
	if errors.Is(err, io.EOF) {
		r.all.Store(true)
	}
	return n, err
}

// interruptedImport returns the error of an import that was interrupted: it adds no letter before it has read all of them.
func interruptedImport(b backend, letters *interruptible, report eventbus.ImportReport) error {
	_, remote := b.(*urlBackend)
	switch {
	case !letters.all.Load(), !remote && report.Imported == 0:
		return failed("run the command again", "interrupted: nothing was imported yet")
	case remote:
		return failed("repeat the same import: it skips the letters that are there", "interrupted: the server may have imported some of the letters")
	}
	return failed("repeat the same import: it continues behind these", "interrupted: %s were imported", plural(report.Imported, "letter"))
}
