package stderr_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/stderr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file returns a file, and a function that reads its lines.
func file(t *testing.T) (*os.File, func() []string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f, func() []string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
}

func counted(lines []string, message string) (n int) {
	for _, line := range lines {
		if strings.Contains(line, message) {
			n++
		}
	}
	return n
}

func TestO1_WarningsAndErrorsOnly(t *testing.T) {
	f, lines := file(t)
	log, core := stderr.New(f)
	l := zap.New(core).Named("eventbus").With(zap.String("bus", "b"))
	l.Debug("debugged")
	l.Info("informed")
	l.Warn("warned", zap.Int("n", 1))
	l.Error("failed", zap.String("text", "two\nlines"))
	log.Flush(time.Minute)
	got := lines()
	require.Len(t, got, 2)
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\S+ WARN eventbus warned \{"bus": "b", "n": 1\}$`, got[0])
	require.Regexp(t, ` ERROR eventbus failed \{"bus": "b", "text": "two\\nlines"\}$`, got[1])
}

func TestO1_AHundredASecondOfEachMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lines := file(t)
		_, core := stderr.New(f)
		l := zap.New(core)
		for range 250 {
			l.Warn("often")
		}
		l.Warn("seldom")
		synctest.Wait()
		require.Equal(t, 100, counted(lines(), "often"))
		time.Sleep(time.Second)
		synctest.Wait()
		got := lines()
		require.Len(t, got, 102, "the number left out is logged without a further entry")
		require.Contains(t, got[101], `WARN eventbus log entries left out {"message": "often", "entries": 150}`)
		for range 100 {
			l.Warn("often")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, lines(), 202, "a new second")
	})
}

// Shutdown must not wait for the end of the second.
func TestO1_FlushLogsWhatWasLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lines := file(t)
		log, core := stderr.New(f)
		for range 101 {
			zap.New(core).Warn("often")
		}
		began := time.Now()
		log.Flush(time.Minute)
		require.Zero(t, time.Since(began))
		require.Contains(t, lines()[100], `"entries": 1}`)
		time.Sleep(time.Hour)
		require.Len(t, lines(), 101)
	})
}

// The messages that are counted apart are bounded.
func TestO1_ManyMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lines := file(t)
		_, core := stderr.New(f)
		for i := range 2000 {
			zap.New(core).Warn("message " + strconv.Itoa(i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		got := lines()
		require.Equal(t, 1000+100, counted(got, "message "))
		require.Contains(t, got[len(got)-1], `{"message": "", "entries": 900}`)
	})
}

// A pipe that nobody reads takes some entries, the buffer some more, and the others are counted.
func TestO1_AFullPipeHoldsNothingUp(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	log, core := stderr.New(w)
	l, text := zap.New(core), strings.Repeat("x", 4<<10)
	const n = 1000
	for i := range n {
		l.Warn(fmt.Sprintf("message %d", i), zap.String("text", text))
	}
	began := time.Now()
	log.Flush(10 * time.Millisecond)
	require.GreaterOrEqual(t, time.Since(began), 10*time.Millisecond)

	read := make(chan []string)
	go func() {
		var lines []string
		for s := bufio.NewScanner(r); s.Scan(); {
			lines = append(lines, s.Text())
		}
		read <- lines
	}()
	log.Flush(time.Minute)
	require.NoError(t, w.Close())
	lines := <-read
	lost := 0
	for _, line := range lines {
		if m := regexp.MustCompile(`log entries lost: stderr does not keep up \{"entries": (\d+)\}`).FindStringSubmatch(line); m != nil {
			i, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			lost += i
		}
	}
	require.Positive(t, lost)
	require.Equal(t, n, counted(lines, "message ")+lost)
	require.LessOrEqual(t, counted(lines, "message "), 2*stderr.MaxBuffer/len(text)+64<<10/len(text)+1)
}

func TestO1_AClosedFileLosesTheEntries(t *testing.T) {
	f, _ := file(t)
	require.NoError(t, f.Close())
	log, core := stderr.New(f)
	zap.New(core).Warn("message")
	log.Flush(time.Minute)
	none, core := stderr.New(nil)
	zap.New(core).Warn("message")
	none.Flush(time.Minute)
	(*stderr.Log)(nil).Flush(time.Minute)
}
