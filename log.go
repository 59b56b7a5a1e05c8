package eventbus

import (
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/circuit"
)

// Logger returns the logger of WithLogger, for what belongs to the bus and is not part of it. It
// never returns nil.
func (b *Bus) Logger() *zap.Logger {
	if !b.usable() {
		return zap.NewNop()
	}
	return b.log
}

// handlerFailed logs a failed attempt. p decided on it. delay is 0 after the last attempt.
func (r *reporter) handlerFailed(d *dispatch, p *RetryPolicy, delay time.Duration) {
	if entry := r.log.Check(zap.WarnLevel, "handler failed"); entry != nil {
		f := d.lastFailure()
		entry.Write(append(d.to.policy().ruleRef(f).fields(),
			zap.Stringer("event_id", d.id),
			zap.String("event_type", d.to.eventType),
			zap.String("subscription_id", f.subscription.id),
			zap.Int("attempt", int(d.attempt)),
			zap.Int("max_attempts", p.maxAttempts()),
			zap.Int64("delay_ms", int64(math.Ceil(float64(delay)/float64(time.Millisecond)))),
			zap.String("error", f.text),
		)...)
	}
}

func (r *reporter) logDeadLetter(d *dispatch, l *DeadLetter) {
	if entry := r.log.Check(zap.WarnLevel, "event dead-lettered"); entry != nil {
		merged := d.to.policy()
		policy := &merged.RetryPolicy
		if f := d.lastFailure(); f != nil {
			policy = merged.decider(f)
		}
		entry.Write(append(l.fields(), zap.Int("max_attempts", policy.maxAttempts()))...)
	}
}

// fields returns the log fields of a rule, or none for nil.
func (r *RuleRef) fields() []zap.Field {
	if r == nil {
		return nil
	}
	fields := []zap.Field{zap.Int("rule", r.Position)}
	if r.Name != "" {
		fields = append(fields, zap.String("rule_name", r.Name))
	}
	return fields
}

// fields returns the log fields of a letter, without the payload.
func (l *DeadLetter) fields() []zap.Field {
	fields := []zap.Field{
		zap.Stringer("event_id", l.Event.ID),
		zap.String("event_type", l.Event.Type),
		zap.String("subscription_id", l.Subscription),
		zap.Int("attempt", l.Attempts),
		zap.String("reason", string(l.Reason)),
		zap.Stringer("letter_id", l.ID),
		zap.Time("died_at", l.DiedAt),
	}
	fields = append(fields, l.Rule.fields()...)
	if n := len(l.Failures); n > 0 {
		fields = append(fields, zap.String("error", l.Failures[n-1].Error))
	}
	return fields
}

// abandonedEnded logs that an abandoned handler has returned. text is that of its error, and called only if it is logged.
func (r *reporter) abandonedEnded(c *call, text func() string) {
	if entry := r.log.Check(zap.InfoLevel, "abandoned handler ended"); entry != nil {
		d := c.delivery()
		fields := []zap.Field{
			zap.Stringer("event_id", d.Event.ID),
			zap.String("event_type", d.Event.Type),
			zap.String("subscription_id", d.Subscription),
			zap.Int("attempt", d.Attempt),
		}
		if t := text(); t != "" {
			fields = append(fields, zap.String("error", t))
		}
		entry.Write(fields...)
	}
}

// circuitChanged logs and reports a circuit's change of state, if there is one.
func (r *reporter) circuitChanged(s *Subscription, change circuit.Change) {
	if change.From == change.To {
		return
	}
	level := zap.InfoLevel
	if change.To == circuit.Open {
		level = zap.WarnLevel
	}
	if entry := r.log.Check(level, "circuit "+CircuitState(change.To).String()); entry != nil {
		entry.Write(
			zap.String("subscription_id", s.id),
			zap.Stringer("from", CircuitState(change.From)),
			zap.Stringer("to", CircuitState(change.To)),
		)
	}
	r.observeCircuit(s, change)
}

// logSlow logs a subscription's first slow call.
func (r *reporter) logSlow(slow *SlowHandler) {
	if entry := r.log.Check(zap.WarnLevel, "slow handler"); entry != nil {
		entry.Write(
			zap.Stringer("event_id", slow.Event.ID),
			zap.String("event_type", slow.Event.Type),
			zap.String("subscription_id", slow.Subscription),
			zap.Int("attempt", slow.Attempt),
			zap.Duration("timeout", slow.Timeout),
			zap.String("made_at", slow.MadeAt),
		)
	}
}

// logEviction logs a letter that the full queue has evicted.
func (r *reporter) logEviction(l *DeadLetter) {
	if entry := r.log.Check(zap.ErrorLevel, "dead letter queue is full: oldest letter evicted"); entry != nil {
		entry.Write(l.fields()...)
	}
}

// action logs what an operator did.
func (r *reporter) action(e *AuditEntry) {
	if e.operator() != (operator{}) {
		r.log.Info("operator action", e.fields()...)
	}
}
