//go:build unix

package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoPooler is matched by the error of StartPooler if PgBouncer is not installed.
var ErrNoPooler = errors.New("postgrestest: there is no pgbouncer on this machine; on Debian: apt-get install pgbouncer")

// Pooler is a PgBouncer in transaction mode in front of a Server.
type Pooler struct {
	dir     string
	process *process
}

// StartPooler starts a PgBouncer in transaction mode in front of the server. It keeps few connections, so that transactions
// of one client use different ones.
func (s *Server) StartPooler(ctx context.Context) (*Pooler, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program = "/usr/sbin/pgbouncer"; !isFile(program) {
			return nil, ErrNoPooler
		}
	}
	p := &Pooler{dir: filepath.Join(s.dir, "pool")}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return nil, err
	}
	config := "[databases]\n* = host=" + s.dir + " user=postgres\n[pgbouncer]\npool_mode = transaction\nauth_type = any\n" +
		"listen_port = 5432\nunix_socket_dir = " + p.dir + "\nserver_reset_query_always = 1\nserver_round_robin = 1\ndefault_pool_size = 8\nmax_client_conn = 500\n"
	file := filepath.Join(p.dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if s.as != nil {
		for _, name := range []string{p.dir, file} {
			if err := os.Chown(name, int(s.as.Uid), int(s.as.Gid)); err != nil {
				return nil, err
			}
		}
	}
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, file)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	started := make(chan error, 1)
	p.process = &process{ended: make(chan struct{})}
	go p.process.run(cmd, started)
	if err := errors.Join(<-started, log.Close()); err != nil {
		return nil, err
	}
	for {
		conn, err := pgx.Connect(ctx, p.DSN())
		if err == nil {
			return p, conn.Close(ctx)
		}
		select {
		case <-p.process.ended:
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("postgrestest: pgbouncer ended: %w\n%s", p.process.err, text)
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err(), p.Stop())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// DSN returns a connection string of a superuser, for the database postgres.
func (p *Pooler) DSN() string { return p.DSNOf("postgres") }

// DSNOf returns a connection string of a superuser for a database.
func (p *Pooler) DSNOf(database string) string {
	return "host=" + p.dir + " user=postgres dbname=" + database + " sslmode=disable"
}

// Stop ends the pooler.
func (p *Pooler) Stop() error {
	if err := syscall.Kill(p.process.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-p.process.ended
	return nil
}
