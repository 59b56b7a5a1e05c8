//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
)

const (
	// pulse is the time between two signs of life of a process, and between two questions to the server.
	pulse = 100 * time.Millisecond
	// silence is how long a pulse may fail to come while its source is up.
	silence = 5 * pulse
	// lookTime is the longest time between two looks of a standby.
	lookTime = 200 * time.Millisecond
	// claimTime bounds how long accepted events may wait while the server answers and a process is up: the time of the
	// lease, a look of a standby, and the time in which a slow machine connects again, begins the lease and claims.
	claimTime = clusterLease + lookTime + 12*silence
)

// beatAlways reports signs of life until ctx ends.
func beatAlways(ctx context.Context) {
	for ctx.Err() == nil {
		say("T")
		time.Sleep(pulse)
	}
}

// ask notes when the server answers, until ctx ends. Each question has a session of its own.
func (c *cluster) ask(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	for ; ctx.Err() == nil; time.Sleep(pulse) {
		within, cancel := context.WithTimeout(ctx, time.Second)
		if conn, err := pgx.Connect(within, c.server.DSN()); err == nil {
			if conn.Ping(within) == nil {
				c.answers = append(c.answers, time.Now())
			}
			_ = conn.Close(within)
		}
		cancel()
	}
}

// span is a time in which something was up.
type span struct{ from, to time.Time }

// spansOf returns the times in which pulses came without a silence.
func spansOf(pulses []time.Time) (all []span) {
	for _, at := range pulses {
		if n := len(all); n > 0 && at.Sub(all[n-1].to) <= silence {
			all[n-1].to = at
			continue
		}
		all = append(all, span{at, at})
	}
	return all
}

// without returns the parts of spans that no disturbance touches.
func without(all []span, disturbed []disturbance) []span {
	for _, d := range disturbed {
		var left []span
		for _, s := range all {
			if !d.from.Before(s.to) || !s.from.Before(d.to) {
				left = append(left, s)
				continue
			}
			if d.from.After(s.from) {
				left = append(left, span{s.from, d.from})
			}
			if s.to.After(d.to) {
				left = append(left, span{d.to, s.to})
			}
		}
		all = left
	}
	return all
}

// both returns the times that two lists of spans share.
func both(x, y []span) (all []span) {
	for _, a := range x {
		for _, b := range y {
			s := span{a.from, a.to}
			if b.from.After(s.from) {
				s.from = b.from
			}
			if b.to.Before(s.to) {
				s.to = b.to
			}
			if s.from.Before(s.to) {
				all = append(all, s)
			}
		}
	}
	return all
}

// checkClaims checks that no accepted event waits for longer than claimTime without a call of any handler, while the server
// answers and one process is up all that time. It returns the longest such wait.
func (c *cluster) checkClaims(accepted map[string]time.Time, calls map[string][]call) (longest time.Duration) {
	c.t.Helper()
	var work []time.Time // calls begin and end
	worst := "never"
	pulses := make(map[*member][]time.Time)
	for _, r := range c.reports {
		switch r.kind {
		case "B", "E":
			work = append(work, r.at)
		case "T":
			pulses[r.member] = append(pulses[r.member], r.at)
		}
	}
	answers := spansOf(c.answers)
	for m, beats := range pulses {
		for _, up := range without(both(spansOf(beats), answers), c.disturbancesOf(m)) {
			i, _ := slices.BinarySearchFunc(work, up.from, time.Time.Compare)
			idle := up
			for ; idle.from.Before(up.to); i++ {
				if idle.to = up.to; i < len(work) && work[i].Before(up.to) {
					idle.to = work[i]
				}
				if d := idle.to.Sub(idle.from); d > longest && waits(idle, accepted, calls) {
					longest = d
					worst = fmt.Sprintf("%v to %v, while %s was up", idle.from.Sub(c.began).Round(time.Millisecond), idle.to.Sub(c.began).Round(time.Millisecond), m.name)
				}
				idle.from = idle.to
			}
		}
	}
	c.t.Logf("accepted events were unclaimed longest from %s", worst)
	assert.LessOrEqual(c.t, longest, claimTime, "events waited for a process that claims them")
	return longest
}

// disturbancesOf returns what happened to a process, or to the server.
func (c *cluster) disturbancesOf(m *member) (all []disturbance) {
	for _, d := range c.disturbed {
		if d.member == nil || d.member == m {
			all = append(all, d)
		}
	}
	return all
}

// waits reports whether an event was accepted before a span, and first called after it.
func waits(s span, accepted map[string]time.Time, calls map[string][]call) bool {
	for n, at := range accepted {
		if at.Before(s.from) && (len(calls[n]) == 0 || !calls[n][0].at.Before(s.to)) {
			return true
		}
	}
	return false
}
