// Package stderr logs warnings to a file such as os.Stderr, without ever waiting for it.
//
// A full pipe, a closed file and a pipe without a reader neither block nor end the process: entries
// wait in a bounded buffer. Each message is logged at most [PerSecond] times a second. One entry has the number of entries
// that were left out, and one the number of entries for which the buffer had no room.
package stderr

import (
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

const (
	// PerSecond is the largest number of entries with the same message in a second.
	PerSecond = 100
	// MaxBuffer bounds the entries that wait for the file, in bytes. A write in progress may have as many.
	MaxBuffer = 256 << 10
	// maxMessages bounds the messages with a count of their own in a second. Further ones share a count.
	maxMessages = 1000
	window      = time.Second
)

// Log writes entries to a file. New returns one. It has a goroutine only while there are entries to write. Its methods are safe
// for concurrent use. The methods of a nil Log do nothing.
type Log struct {
	file    *os.File
	encoder zapcore.Encoder // of the entries about entries that were left out

	mu     sync.Mutex // guards the following; a leaf
	buffer []byte
	lost   int           // entries for which the buffer had no room
	idle   chan struct{} // closed when the goroutine ends; nil if there is none
	since  time.Time     // the beginning of the second
	counts map[string]*count
	timer  *time.Timer // ends the second; nil if nothing was left out
}

// count counts the entries of a message in a second.
type count struct{ logged, leftOut int }

// New returns a Log to a file, and its core, which takes entries at warn level and above.
func New(file *os.File) (*Log, zapcore.Core) {
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.ISO8601TimeEncoder
	c.EncodeLevel = zapcore.CapitalLevelEncoder
	c.ConsoleSeparator = " "
	l := &Log{file: file, encoder: zapcore.NewConsoleEncoder(c), counts: make(map[string]*count)}
	return l, &core{log: l, encoder: l.encoder.Clone()}
}

// Flush adds the entries about entries that were left out, and waits until all are written, for at most a duration.
func (l *Log) Flush(most time.Duration) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.endSecondLocked(time.Now())
	idle := l.idle
	l.mu.Unlock()
	if idle == nil {
		return
	}
	ended := time.NewTimer(most)
	defer ended.Stop()
	select {
	case <-idle:
	case <-ended.C:
	}
}

// admits counts an entry. It reports whether to log it.
func (l *Log) admits(e *zapcore.Entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if past := e.Time.Sub(l.since); past >= window || past < 0 {
		l.endSecondLocked(e.Time)
	}
	message := e.Message
	if l.counts[message] == nil && len(l.counts) >= maxMessages {
		message = ""
	}
	c := l.counts[message]
	if c == nil {
		c = &count{}
		l.counts[message] = c
	}
	if c.logged < PerSecond {
		c.logged++
		return true
	}
	if c.leftOut++; l.timer == nil {
		l.timer = time.AfterFunc(window, l.endSecond) // there may be no further entry
	}
	return false
}

func (l *Log) endSecond() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endSecondLocked(time.Now())
}

// endSecondLocked logs the numbers of entries that were left out, and begins the next second.
func (l *Log) endSecondLocked(now time.Time) {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
		for message, c := range l.counts {
			if c.leftOut > 0 {
				l.addLocked(l.about(now, "log entries left out", zap.String("message", message), zap.Int("entries", c.leftOut)))
			}
		}
	}
	clear(l.counts)
	l.since = now
}

// about encodes an entry about entries.
func (l *Log) about(now time.Time, message string, fields ...zap.Field) *buffer.Buffer {
	e := zapcore.Entry{Level: zapcore.WarnLevel, Time: now, LoggerName: "eventbus", Message: message}
	b, err := l.encoder.EncodeEntry(e, fields)
	if err != nil {
		return nil
	}
	return b
}

// add passes an encoded entry to the goroutine that writes.
func (l *Log) add(b *buffer.Buffer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(b)
}

func (l *Log) addLocked(b *buffer.Buffer) {
	if b == nil {
		return
	}
	defer b.Free()
	if len(l.buffer)+b.Len() > MaxBuffer {
		l.lost++
		return
	}
	l.buffer = append(l.buffer, b.Bytes()...)
	if l.idle == nil {
		l.idle = make(chan struct{})
		go l.write()
	}
}

// write writes the buffer until it is empty.
func (l *Log) write() {
	var chunk []byte
	for {
		l.mu.Lock()
		chunk, l.buffer = l.buffer, chunk[:0]
		lost := l.lost
		if l.lost = 0; len(chunk) == 0 {
			close(l.idle)
			l.idle, l.buffer = nil, nil
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		if lost > 0 {
			if b := l.about(time.Now(), "log entries lost: stderr does not keep up", zap.Int("entries", lost)); b != nil {
				chunk = append(chunk, b.Bytes()...)
				b.Free()
			}
		}
		write(l.file, chunk)
	}
}

// core is the zapcore.Core of a Log.
type core struct {
	log     *Log
	encoder zapcore.Encoder
}

func (c *core) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c *core) With(fields []zap.Field) zapcore.Core {
	with := &core{c.log, c.encoder.Clone()}
	for _, f := range fields {
		f.AddTo(with.encoder)
	}
	return with
}

// Check leaves entries out before their fields are made.
func (c *core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) || !c.log.admits(&e) {
		return to
	}
	return to.AddCore(e, c)
}

func (c *core) Write(e zapcore.Entry, fields []zap.Field) error {
	b, err := c.encoder.EncodeEntry(e, fields)
	if err == nil {
		c.log.add(b)
	}
	return err
}

// Sync is Flush for at most FlushTime.
func (c *core) Sync() error {
	c.log.Flush(FlushTime)
	return nil
}

// FlushTime is how long Shutdown waits for the file.
const FlushTime = 100 * time.Millisecond
