//go:build unix

package postgres_test

import (
	"context"
	"syscall"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pause returns the time until the next fault: in most cases too short for a cluster to recover, and in others long enough
// for checkClaims to see whether it does.
func (c *cluster) pause() time.Duration {
	if c.random.IntN(25) == 0 {
		return claimTime + clusterLease
	}
	return time.Duration(c.random.IntN(400)) * time.Millisecond
}

// fault does one of the things that happen to a cluster.
func (c *cluster) fault() {
	c.t.Helper()
	switch n := c.random.IntN(25); {
	case n < 9:
		m := c.pick()
		c.disturb("SIGKILL", m, func() { c.end(m, syscall.SIGKILL) })
	case n < 12:
		m := c.pick()
		c.disturb("SIGTERM", m, func() { c.end(m, syscall.SIGTERM) })
	case n < 15:
		m := c.pick()
		c.disturb("SIGSTOP", m, func() {
			require.NoError(c.t, m.cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(time.Duration(c.random.Int64N(int64(2 * clusterLease))))
			require.NoError(c.t, m.cmd.Process.Signal(syscall.SIGCONT))
		})
		c.alive = append(c.alive, m)
	case n < 18:
		m := c.pick()
		c.disturb([]string{"delays", "stalled network", "resets"}[n-15], m, func() { c.disturbNetwork(m.proxy, n-15) })
		c.alive = append(c.alive, m)
	case n < 19:
		c.disturb("full disk", nil, c.fillDisk)
	case n < 22:
		c.disturb("sessions end", nil, func() { require.NoError(c.t, c.server.EndSessions(c.t.Context())) })
	default:
		c.disturb("immediate restart", nil, func() { require.NoError(c.t, c.server.Restart(c.t.Context(), "immediate")) })
	}
}

// disturbNetwork delays what is sent, stalls, or resets the connections of a process.
func (c *cluster) disturbNetwork(p *proxy, how int) {
	d := time.Duration(c.random.Int64N(int64(2 * clusterLease)))
	switch how {
	case 0:
		p.slow(time.Millisecond + d/100)
		time.Sleep(d / 2)
		p.slow(0)
	case 1:
		goOn := p.stall()
		time.Sleep(d)
		goOn()
	default:
		p.reset()
	}
}

// Statements that make the server refuse writes as it does when its disk is full, and accept them again.
const (
	diskFull = `CREATE FUNCTION eventbus.disk_full() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
		CREATE TRIGGER disk_full BEFORE INSERT OR UPDATE ON eventbus.instance FOR EACH STATEMENT EXECUTE FUNCTION eventbus.disk_full();
		CREATE TRIGGER disk_full BEFORE INSERT OR UPDATE ON eventbus.incoming FOR EACH STATEMENT EXECUTE FUNCTION eventbus.disk_full();
		CREATE TRIGGER disk_full BEFORE INSERT OR UPDATE ON eventbus.record FOR EACH STATEMENT EXECUTE FUNCTION eventbus.disk_full()`
	diskFree = `DROP FUNCTION eventbus.disk_full() CASCADE`
)

// fillDisk makes the disk of the server full for a while.
func (c *cluster) fillDisk() {
	c.t.Helper()
	if err := c.server.Exec(c.t.Context(), diskFull); err != nil {
		return // there is no schema yet, or it was the victim of a deadlock: then nothing has changed
	}
	time.Sleep(time.Duration(c.random.Int64N(int64(2 * clusterLease))))
	require.EventuallyWithT(c.t, func(t *assert.CollectT) { assert.NoError(t, c.server.Exec(context.Background(), diskFree)) }, time.Minute, 10*time.Millisecond)
}
