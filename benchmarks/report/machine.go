package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// machine is where and with what was measured.
type machine struct {
	date, cpu, os, goVersion string
	// load is the load average before the first run, "unknown" where it cannot be
	// asked for.
	load    string
	disk    string
	cores   int
	modules []module
}

// module is one that rivals come from.
type module struct{ path, version string }

// versions are those of the modules that rivals come from, as the go command
// builds the benchmarks with.
func versions(ctx context.Context, dir string) ([]module, error) {
	var paths []string
	for _, rival := range plan.Rivals {
		for _, path := range []string{rival.Module, rival.Driver} {
			if path != "" && path != ours && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}"}, paths...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("which versions the rivals have: %w%s", err, said(err))
	}
	modules := []module{{ours, commit(ctx, dir)}}
	for line := range strings.Lines(string(out)) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		modules = append(modules, module{path, version})
	}
	return modules, nil
}

// said is what a failed command wrote to its standard error.
func said(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return "\n" + string(exit.Stderr)
	}
	return ""
}

// ours is the library's module.
const ours = "github.com/surebus/eventbus"

// describe says where the results come from.
func describe(r *results, modules []module, load string) machine {
	return machine{
		date:      time.Now().UTC().Format(time.DateOnly),
		cpu:       r.about["cpu"],
		os:        system(),
		goVersion: runtime.Version(),
		cores:     runtime.NumCPU(),
		load:      load,
		disk:      disk(diskDir()),
		modules:   modules,
	}
}

// system is the operating system's name.
func system() string {
	name := runtime.GOOS + "/" + runtime.GOARCH
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return name
	}
	for line := range strings.Lines(string(release)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return name + ", " + strings.Trim(value, `"'`)
		}
	}
	return name
}

// loadAverage is how many processes were running or waiting for a processor during
// the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// busy reports whether others had a part of the processors that shows.
func busy(load string, cores int) bool {
	n, err := strconv.ParseFloat(load, 64)
	return err == nil && n > float64(cores)/4
}

// commit is the library's, if git knows it.
func commit(ctx context.Context, dir string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", dir, "describe", "--always", "--dirty").Output()
	if err != nil {
		return "of this directory"
	}
	return strings.TrimSpace(string(out))
}

func (m machine) markdown() string {
	var s strings.Builder
	fmt.Fprintf(&s, "| machine | |\n| --- | --- |\n")
	fmt.Fprintf(&s, "| processor | %s, %d cores |\n| system | %s |\n| disk | %s |\n| load before | %s |\n| Go | %s |\n", m.cpu, m.cores, m.os, m.disk, m.load, m.goVersion)
	for _, v := range m.modules {
		fmt.Fprintf(&s, "| %s | %s |\n", v.path, v.version)
	}
	return s.String()
}
