package retryspec_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	next := name + ".next" // a watcher may read at any moment
	require.NoError(t, os.WriteFile(next, []byte(text), 0o600))
	require.NoError(t, os.Rename(next, name))
}

func attempts(n string) string { return `{"stop": {"max_attempts": ` + n + `}}` }

func open(t *testing.T, text string) (name string, f *retryspec.File[retryspec.Document]) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "retry.json")
	write(t, name, text)
	f, err := retryspec.Open(name, retryspec.Parse)
	require.NoError(t, err)
	return name, f
}

func TestOpen_OfABadFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "retry.json")
	_, err := retryspec.Open(name, retryspec.Parse)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, name)
	write(t, name, attempts("0"))
	_, err = retryspec.Open(name, retryspec.Parse)
	require.ErrorIs(t, err, retryspec.ErrInvalid)
	require.ErrorContains(t, err, name+": retryspec: line 1, column 27: stop.max_attempts: got 0")
}

func TestOpen_IrregularFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	_, err := retryspec.Open(dir, retryspec.Parse)
	var refused *retryspec.FileError
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "is a directory, not a regular file")
	require.ErrorContains(t, err, dir)
	if device := os.DevNull; runtime.GOOS != "windows" {
		_, err = retryspec.Open(device, retryspec.ParseRules)
		require.ErrorAs(t, err, &refused)
		require.ErrorContains(t, err, "is a device")
	}
}

func TestOpen_LargeFilesAreRefused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "retry.json")
	write(t, name, "{}"+strings.Repeat(" ", retryspec.MaxFileSize-2))
	f, err := retryspec.Open(name, retryspec.Parse)
	require.NoError(t, err, "the bound is inclusive")
	require.NoError(t, os.Truncate(name, 1<<40)) // a sparse file
	var refused *retryspec.FileError
	require.ErrorAs(t, f.Reload(), &refused)
	require.EqualValues(t, 1<<40, refused.Size)
	require.True(t, refused.Mode.IsRegular())
	require.ErrorContains(t, f.Err(), "more than 1048576: write a smaller document")
	require.EqualValues(t, 5, f.Current().Stop.MaxAttempts, "the last valid content stays")
}

func TestFile_ReportsIgnoredMembers(t *testing.T) {
	name, f := open(t, `{"owner": "me"}`)
	require.Equal(t, []string{"owner"}, f.Ignored())
	ticks := make(chan time.Time)
	var reports []error
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.WatchTicks(t.Context(), ticks, func(err error) { reports = append(reports, err) })
	}()
	ticks <- time.Time{}
	ticks <- time.Time{}
	write(t, name, `{"stopp": {"max_attempts": 2}, "stop": {"max_attempts": 4}}`)
	ticks <- time.Time{}
	ticks <- time.Time{}
	close(ticks)
	<-done
	require.Len(t, reports, 1, "each text is reported once: %v", reports)
	var ignored *retryspec.IgnoredError
	require.ErrorAs(t, reports[0], &ignored)
	require.Equal(t, []string{"stopp"}, ignored.Members)
	require.ErrorContains(t, ignored, name)
	require.EqualValues(t, 4, f.Current().Stop.MaxAttempts, "it is applied all the same")
	require.NoError(t, f.Err())
}

func TestFile_ABadTextKeepsTheOldOneAndSaysWhy(t *testing.T) {
	name, f := open(t, attempts("3"))
	var followed []int64
	require.NoError(t, f.Follow(func(d retryspec.Document) error {
		followed = append(followed, d.Stop.MaxAttempts)
		return nil
	}))
	require.NoError(t, f.Reload())

	write(t, name, attempts("0"))
	require.ErrorIs(t, f.Reload(), retryspec.ErrInvalid)
	require.ErrorIs(t, f.Err(), retryspec.ErrInvalid)
	require.EqualValues(t, 3, f.Current().Stop.MaxAttempts)
	require.NoError(t, os.Remove(name))
	require.ErrorIs(t, f.Reload(), fs.ErrNotExist)
	require.EqualValues(t, 3, f.Current().Stop.MaxAttempts)
	write(t, name, attempts("3"))
	require.NoError(t, f.Reload(), "what it was")
	require.NoError(t, f.Err())
	write(t, name, attempts("4"))
	require.NoError(t, f.Reload())
	require.EqualValues(t, 4, f.Current().Stop.MaxAttempts)
	require.Equal(t, []int64{3, 4}, followed)
}

func TestFile_Rules(t *testing.T) {
	f, err := retryspec.Open("testdata/bank.rules.json", retryspec.ParseRules)
	require.NoError(t, err)
	require.Len(t, f.Current(), 3)
	require.NoError(t, f.Reload())
}

func TestFile_FollowersThatFail(t *testing.T) {
	name, f := open(t, attempts("3"))
	errNo := errors.New("no")
	calls := map[string]int{}
	follow := func(who string, answer func() error) error {
		return f.Follow(func(retryspec.Document) error {
			calls[who]++
			return answer()
		})
	}
	require.ErrorIs(t, follow("never", func() error { return errNo }), errNo)
	var answer, gone error
	require.NoError(t, follow("first", func() error { return answer }))
	require.NoError(t, follow("gone", func() error { return gone }))
	require.NoError(t, follow("last", func() error { return nil }))

	answer, gone = errNo, eventbus.ErrNoSubscription
	write(t, name, attempts("4"))
	require.ErrorIs(t, f.Reload(), errNo)
	require.ErrorIs(t, f.Reload(), errNo, "until there is another text")
	require.ErrorIs(t, f.Err(), errNo)
	require.EqualValues(t, 4, f.Current().Stop.MaxAttempts, "the file is good")
	require.Equal(t, map[string]int{"never": 1, "first": 2, "gone": 2, "last": 2}, calls)

	answer = nil
	write(t, name, attempts("5"))
	require.NoError(t, f.Reload())
	require.Equal(t, map[string]int{"never": 1, "first": 3, "gone": 2, "last": 3}, calls)
}

func TestFile_WatchTellsOnce(t *testing.T) {
	name, f := open(t, attempts("3"))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var told []error
		ended := make(chan error)
		go func() { ended <- f.Watch(ctx, time.Second, func(err error) { told = append(told, err) }) }()
		pass := func(n int) {
			time.Sleep(time.Duration(n) * time.Second)
			synctest.Wait()
		}
		pass(3)
		require.Empty(t, told, "nothing has changed")

		write(t, name, attempts("4"))
		pass(3)
		require.Equal(t, []error{nil}, told)

		write(t, name, `{"stop": {`)
		pass(3)
		require.Len(t, told, 2)
		require.ErrorIs(t, told[1], retryspec.ErrInvalid)
		write(t, name, attempts("0"))
		pass(3)
		require.Len(t, told, 3, "another error")

		write(t, name, attempts("4"))
		pass(3)
		require.Len(t, told, 4)
		require.NoError(t, told[3], "it is good again")
		require.EqualValues(t, 4, f.Current().Stop.MaxAttempts)

		cancel()
		require.NoError(t, <-ended)
		write(t, name, attempts("5"))
		pass(3)
		require.EqualValues(t, 4, f.Current().Stop.MaxAttempts)
	})
}

func TestFile_WatchWithoutAReport(t *testing.T) {
	name, f := open(t, attempts("3"))
	ticks := make(chan time.Time, 1)
	write(t, name, attempts("4"))
	ticks <- time.Time{}
	close(ticks)
	f.WatchTicks(t.Context(), ticks, nil)
	require.EqualValues(t, 4, f.Current().Stop.MaxAttempts)
	for _, every := range []time.Duration{0, -1} {
		require.ErrorIs(t, f.Watch(t.Context(), every, nil), eventbus.ErrInvalidOption)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, f.Watch(ctx, time.Hour, nil))
}

// New dispatches take the new policy, running ones keep theirs.
func TestFile_SwappedWhileTheBusRuns(t *testing.T) {
	name, f := open(t, `{"wait": {"strategy": "fixed", "delay": 10}, "stop": {"max_attempts": 3}}`)
	synctest.Test(t, func(t *testing.T) {
		bus, err := eventbus.New()
		require.NoError(t, err)
		calls := make(map[string][]time.Duration)
		began := time.Now()
		sub, err := bus.Subscribe("*", func(_ context.Context, e eventbus.Event) error {
			calls[e.Type] = append(calls[e.Type], time.Since(began))
			return ValueError{}
		}, eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, err)
		require.NoError(t, f.Follow(func(d retryspec.Document) error { return sub.SetRetry(d.Policy()) }))
		require.NoError(t, bus.Start(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan error)
		go func() { watched <- f.Watch(ctx, time.Second, nil) }()

		publish := func(eventType string) {
			_, err := bus.Publish(t.Context(), eventType, nil)
			require.NoError(t, err)
			synctest.Wait()
		}
		publish("old")
		write(t, name, `{"wait": {"strategy": "fixed", "delay": 1}, "stop": {"max_attempts": 4}}`)
		time.Sleep(2500 * time.Millisecond)
		publish("new")
		write(t, name, `{"wait": {"strategy": "none"}}`)
		time.Sleep(2500 * time.Millisecond)
		require.ErrorContains(t, f.Err(), "wait.strategy")
		publish("newer")
		time.Sleep(time.Minute)
		synctest.Wait()

		require.Equal(t, map[string][]time.Duration{
			"old":   after(0, 10, 20),
			"new":   after(2.5, 3.5, 4.5, 5.5),
			"newer": after(5, 6, 7, 8),
		}, calls)
		cancel()
		require.NoError(t, <-watched)
		require.NoError(t, bus.Shutdown(t.Context()))
	})
}

// While others publish, who has changed the file and then publishes gets the new one.
func TestFile_SwappedUnderLoad(t *testing.T) {
	document := func(n int) string {
		return fmt.Sprintf(`{"stop": {"max_attempts": %d}, "wait": {"strategy": "fixed", "delay": 0}}`, n)
	}
	name, f := open(t, document(1))
	bus, err := eventbus.New(eventbus.WithDeadLetterCapacity(1))
	require.NoError(t, err)
	sub, err := bus.Subscribe("*", func(context.Context, eventbus.Event) error { return ValueError{} }, eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	require.NoError(t, f.Follow(func(d retryspec.Document) error { return sub.SetRetry(d.Policy()) }))
	require.NoError(t, bus.Start(t.Context()))
	publish := func(eventType string) int {
		result, err := bus.PublishAndWait(t.Context(), eventType, nil)
		var died *eventbus.DeliveryError
		if !errors.As(err, &died) {
			t.Errorf("%v", err)
			return 0
		}
		return result.Attempts
	}

	var others sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if n := publish("other"); n < 1 || n > 4 {
					t.Errorf("%d attempts", n)
				}
			}
		})
	}
	for i := range 40 {
		n := i%4 + 1
		write(t, name, document(n))
		require.NoError(t, f.Reload())
		for _, eventType := range []string{"mine", "other", fmt.Sprint("new", i)} {
			require.Equal(t, n, publish(eventType))
		}
	}
	close(done)
	others.Wait()
	require.NoError(t, bus.Shutdown(t.Context()))
}

func TestFile_NilArgumentsAreRefused(t *testing.T) {
	name, f := open(t, attempts("3"))
	var option *eventbus.OptionError
	_, err := retryspec.Open[retryspec.Document](name, nil)
	require.ErrorAs(t, err, &option)
	require.Equal(t, "Open", option.Option)
	require.ErrorAs(t, f.Follow(nil), &option)
	require.Equal(t, "Follow", option.Option)
	require.ErrorIs(t, f.Watch(nil, time.Second, nil), eventbus.ErrNilContext) //nolint:staticcheck // on purpose
}

// A follower that panics changes nothing for the others.
func TestFile_AFollowerThatPanicsLeavesTheOthers(t *testing.T) {
	name, f := open(t, attempts("3"))
	left, calls, panics := false, 0, false
	require.NoError(t, f.Follow(func(retryspec.Document) error {
		if left {
			return eventbus.ErrNoSubscription
		}
		return nil
	}))
	require.NoError(t, f.Follow(func(retryspec.Document) error { calls++; return nil }))
	require.NoError(t, f.Follow(func(retryspec.Document) error {
		if panics {
			panic("a follower")
		}
		return nil
	}))
	left, panics = true, true
	write(t, name, attempts("4"))
	require.Panics(t, func() { _ = f.Reload() })
	panics, calls = false, 0
	write(t, name, attempts("5"))
	require.NoError(t, f.Reload())
	require.Equal(t, 1, calls)
}
