package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
)

// diskDir returns the directory in which the programs of the workload Durable create their files. The
// programs inherit the environment variable and the working directory.
func diskDir() string {
	if dir := os.Getenv(durable.DirVariable); dir != "" {
		return dir
	}
	return "."
}

// programs returns the names of the programs that the steps need.
func programs(steps []step) []string {
	var names []string
	for _, s := range steps {
		if program, _ := plan.ProgramOf(s.Run); program != "" && !slices.Contains(names, program) {
			names = append(names, program)
		}
	}
	return names
}

// programFile returns the file of a program, in the directory of the benchmarks' binary.
func programFile(binary, program string) string {
	return filepath.Join(filepath.Dir(binary), "durable-"+program)
}

// buildPrograms compiles the programs that the steps need.
func buildPrograms(ctx context.Context, dir, binary string, steps []step) error {
	for _, program := range programs(steps) {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", programFile(binary, program), "./durable/"+program)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building durable/%s: %w\n%s", program, err, out)
		}
	}
	return nil
}

// measurable returns the steps that this machine can measure. It prints a line for each reason to skip
// the others. noServer is the reason to skip the steps on a Postgres server, or empty.
func measurable(ctx context.Context, steps []step, noServer string, progress io.Writer) (kept []step, skipped map[plan.Run]string, err error) {
	reasonFor := func(plan.Rival) string { return "" }
	if slices.ContainsFunc(steps, func(s step) bool { return s.Workload == plan.Durable }) {
		if reasonFor, err = obstacles(ctx, diskDir()); err != nil {
			return nil, nil, err
		}
	}
	skipped = make(map[plan.Run]string)
	var told []string
	for _, s := range steps {
		rival, _ := plan.RivalNamed(s.Rival)
		reason, what := "", ""
		switch {
		case s.Workload == plan.Durable:
			reason, what = reasonFor(rival), "durable/"+rival.Program
		case onServer(s.Run):
			reason, what = noServer, s.Workload
		}
		if reason == "" {
			kept = append(kept, s)
			continue
		}
		skipped[s.Run] = reason
		if line := fmt.Sprintf("SKIP: %s: %s", what, reason); !slices.Contains(told, line) {
			told = append(told, line)
			fmt.Fprintln(progress, line)
		}
	}
	if len(kept) == 0 && len(skipped) > 0 {
		return nil, nil, fmt.Errorf("nothing can be measured here:\n  %s", strings.Join(told, "\n  "))
	}
	return kept, skipped, nil
}

// obstacles returns a function that returns why a rival of the workload Durable cannot be measured here.
// It returns an empty string for the others.
func obstacles(ctx context.Context, disk string) (func(plan.Rival) string, error) {
	if reason := unfit(disk); reason != "" {
		return func(plan.Rival) string { return reason }, nil
	}
	// The go command disables cgo where it finds no C compiler.
	out, err := exec.CommandContext(ctx, "go", "env", "CGO_ENABLED").Output()
	if err != nil {
		return nil, fmt.Errorf("go env CGO_ENABLED: %w%s", err, said(err))
	}
	compiler := string(bytes.TrimSpace(out)) == "1"
	return func(r plan.Rival) string {
		if r.Cgo && !compiler {
			return "its SQLite driver needs cgo and a C compiler"
		}
		return ""
	}, nil
}

// unfit returns why a directory is not on a disk, or an empty string.
func unfit(dir string) string {
	if _, err := durable.FileSystem(dir); err != nil {
		return err.Error()
	}
	return ""
}

// runProgram measures a step with a program. It returns the result in the format of benchmarks.
func runProgram(ctx context.Context, binary, program, synchronous string, s step) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, programFile(binary, program), "-rival", s.Rival, "-case", s.Case, "-time", s.benchtime.String())
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", s.Run, err, out, complaints.Bytes())
	}
	var result durable.Result
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("%s: %w; it printed:\n%s", s.Run, err, out)
	}
	if result.Rival != s.Rival || result.Case != s.Case || result.Events < 1 || result.Seconds <= 0 {
		return nil, fmt.Errorf("%s: not its result: %s", s.Run, out)
	}
	if result.Synchronous != synchronous {
		return nil, fmt.Errorf("%s: it ran with synchronous=%s, want %s", s.Run, result.Synchronous, synchronous)
	}
	return fmt.Appendf(nil, "Benchmark%s %d %g ns/op\n", s.Run, result.Events, result.Seconds*1e9/float64(result.Events)), nil
}

// addRate sets the events per second of a round, which follow from the time per event.
func (r *results) addRate(run plan.Run, round int) {
	if program, _ := plan.ProgramOf(run); program != "" {
		r.set(run, plan.Rate, round, 1/r.at(round, run, plan.Time))
	}
}

// disk describes the disk of the workload Durable.
func disk(dir string) string {
	name, err := durable.FileSystem(dir)
	if err != nil {
		return err.Error()
	}
	flush, err := durable.FlushTime(dir)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s; a flush of 4 kB takes %s", name, quantity(flush.Seconds(), plan.Time))
}
