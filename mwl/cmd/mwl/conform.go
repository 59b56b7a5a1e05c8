package main

import (
	"fmt"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/mwl/conformance"
)

func (a *app) conformCommand() *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use:   "conform DIR",
		Short: "Run a corpus of conformance cases",
		Long: `Run every case of a corpus and print a table of the scenarios. Time is virtual:
hours of Sleep take no time. A failed or malformed case ends with exit code 1.

A corpus has a directory for each case:

  case.json         {"description": "…", "marks": [], "scenarios": {"base": {}},
                     "profiles": ["https://mwl.dev/v0.1/conformance/core"]}
  definition.json   the definition
  scenarios/base/   input.json, expected-result.json and, if there are any,
                    arguments.json

The doc comment of the package mwl/conformance has the whole format. The virtual clock
stands still while a scenario computes.`,
		Example: "  mwl conform mwl/testdata/conformance",
		Args:    cobra.ExactArgs(1),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only what failed")
	a.jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		corpus, err := within(c.Context(), func() ([]conformance.Case, error) { return conformance.Read(args[0]) })
		if c.Context().Err() != nil {
			return &failure{exitProblem, fmt.Errorf("interrupted while reading %s", args[0]), "run it again"}
		}
		if err != nil {
			return &failure{exitIO, err, "give a directory with a directory for each case"}
		}
		return a.conform(c, corpus, quiet)
	}
	return c
}

// verdict is one line of the table.
type verdict struct {
	Case     string `json:"case"`
	Scenario string `json:"scenario,omitempty"`
	Passed   bool   `json:"passed"`
	Error    string `json:"error,omitempty"`
}

func (a *app) conform(c *cobra.Command, corpus []conformance.Case, quiet bool) error {
	// Rows are printed as they come, so the widths are known before.
	caseWidth, scenarioWidth := 0, 0
	for _, k := range corpus {
		caseWidth = max(caseWidth, utf8.RuneCountInString(oneLine(k.Name)))
		for _, s := range k.Scenarios {
			scenarioWidth = max(scenarioWidth, utf8.RuneCountInString(s.Name))
		}
	}
	passed, failed := 0, 0
	row := func(v verdict, err error) error {
		v.Passed = err == nil
		if v.Passed {
			passed++
		} else {
			failed++
			v.Error = err.Error()
		}
		switch {
		case v.Passed && quiet:
			return nil
		case a.json:
			return a.line(v)
		case v.Passed:
			fmt.Fprintf(a.out, "pass  %-*s  %s\n", caseWidth, oneLine(v.Case), v.Scenario)
		default:
			fmt.Fprintf(a.out, "FAIL  %-*s  %-*s  %s\n", caseWidth, oneLine(v.Case), scenarioWidth, v.Scenario, oneLine(v.Error))
		}
		return nil
	}
	for _, k := range corpus {
		outcomes, err := k.Run(c.Context())
		if c.Context().Err() != nil {
			return &failure{exitProblem, fmt.Errorf("interrupted after %d scenarios", passed+failed), "run it again"}
		}
		if err != nil {
			if err := row(verdict{Case: k.Name}, err); err != nil {
				return err
			}
			continue
		}
		for _, o := range outcomes {
			if err := row(verdict{Case: k.Name, Scenario: o.Scenario}, o.Err); err != nil {
				return err
			}
		}
	}
	if !a.json {
		fmt.Fprintf(a.out, "%s, %s: %d passed, %d failed\n", counted(len(corpus), "case"), counted(passed+failed, "scenario"), passed, failed)
	}
	if failed > 0 {
		return shown(exitProblem)
	}
	return nil
}
