// The command report runs the benchmarks, each rival in a process of its own, and
// writes RESULTS.md, a chart for each workload, and the tables of docs/comparison.md.
//
//	go run ./report          # six rounds, in at most 25 minutes
//	go run ./report -quick   # three short rounds, in at most 10 minutes
//	go run ./report -check   # also fails if the results miss a bound
//
// A bound is judged by the median of the rounds. A missed bound with the field left passes
// -check, which prints its reason. The workload Durable needs a disk: its files are in
// $EVENTBUS_BENCH_DIR, or in the working directory. The workloads Postgres and Replicas need the
// programs of a Postgres server: the report starts one in /tmp. With $EVENTBUS_BENCH_POSTGRES, a
// connection string, they use a server that runs already. What this machine cannot measure is skipped
// with a line that begins with SKIP:.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// The defaults of the flags. A benchtime is that of one part of a run, see steps.
const (
	fullRounds, quickRounds       = 6, 3
	fullBenchtime, quickBenchtime = 150 * time.Millisecond, 60 * time.Millisecond
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, fmt.Sprintf("%d rounds of short runs", quickRounds))
	check := flags.Bool("check", false, "fail if the results miss a bound that is not marked as left")
	bench := flags.String("bench", "", "measure only the `benchmarks` whose names match, as Publish/subscribers=1/channel does, and write no files")
	rounds := flags.Int("rounds", 0, fmt.Sprintf("so many `rounds` instead of %d", fullRounds))
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; the flags are -quick, -check, -bench and -rounds", flags.Arg(0))
	}
	only, err := regexp.Compile(*bench)
	if err != nil {
		return fmt.Errorf("-bench: %w", err)
	}
	n, benchtime := fullRounds, fullBenchtime
	if *quick {
		n, benchtime = quickRounds, quickBenchtime
	}
	if *rounds < 0 {
		return fmt.Errorf("-rounds %d: must be at least 1", *rounds)
	}
	if *rounds > 0 {
		n = *rounds
	}
	all := steps(only, benchtime)
	if len(all) == 0 {
		return fmt.Errorf("-bench %s matches nothing; the names are such as %s", *bench, steps(regexp.MustCompile(""), 0)[0].Run)
	}

	dir, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "eventbus-benchmarks-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }() // a temporary file more or less
	load := loadAverage()                        // building adds to it
	server, err := startServer(ctx, all)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.remove()) }()
	all, skipped, err := measurable(ctx, all, server.missing, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintln(stderr, "building the benchmarks")
	binary, err := build(ctx, dir, scratch)
	if err != nil {
		return err
	}
	if err := buildPrograms(ctx, dir, binary, all); err != nil {
		return err
	}
	modules, err := versions(ctx, dir)
	if err != nil {
		return err
	}
	if server.version != "" {
		modules = append(modules, module{"PostgreSQL, the server", server.version})
	}
	if busy(load, runtime.NumCPU()) {
		fmt.Fprintf(stderr, "the load average is %s on %d cores: what is measured now is rough\n", load, runtime.NumCPU())
	}
	begin := time.Now()
	r, err := measure(ctx, binary, all, n, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "measured in %s\n", time.Since(begin).Round(time.Second))
	r.skipped = skipped
	verdicts := judge(r)
	if *bench == "" {
		m := describe(r, modules, load)
		how := settings{command: strings.Join(append([]string{"go run ./report"}, args...), " "), benchtime: benchtime}
		if err := write(dir, r, m, verdicts, how); err != nil {
			return err
		}
		if err := writeComparison(filepath.Join(dir, "..", "docs", "comparison.md"), comparisonTables(r, m)); err != nil {
			return err
		}
		fmt.Fprintln(stderr, "wrote RESULTS.md, charts, and the tables of docs/comparison.md")
	} else {
		printTables(stdout, r)
	}
	return conclude(stdout, verdicts, *check, *bench == "")
}

// settings describe the run of the report.
type settings struct {
	command   string
	benchtime time.Duration
}

// write writes RESULTS.md and the charts.
func write(dir string, r *results, m machine, verdicts []verdict, how settings) error {
	if err := os.MkdirAll(filepath.Join(dir, "charts"), 0o755); err != nil {
		return err
	}
	for _, w := range plan.Workloads {
		if err := os.WriteFile(filepath.Join(dir, chartFile(w)), []byte(chartOf(r, w)), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "RESULTS.md"), []byte(report(r, m, verdicts, how)), 0o644)
}

// printTables prints the cases of which something was measured.
func printTables(to io.Writer, r *results) {
	for _, w := range plan.Workloads {
		for _, c := range w.Cases {
			if t := table(r, w, c); strings.Count(t, "\n") > 2 {
				fmt.Fprintf(to, "%s: %s\n", w.Title, t)
			}
		}
	}
}

// conclude prints the bounds. With check it returns an error if a bound is missed that is not
// left, or if everything was to be measured and a bound lacks a value.
func conclude(to io.Writer, verdicts []verdict, check, everything bool) error {
	var missed, unknown []string
	for _, v := range verdicts {
		name := fmt.Sprintf("%s, %s: %s", v.work, v.against, v.demand())
		if v.skipped != "" {
			fmt.Fprintf(to, "skipped %s: %s\n", name, v.skipped)
			continue
		}
		if !v.known {
			if everything {
				fmt.Fprintf(to, "unknown %s\n", name)
			}
			unknown = append(unknown, name)
			continue
		}
		result := fmt.Sprintf("%s, measured %s", name, v.got())
		switch {
		case v.kept:
			fmt.Fprintf(to, "kept    %s\n", result)
		case v.left != "":
			fmt.Fprintf(to, "left    %s: %s\n", result, v.left)
		default:
			fmt.Fprintf(to, "missed  %s\n", result)
			missed = append(missed, result)
		}
	}
	switch {
	case !check:
	case len(missed) > 0:
		return fmt.Errorf("%d bounds missed:\n  %s", len(missed), strings.Join(missed, "\n  "))
	case everything && len(unknown) > 0:
		return fmt.Errorf("bounds not measured in each round:\n  %s", strings.Join(unknown, "\n  "))
	case len(unknown) == len(verdicts):
		return errors.New("no bound uses the benchmarks that -bench names")
	}
	return nil
}
