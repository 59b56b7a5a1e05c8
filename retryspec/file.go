package retryspec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// File is a file that holds a policy, or rules, and what has been read of it. A text
// that does not parse, and a file that cannot be read, leave what there was before.
// Its methods are safe for concurrent use.
type File[T any] struct {
	// Immutable after Open.
	path  string
	parse func([]byte) (T, error)

	reloading sync.Mutex // held while followers are called; before mu
	followers []func(T) error
	text      []byte // that current was made of
	refused   error  // of followers, of current

	mu      sync.Mutex // guards the following
	current T
	swaps   int
	err     error
}

// Open reads a file; parse is Parse or ParseRules. The error names the file, and
// matches what os.ReadFile and parse return.
func Open[T any](path string, parse func([]byte) (T, error)) (*File[T], error) {
	f := &File[T]{path: path, parse: parse}
	text, current, err := f.read()
	if err != nil {
		return nil, err
	}
	f.text, f.current = text, current
	return f, nil
}

func (f *File[T]) read() (text []byte, parsed T, err error) {
	if text, err = os.ReadFile(f.path); err != nil {
		return nil, parsed, err // which names the file
	}
	if parsed, err = f.parse(text); err != nil {
		err = fmt.Errorf("%s: %w", f.path, err)
	}
	return text, parsed, err
}

// Current is what was last read and is good. It must not be changed.
func (f *File[T]) Current() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// Err is what the last Reload returned: why Current is not what the file holds now,
// or not what all followers have.
func (f *File[T]) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Follow calls apply with what is current, now and whenever Reload finds another
// text that is good:
//
//	policy.Follow(func(d retryspec.Document) error { return sub.SetRetry(d.Policy()) })
//	rules.Follow(func(r retryspec.Rules) error { return sub.SetRetryRules(r...) })
//
// It returns what apply does; after an error apply is not called again. Followers
// are called one at a time, in the order of Follow, and must not call methods of the
// File but Current and Err. One whose error matches eventbus.ErrNoSubscription, as
// SetRetry's does after Unsubscribe, is dropped.
func (f *File[T]) Follow(apply func(T) error) error {
	f.reloading.Lock()
	defer f.reloading.Unlock()
	if err := apply(f.Current()); err != nil {
		return err
	}
	f.followers = append(f.followers, apply)
	return nil
}

// Reload reads the file again. If its text has changed and is good, it becomes
// current, and the followers are called with it: all of them, also when one returns an
// error. The error names the file. It is what Open would return, or what followers
// have returned, joined; that remains until there is another text.
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
	f.followers = slices.DeleteFunc(f.followers, func(apply func(T) error) bool {
		err := apply(parsed)
		if errors.Is(err, eventbus.ErrNoSubscription) {
			return true
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: taking it over: %w", f.path, err))
		}
		return false
	})
	return errors.Join(errs...)
}

// Watch calls Reload at every interval until the context ends, which is how it
// returns, with nil. report, unless it is nil, is told what comes of the file: nil for
// each new text that is taken over, and each error once, not at every look. It is
// called by the goroutine of Watch.
//
// Whoever changes the file should write another one and rename it: of one that is
// half written, Watch may tell that it is no JSON, until it is whole.
//
// The error is an *eventbus.OptionError for an interval that is not positive.
func (f *File[T]) Watch(ctx context.Context, every time.Duration, report func(error)) error {
	if every <= 0 {
		return &eventbus.OptionError{Option: "Watch", Value: every.String(), Reason: "must be more than 0"}
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	f.WatchTicks(ctx, ticker.C, report)
	return nil
}

// WatchTicks is Watch with a Reload at each tick, such as a mock clock's ticker has,
// instead of at an interval. It returns when the context ends or the channel is closed.
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
			report(err)
		}
		told, seen = text, swaps
	}
}

// swapped is how often there has been another current.
func (f *File[T]) swapped() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.swaps
}
