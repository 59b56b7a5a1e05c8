package main

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the golden output into the scripts")

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"mwl": main}) }

// TestScript runs the scripts of testdata/script: each command, with its golden output.
func TestScript(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	params := testscript.Params{
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("MODULE", root) // of mwl, with its corpus
			return nil
		},
	}
	const dir = "testdata/script"
	if testing.Short() {
		params.Files = []string{filepath.Join(dir, "run.txtar")} // the one with goroutines
	} else {
		params.Dir = dir
	}
	testscript.Run(t, params)
}
