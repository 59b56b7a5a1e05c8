//go:build unix

package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
)

// ReplicaName is the name of a replica for synchronous_standby_names.
const ReplicaName = "postgrestest"

// StartReplica starts a replica that streams from the server. It reaches the server by dsn, which may lead through a proxy.
func (s *Server) StartReplica(ctx context.Context, dsn string) (_ *Server, err error) {
	dir, err := os.MkdirTemp("/tmp", "postgrestest")
	if err != nil {
		return nil, err
	}
	r := &Server{programs: s.programs, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Remove())
		}
	}()
	if err := r.own(); err != nil {
		return nil, err
	}
	backup := r.command(ctx, "pg_basebackup", "-D", r.data(), "-d", dsn+" application_name="+ReplicaName, "-R", "-c", "fast", "--no-sync")
	out, err := backup.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("postgrestest: pg_basebackup: %w: %s", err, out)
	}
	if err := r.configure([]string{"unix_socket_directories = '" + dir + "'"}); err != nil {
		return nil, err
	}
	return r, r.Run(ctx)
}

// Promote makes a replica a primary, and waits until it is one.
func (s *Server) Promote(ctx context.Context) (err error) {
	conn, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		return err
	}
	promoted := false
	if err = conn.QueryRow(ctx, "SELECT pg_promote()").Scan(&promoted); err == nil && !promoted {
		err = errors.New("postgrestest: the replica was not promoted in time")
	}
	return errors.Join(err, conn.Close(ctx))
}
