package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the golden output into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(serverTests{m}, map[string]func(){"eventbus": main})
}

// serverTests are the tests, after which the server that they may have started is removed.
type serverTests struct{ *testing.M }

var removeServer = func() error { return nil }

func (m serverTests) Run() int {
	code := m.M.Run()
	if err := removeServer(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// TestScript runs the scripts of testdata/script: each command, with its golden output.
func TestScript(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the scripts need a POSIX shell and signals")
	}
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	const dir = "testdata/script"
	params := testscript.Params{
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("TESTDATA", testdata)
			e.Setenv("USER", "ops")
			e.Setenv("COLUMNS", "")
			return nil
		},
		Cmds: scriptCommands,
	}
	if testing.Short() && raceEnabled { // the command then takes half a second to start
		for _, name := range []string{"dlq_replay", "serve", "url", "url_many"} {
			params.Files = append(params.Files, filepath.Join(dir, name+".txtar"))
		}
	} else {
		params.Dir = dir
	}
	testscript.Run(t, params)
}
