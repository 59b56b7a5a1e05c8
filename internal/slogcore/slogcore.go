// Package slogcore writes entries of zap to a handler of log/slog.
package slogcore

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"go.uber.org/zap/zapcore"
)

// New returns a core that writes to a handler. The attribute "logger" has the name of the logger.
func New(h slog.Handler) zapcore.Core { return &core{h} }

type core struct{ to slog.Handler }

// level returns the level of slog: zap's are 1 apart, and those of slog 4.
func level(l zapcore.Level) slog.Level { return 4 * slog.Level(l) }

func (c *core) Enabled(l zapcore.Level) bool { return c.to.Enabled(context.Background(), level(l)) }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	with := c.to
	for i, f := range fields {
		if f.Type == zapcore.NamespaceType {
			with = with.WithAttrs(attrs(fields[:i])).WithGroup(f.Key)
			return (&core{with}).With(fields[i+1:])
		}
	}
	return &core{with.WithAttrs(attrs(fields))}
}

func (c *core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return to
	}
	return to.AddCore(e, c)
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, level(e.Level), e.Message, e.Caller.PC)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(attrs(fields)...)
	if e.Stack != "" {
		r.AddAttrs(slog.String("stacktrace", e.Stack))
	}
	return c.to.Handle(context.Background(), r)
}

func (*core) Sync() error { return nil }

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
