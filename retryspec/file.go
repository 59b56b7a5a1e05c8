package retryspec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// File is a file with a policy or rules, and its last valid content. Invalid text, or a
// read error, does not change that content. Its methods are safe for concurrent use.
type File[T any] struct {
	// Immutable after Open.
	path  string
	parse func([]byte) (T, error)

	reloading sync.Mutex // held while followers are called; before mu
	followers []func(T) error
	text      []byte // the text of current
	refused   error  // the errors of followers for current

	mu      sync.Mutex // guards the following
	current T
	swaps   int
	err     error
}

// MaxFileSize is the size of the largest file that File reads, in bytes: 1 MiB.
const MaxFileSize = 1 << 20

// Open reads a file. parse is Parse or ParseRules. The file must be regular and have at most
// MaxFileSize bytes; Open does not wait for a pipe. Symbolic links are followed.
//
// Errors, each with the path: *FileError, those of opening and reading the file, those of
// parse; *eventbus.OptionError for a nil parse.
func Open[T any](path string, parse func([]byte) (T, error)) (*File[T], error) {
	if parse == nil {
		return nil, &eventbus.OptionError{Option: "Open", Value: "nil", Reason: "parse must not be nil: use Parse or ParseRules"}
	}
	f := &File[T]{path: path, parse: parse}
	text, current, err := f.read()
	if err != nil {
		return nil, err
	}
	f.text, f.current = text, current
	return f, nil
}

func (f *File[T]) read() (text []byte, parsed T, err error) {
	if text, err = readFile(f.path); err != nil {
		return nil, parsed, err // it has the path
	}
	if parsed, err = f.parse(text); err != nil {
		err = fmt.Errorf("%s: %w", f.path, err)
	}
	return text, parsed, err
}

// readFile reads a regular file. It checks the type of the file that it has opened: the file
// of the path may be another one by now.
func readFile(path string) (text []byte, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|nonblocking, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	refused := &FileError{Path: path, Mode: info.Mode(), Size: info.Size()}
	if !info.Mode().IsRegular() || info.Size() > MaxFileSize {
		return nil, refused
	}
	text, err = io.ReadAll(io.LimitReader(file, MaxFileSize+1))
	if len(text) > MaxFileSize { // it has grown
		refused.Size = int64(len(text))
		return nil, refused
	}
	return text, err
}

// Ignored returns the names of unknown members at the top level of the current document. It is nil for rules, whose
// parser rejects them.
func (f *File[T]) Ignored() []string {
	if d, ok := any(f.Current()).(interface{ ignored() []string }); ok {
		return d.ignored()
	}
	return nil
}

// Current returns the last valid content. It must not be changed.
func (f *File[T]) Current() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// Err returns the error of the last Reload: why Current differs from the file, or which
// followers rejected Current.
func (f *File[T]) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Follow calls apply with the current content, now and whenever Reload finds a new valid
// text:
//
//	policy.Follow(func(d retryspec.Document) error { return sub.SetRetry(d.Policy()) })
//	rules.Follow(func(r retryspec.Rules) error { return sub.SetRetryRules(r...) })
//
// Follow returns the error of the first call, after which apply is not called again, or an
// *eventbus.OptionError for a nil apply.
// Followers are called one at a time, in the order of Follow. Of the File's methods, they
// may call only Current and Err. Reload drops a follower whose error matches
// eventbus.ErrNoSubscription, such as SetRetry after Unsubscribe.
func (f *File[T]) Follow(apply func(T) error) error {
	if apply == nil {
		return &eventbus.OptionError{Option: "Follow", Value: "nil", Reason: "must not be nil"}
	}
	f.reloading.Lock()
	defer f.reloading.Unlock()
	if err := apply(f.Current()); err != nil {
		return err
	}
	f.followers = append(f.followers, apply)
	return nil
}

// Reload reads the file again. If its text has changed and is valid, it becomes current,
// and Reload calls all followers with it, even if one returns an error. The error has the
// path. It is the error that Open would return, or the joined errors of followers. Reload
// returns these again until the text changes.
func (f *File[T]) Reload() error {
	f.reloading.Lock()
	defer f.reloading.Unlock()
	text, parsed, err := f.read()
	switch {
	case err != nil:
	case bytes.Equal(text, f.text):
		err = f.refused
	default:
		f.mu.Lock()
		f.current = parsed
		f.swaps++
		f.mu.Unlock()
		f.text, f.refused = text, f.apply(parsed)
		err = f.refused
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	return err
}

// apply calls the followers.
func (f *File[T]) apply(parsed T) error {
	var errs []error
	var left []func(T) error // a new slice: a follower may panic
	for _, apply := range f.followers {
		err := apply(parsed)
		if errors.Is(err, eventbus.ErrNoSubscription) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: taking it over: %w", f.path, err))
		}
		left = append(left, apply)
	}
	f.followers = left
	return errors.Join(errs...)
}

// Watch calls Reload at every interval until the context ends, and then returns nil. It calls report, if not nil, on
// the goroutine of Watch: with nil for each new text that it applies, and once with each error. If an applied text has
// unknown members, the error is an *IgnoredError. Ignored returns the unknown members of the text that Open read.
//
// To change the file, write another one and rename it. Otherwise Watch may read a partly
// written file and report invalid JSON.
//
// Errors: *eventbus.OptionError for an interval that is not positive, eventbus.ErrNilContext.
func (f *File[T]) Watch(ctx context.Context, every time.Duration, report func(error)) error {
	if ctx == nil {
		return fmt.Errorf("Watch: %w", eventbus.ErrNilContext)
	}
	if every <= 0 {
		return &eventbus.OptionError{Option: "Watch", Value: every.String(), Reason: "must be more than 0"}
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	f.WatchTicks(ctx, ticker.C, report)
	return nil
}

// WatchTicks is Watch with a Reload at each tick of a channel, such as a mock clock's
// ticker. It returns when the context ends or the channel is closed.
func (f *File[T]) WatchTicks(ctx context.Context, ticks <-chan time.Time, report func(error)) {
	told, seen := "", f.swapped()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-ticks:
			if !ok || ctx.Err() != nil {
				return
			}
		}
		text, err := "", f.Reload()
		if err != nil {
			text = err.Error()
		}
		swaps := f.swapped()
		if report != nil && (text != told || swaps != seen) {
			if ignored := f.Ignored(); err == nil && len(ignored) > 0 {
				err = &IgnoredError{Path: f.path, Members: ignored}
			}
			report(err)
		}
		told, seen = text, swaps
	}
}

// swapped returns the number of changes of current.
func (f *File[T]) swapped() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.swaps
}
