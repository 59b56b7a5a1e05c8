// Package slogcore writes entries of zap to a handler of log/slog, without ever waiting for it.
//
// The handler is called on a goroutine of its own, with one entry at a time. Entries wait in a bounded buffer. Those for which it has
// no room are left out, and one entry has their number.
package slogcore

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus/internal/texts"
)

// MaxEntries bounds the entries that wait for the handler.
const MaxEntries = 1000

// FlushTime is how long Sync waits for the handler.
const FlushTime = 100 * time.Millisecond

// Log passes entries to a handler. New returns one. It has a goroutine only while there are entries. Its methods are safe for
// concurrent use. The methods of a nil Log do nothing.
type Log struct {
	root  *target
	spare zapcore.Core

	mu      sync.Mutex // guards the following; a leaf
	entries []entry
	lost    int           // entries for which there was no room
	idle    chan struct{} // closed when the goroutine ends; nil if there is none
}

// New returns a Log to a handler, and its core. The core takes entries of every level: only the goroutine asks the handler what it
// wants. The attribute "logger" has the name of the logger. An entry at which the handler panics, or for which it returns an error,
// goes to spare, with the reason.
func New(h slog.Handler, spare zapcore.Core) (*Log, zapcore.Core) {
	l := &Log{root: &target{handler: h}, spare: spare}
	return l, &core{l, l.root}
}

// Flush waits until the handler has had all entries, for at most a duration.
func (l *Log) Flush(most time.Duration) {
	if l == nil {
		return
	}
	l.mu.Lock()
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

func (l *Log) add(e entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) >= MaxEntries {
		l.lost++
		return
	}
	l.entries = append(l.entries, e)
	if l.idle == nil {
		l.idle = make(chan struct{})
		go l.write()
	}
}

// write passes entries to the handler until there are none.
func (l *Log) write() {
	done := false
	defer func() {
		if !done { // the handler has called runtime.Goexit
			go l.write()
		}
	}()
	for {
		e, lost, ok := l.next()
		if !ok {
			done = true
			return
		}
		if lost > 0 {
			about := zapcore.Entry{Level: zapcore.WarnLevel, Time: time.Now(), LoggerName: e.LoggerName, Message: "log entries lost: the slog handler does not keep up"}
			l.pass(entry{about, l.root, []slog.Attr{slog.Int("entries", lost)}})
		}
		l.pass(e)
	}
}

// next takes the oldest entry, and the number of those that were lost. Without an entry, the goroutine ends.
func (l *Log) next() (e entry, lost int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == 0 {
		close(l.idle)
		l.idle, l.entries = nil, nil
		return e, 0, false
	}
	e, l.entries[0] = l.entries[0], entry{}
	l.entries = l.entries[1:]
	lost, l.lost = l.lost, 0
	return e, lost, true
}

// maxReason bounds the text of an error or a panic of the handler, in bytes.
const maxReason = 1 << 10

// pass calls the handler with an entry.
func (l *Log) pass(e entry) {
	passed, why := false, "it ended its goroutine"
	defer func() {
		if r := recover(); r != nil {
			why = "panic: " + texts.OfPanic(r, maxReason)
		}
		if !passed {
			l.rescue(e, why)
		}
	}()
	err := e.handle()
	if passed = err == nil; !passed {
		why = texts.OfError(err, "", maxReason)
	}
}

// rescue writes an entry to the spare core.
func (l *Log) rescue(e entry, why string) {
	text := func(key, value string) zapcore.Field {
		return zapcore.Field{Key: key, Type: zapcore.StringType, String: value}
	}
	attrs := e.to.enclose(e.attrs)
	fields := make([]zapcore.Field, 0, len(attrs)+1)
	for _, a := range attrs {
		fields = append(fields, text(a.Key, a.Value.String()))
	}
	if to := l.spare.Check(e.Entry, nil); to != nil {
		to.Write(append(fields, text("slog_handler_error", why))...)
	}
}

// entry is an entry for a handler. Its fields are attributes already, because what they refer to may change.
type entry struct {
	zapcore.Entry
	to    *target
	attrs []slog.Attr
}

// handle calls the handler, if that wants the entry.
func (e *entry) handle() error {
	h := e.to.resolve()
	if !h.Enabled(context.Background(), level(e.Level)) {
		return nil
	}
	r := slog.NewRecord(e.Time, level(e.Level), e.Message, e.Caller.PC)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(e.attrs...)
	if e.Stack != "" {
		r.AddAttrs(slog.String("stacktrace", e.Stack))
	}
	return h.Handle(context.Background(), r)
}

// target is a handler with attributes, and maybe in a group.
type target struct {
	from    *target // nil for the first
	attrs   []slog.Attr
	group   string       // "" for none
	handler slog.Handler // nil until the goroutine has resolved it; it alone uses it
}

func (t *target) resolve() slog.Handler {
	if t.handler == nil {
		h := t.from.resolve().WithAttrs(t.attrs)
		if t.group != "" {
			h = h.WithGroup(t.group)
		}
		t.handler = h
	}
	return t.handler
}

// enclose returns attributes with those of the target before them, and in its groups.
func (t *target) enclose(attrs []slog.Attr) []slog.Attr {
	for ; t != nil; t = t.from {
		if t.group != "" {
			attrs = []slog.Attr{{Key: t.group, Value: slog.GroupValue(attrs...)}}
		}
		attrs = append(slices.Clip(t.attrs), attrs...)
	}
	return attrs
}

// core is the zapcore.Core of a Log.
type core struct {
	log *Log
	to  *target
}

// level returns the level of slog: zap's are 1 apart, and those of slog 4.
func level(l zapcore.Level) slog.Level { return 4 * slog.Level(l) }

func (c *core) Enabled(zapcore.Level) bool { return true }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	for i, f := range fields {
		if f.Type == zapcore.NamespaceType {
			return (&core{c.log, &target{from: c.to, attrs: attrs(fields[:i]), group: f.Key}}).With(fields[i+1:])
		}
	}
	return &core{c.log, &target{from: c.to, attrs: attrs(fields)}}
}

func (c *core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return to.AddCore(e, c)
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.add(entry{e, c.to, attrs(fields)})
	if e.Level > zapcore.ErrorLevel { // the program may end now
		c.log.Flush(FlushTime)
	}
	return nil
}

// Sync is Flush for at most FlushTime.
func (c *core) Sync() error {
	c.log.Flush(FlushTime)
	return nil
}

// attrs returns fields as attributes. A namespace is a group of all that follow it.
func attrs(fields []zapcore.Field) []slog.Attr {
	all := make([]slog.Attr, 0, len(fields))
	for i, f := range fields {
		switch f.Type {
		case zapcore.SkipType:
		case zapcore.NamespaceType:
			return append(all, slog.Attr{Key: f.Key, Value: slog.GroupValue(attrs(fields[i+1:])...)})
		default:
			all = append(all, attrOf(f)...)
		}
	}
	return all
}

// attrOf returns the attributes of a field: several if it is inlined.
func attrOf(f zapcore.Field) []slog.Attr {
	var v slog.Value
	switch f.Type {
	case zapcore.StringType:
		v = slog.StringValue(f.String)
	case zapcore.BoolType:
		v = slog.BoolValue(f.Integer == 1)
	case zapcore.Int64Type, zapcore.Int32Type, zapcore.Int16Type, zapcore.Int8Type:
		v = slog.Int64Value(f.Integer)
	case zapcore.Uint64Type, zapcore.Uint32Type, zapcore.Uint16Type, zapcore.Uint8Type, zapcore.UintptrType:
		v = slog.Uint64Value(uint64(f.Integer))
	case zapcore.Float64Type:
		v = slog.Float64Value(math.Float64frombits(uint64(f.Integer)))
	case zapcore.DurationType:
		v = slog.DurationValue(time.Duration(f.Integer))
	default: // as zap makes it a value: errors and Stringers are texts, also if their methods panic
		m := zapcore.NewMapObjectEncoder()
		f.AddTo(m)
		return fromMap(m.Fields)
	}
	return []slog.Attr{{Key: f.Key, Value: v}}
}

// fromMap returns the fields of a map in the order of their names.
func fromMap(m map[string]any) []slog.Attr {
	all := make([]slog.Attr, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, slog.Any(name, m[name]))
	}
	return all
}
