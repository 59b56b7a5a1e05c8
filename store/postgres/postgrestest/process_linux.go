package postgrestest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// run runs the server until it ends. The kernel ends the server with the thread that has started it: so that is locked to
// this goroutine, and the server never outlives the process.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	err := cmd.Start()
	if err == nil {
		p.pid = cmd.Process.Pid
	}
	if started <- err; err == nil {
		p.err = cmd.Wait()
	}
	close(p.ended)
}
