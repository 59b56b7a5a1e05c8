package mwl_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

const (
	hostileFile      = "MWL_HOSTILE_FILE"
	hostileUntrusted = "MWL_HOSTILE_UNTRUSTED"
	// hostileGrowth is what loading and executing a definition may take.
	hostileGrowth = 64 << 20
	// handlerTimeout bounds an execution from outside, as a bus does.
	handlerTimeout = time.Minute
)

// hostileReport is what a child process says about one definition.
type hostileReport struct {
	Growth     int64
	Problems   int
	Pointer    string
	Type, Code string
	Message    string
	Took       time.Duration
}

// TestHostile loads and executes every definition of testdata/hostile in a child
// process, with the default limits and with Untrusted. Those of the directory itself
// do not load. Those of run do, and end within their limits: of memory, and of time,
// which is virtual. A child that hangs is killed. Without -search it takes every fourth.
func TestHostile(t *testing.T) {
	refused, err := filepath.Glob(filepath.Join("testdata", "hostile", "*.json"))
	require.NoError(t, err)
	running, err := filepath.Glob(filepath.Join("testdata", "hostile", "run", "*.json"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(refused)+len(running), 40)
	for i, file := range append(refused, running...) {
		if !*search && i%4 != 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			for _, untrusted := range []bool{true, false} {
				report := hostileChild(t, file, untrusted)
				t.Logf("untrusted %t: %d MiB, %v, %s %.160s", untrusted, report.Growth>>20, report.Took, report.Code, report.Message)
				if !raceEnabled { // the detector multiplies the memory
					require.LessOrEqual(t, report.Growth, int64(hostileGrowth), "the memory of the process")
				}
				require.NotContains(t, report.Message, "\x1b", "a terminal would obey it")
				if i < len(refused) {
					require.NotZero(t, report.Problems)
					require.True(t, report.Pointer != "" || strings.Contains(file, "trailing-data"), "it has a pointer")
					continue
				}
				require.Zero(t, report.Problems, report.Message)
				require.NotEmpty(t, report.Code, "it fails")
				limits := mwl.DefaultLimits()
				limits.ExecutionTime = handlerTimeout
				if untrusted {
					limits = mwl.UntrustedLimits()
				}
				require.LessOrEqual(t, report.Took, limits.ExecutionTime+limits.Cleanup)
			}
		})
	}
}

func hostileChild(t *testing.T, file string, untrusted bool) (report hostileReport) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild_RunsAHostileDefinition$", "-test.v")
	child.Env = append(os.Environ(), hostileFile+"="+file, hostileUntrusted+"="+strconv.FormatBool(untrusted), "GOMEMLIMIT=72MiB")
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%.2000s", out)
	_, text, found := strings.Cut(string(out), "report: ")
	require.True(t, found, "%.2000s", out)
	require.NoError(t, json.NewDecoder(strings.NewReader(text)).Decode(&report))
	return report
}

// TestChild_RunsAHostileDefinition is the child process.
func TestChild_RunsAHostileDefinition(t *testing.T) {
	file := os.Getenv(hostileFile)
	if file == "" {
		t.Skip("it runs in a child process of TestHostile")
	}
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	var options []mwl.LoadOption
	if os.Getenv(hostileUntrusted) == "true" {
		options = append(options, mwl.Untrusted())
	}
	harmless, err := mwl.Load(chain(chainSteps, chainExpression), options...)
	require.NoError(t, err)
	require.NoError(t, harmless.Execute(t.Context(), map[string]any{"total": 0.0, "name": "x"}).Err())
	before := peakMemory(t, true)
	var report hostileReport
	def, err := mwl.Load(source, options...)
	if refused := new(mwl.DefinitionError); err != nil {
		require.ErrorAs(t, err, &refused)
		report.Problems, report.Message, report.Pointer = len(refused.Problems), err.Error(), refused.Problems[0].Pointer
	} else {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), handlerTimeout)
			defer cancel()
			if f := def.Execute(ctx, nil).Failure; f != nil {
				report.Type, report.Code, report.Message = f.Type, f.Code, f.Message
			}
			report.Took = time.Since(began)
		})
	}
	report.Growth = peakMemory(t, false) - before
	report.Message = report.Message[:min(len(report.Message), 500)]
	text, err := json.Marshal(report)
	require.NoError(t, err)
	t.Logf("report: %s", text)
}

// peakMemory is the most memory that the process has had since the last reset, in
// bytes: resident memory on Linux, elsewhere what the runtime has obtained.
func peakMemory(t *testing.T, reset bool) int64 {
	if runtime.GOOS != "linux" {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.Sys - m.HeapReleased) //nolint:gosec // sizes of a process
	}
	if reset {
		debug.FreeOSMemory()
		require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	}
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(status), "VmHWM:")
	require.True(t, found)
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	require.NoError(t, err)
	return kib << 10
}
