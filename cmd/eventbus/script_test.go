package main

import (
	"flag"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the golden output into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"eventbus": main})
}

// TestScript runs the scripts of testdata/script: each command, with its golden output.
func TestScript(t *testing.T) {
	runScripts(t, "testdata/script")
}

func runScripts(t *testing.T, dir string) {
	if runtime.GOOS == "windows" {
		t.Skip("the scripts need a POSIX shell and signals")
	}
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
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
	})
}
