//go:build unix

package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoServer is matched by the error of Start if the programs of the server are not installed.
var ErrNoServer = errors.New("postgrestest: there is no Postgres server on this machine; on Debian: apt-get install postgresql")

// Server is a private server. Its methods are not safe for concurrent use.
type Server struct {
	programs string // folder of initdb and postgres
	dir      string // has the data and the socket
	as       *syscall.Credential
	process  *process
}

// process is a run of the server.
type process struct {
	pid   int
	ended chan struct{}
	err   error // written before ended is closed
}

// Start starts a server. settings are lines for postgresql.conf, such as "max_connections = 20".
//
// The server cannot run as root: as root, it runs as the user postgres, or nobody.
func Start(ctx context.Context, settings ...string) (_ *Server, err error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	// The path of a socket has at most 107 bytes, so TMPDIR may be too long.
	dir, err := os.MkdirTemp("/tmp", "postgrestest")
	if err != nil {
		return nil, err
	}
	s := &Server{programs: programs, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Remove())
		}
	}()
	if err := s.own(); err != nil {
		return nil, err
	}
	out, err := s.command(ctx, "initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-k").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("postgrestest: initdb: %w: %s", err, out)
	}
	config := append([]string{
		"listen_addresses = ''", "unix_socket_directories = '" + dir + "'", "fsync = on", "synchronous_commit = on",
		"shared_buffers = 64MB", "max_connections = 200", "log_min_messages = warning", "autovacuum_naptime = 5s",
	}, settings...)
	if err := s.configure(config); err != nil {
		return nil, err
	}
	return s, s.Run(ctx)
}

// own gives the folder to the user that runs the server.
func (s *Server) own() (err error) {
	if os.Geteuid() != 0 {
		return nil
	}
	if s.as, err = unprivileged(); err != nil {
		return err
	}
	return os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid))
}

// configure adds lines to postgresql.conf.
func (s *Server) configure(lines []string) error {
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	return errors.Join(err, f.Close())
}

func findPrograms() (dir string, err error) {
	const last = "postgres"
	if path, err := exec.LookPath("initdb"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}
		if dir := filepath.Dir(path); isFile(filepath.Join(dir, last)) {
			return dir, nil
		}
	}
	versions, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + last)
	if err != nil || len(versions) == 0 {
		return "", ErrNoServer
	}
	newest := slices.MaxFunc(versions, func(x, y string) int { return versionOf(x) - versionOf(y) })
	return filepath.Dir(newest), nil
}

// versionOf returns the version in a path of Debian.
func versionOf(path string) int {
	n, _ := strconv.Atoi(strings.Split(path, "/")[4])
	return n
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, program), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	return cmd
}

// DSN returns a connection string of a superuser, for the database postgres.
func (s *Server) DSN() string { return s.DSNOf("postgres") }

// DSNOf returns a connection string of a superuser for a database.
func (s *Server) DSNOf(database string) string {
	return "host=" + s.dir + " user=postgres dbname=" + database + " sslmode=disable"
}

// Dir returns the folder of the server's socket, which is a host in a DSN.
func (s *Server) Dir() string { return s.dir }

// Socket returns the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, ".s.PGSQL.5432") }

// Run runs the server after Stop or Kill, and waits until it accepts connections.
func (s *Server) Run(ctx context.Context) error {
	for {
		err := s.run(ctx)
		log := s.Log()
		// The children of a killed server hold its memory until they have noticed.
		if err == nil || ctx.Err() != nil || !strings.Contains(log[max(0, len(log)-512):], "pre-existing shared memory block") {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *Server) run(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := s.command(context.WithoutCancel(ctx), "postgres", "-D", s.data())
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error, 1)
	p := &process{ended: make(chan struct{})}
	go p.run(cmd, started)
	if err := errors.Join(<-started, log.Close()); err != nil {
		return err
	}
	s.process = p
	for {
		conn, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.ended:
			return fmt.Errorf("postgrestest: the server ended: %w\n%s", p.err, s.Log())
		case <-ctx.Done():
			return fmt.Errorf("postgrestest: the server does not accept connections: %w", errors.Join(err, ctx.Err()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Log returns the end of the server's log.
func (s *Server) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(text[max(0, len(text)-8192):])
}

// Stop shuts the server down as pg_ctl does: "fast" ends sessions, "immediate" ends without writing anything, so that the
// next Run recovers from the write-ahead log.
func (s *Server) Stop(mode string) error {
	signal, ok := map[string]syscall.Signal{"fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}[mode]
	if !ok {
		return fmt.Errorf("postgrestest: mode %q: want fast or immediate", mode)
	}
	return s.signal(signal)
}

// Kill kills the postmaster. Its children notice that and end soon.
func (s *Server) Kill() error { return s.signal(syscall.SIGKILL) }

func (s *Server) signal(signal syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	if err := syscall.Kill(s.process.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-s.process.ended
	s.process = nil
	return nil
}

// Restart ends the server in a mode of Stop and runs it again.
func (s *Server) Restart(ctx context.Context, mode string) error {
	if err := s.Stop(mode); err != nil {
		return err
	}
	return s.Run(ctx)
}

// Remove ends the server and removes its data.
func (s *Server) Remove() error {
	return errors.Join(s.Stop("immediate"), os.RemoveAll(s.dir))
}

// Exec executes a statement as a superuser.
func (s *Server) Exec(ctx context.Context, sql string, args ...any) (err error) {
	conn, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql, args...)
	return errors.Join(err, conn.Close(ctx))
}

// EndSessions ends all sessions of clients.
func (s *Server) EndSessions(ctx context.Context) error {
	return s.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
}

var shared struct {
	sync.Mutex
	server *Server
	err    error
	asked  bool
}

// Shared returns a server that the tests of a process share, and starts it for the first one. It skips the test if there
// is no server on this machine. Tests that stop the server, or change its settings, Start one of their own. RemoveShared
// ends it.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.asked {
		shared.asked = true
		shared.server, shared.err = Start(context.Background())
	}
	if errors.Is(shared.err, ErrNoServer) {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// RemoveShared ends the server of Shared, if it runs. Call it in TestMain after the tests.
func RemoveShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return nil
	}
	return shared.server.Remove()
}

var (
	names   sync.Mutex // guards the following
	schemas int
)

// NewSchema returns the name of a schema that no other test of the process uses.
func NewSchema() string {
	names.Lock()
	defer names.Unlock()
	schemas++
	return fmt.Sprintf("test_%d", schemas)
}
