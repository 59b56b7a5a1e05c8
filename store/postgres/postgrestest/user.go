//go:build unix

package postgrestest

import (
	"errors"
	"os/user"
	"strconv"
	"syscall"
)

// unprivileged returns a user for the server of root.
func unprivileged() (*syscall.Credential, error) {
	var failed error
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, failed
}
