package busprometheus_test

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// alert is a rule of alerts.yml.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// queries returns the expressions of dashboard.json, its variables included.
func queries(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard any
	require.NoError(t, json.Unmarshal(text, &dashboard))
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, in := range v {
				walk(in)
			}
		case map[string]any:
			for name, in := range v {
				if text, is := in.(string); is && (name == "expr" || name == "query") && strings.Contains(text, "eventbus_") {
					all = append(all, text)
				}
				walk(in)
			}
		}
	}
	walk(dashboard)
	require.NotEmpty(t, all)
	return all
}

// everything returns the registry of a bus for which each metric has a series.
func everything(t *testing.T) *prometheus.Registry {
	t.Helper()
	m := filled()
	leaves(reflect.ValueOf(m).Elem(), "", func(path string, set func()) {
		if strings.HasSuffix(path, "Subscription") || strings.HasSuffix(path, ".Destination") {
			return
		}
		set()
	})
	return registryOf(t, collectorOf(t, &source{metrics: *m}))
}

var metricName = regexp.MustCompile(`\beventbus_[a-z_]+`)

func TestFiles_EveryMetricExists(t *testing.T) {
	exist := make(map[string]bool)
	for series := range samples(t, everything(t)) {
		exist[metricName.FindString(series)] = true
	}
	check := func(expr string) {
		names := metricName.FindAllString(expr, -1)
		require.NotEmpty(t, names, expr)
		for _, name := range names {
			require.True(t, exist[name], "there is no %s, which %s needs", name, expr)
		}
	}
	for _, a := range alerts(t) {
		check(a.Expr)
	}
	for _, query := range queries(t) {
		check(query)
	}
}

var alertName = regexp.MustCompile("(?m)^\\| `(Eventbus[A-Za-z]+)`")

func TestFiles_EveryAlertHasALineInTheRunbook(t *testing.T) {
	const section = "\n## Alerts\n"
	text, err := os.ReadFile("../../OPERATIONS.md")
	require.NoError(t, err)
	require.Contains(t, string(text), section)
	_, rest, _ := strings.Cut(string(text), section)
	rest, _, _ = strings.Cut(rest, "\n## ")
	var listed, ruled []string
	for _, found := range alertName.FindAllStringSubmatch(rest, -1) {
		listed = append(listed, found[1])
	}
	for _, a := range alerts(t) {
		ruled = append(ruled, a.Alert)
		require.Equal(t, "OPERATIONS.md#alerts", a.Annotations["runbook"], a.Alert)
		require.Contains(t, []string{"critical", "warning", "info"}, a.Labels["severity"], a.Alert)
		require.NotEmpty(t, a.Annotations["summary"], a.Alert)
	}
	require.Equal(t, ruled, listed, "the alerts of alerts.yml, in their order")
}
