//go:build unix && !linux

package postgrestest

import "os/exec"

// run runs the server until it ends.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	err := cmd.Start()
	if err == nil {
		p.pid = cmd.Process.Pid
	}
	if started <- err; err == nil {
		p.err = cmd.Wait()
	}
	close(p.ended)
}
