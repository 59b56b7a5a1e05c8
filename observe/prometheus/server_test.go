package busprometheus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// program returns the path of a program of Prometheus, or skips the test.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIP: there is no %s; on Debian: apt-get install --no-install-recommends prometheus", name)
	}
	return path
}

func TestPromtool_RulesAndMetrics(t *testing.T) {
	promtool := program(t, "promtool")
	run := func(stdin string, args ...string) {
		t.Helper()
		check := exec.CommandContext(t.Context(), promtool, args...)
		check.Stdin = strings.NewReader(stdin)
		out, err := check.CombinedOutput()
		require.NoError(t, err, "promtool %v:\n%s", args, out)
	}
	run("", "check", "rules", "alerts.yml")
	run("", "test", "rules", filepath.Join("testdata", "alerts_test.yml"))
	run(scrape(t, everything(t)), "check", "metrics")
}

// A Prometheus scrapes a bus, loads the rules and answers the queries of the dashboard.
func TestPrometheus_ScrapesABus(t *testing.T) {
	server := program(t, "prometheus")
	bus := newBus(t)
	_, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named(`mail "fast"`))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.NoError(t, err)
	target := httptest.NewServer(promhttp.HandlerFor(registryOf(t, collectorOf(t, bus)), promhttp.HandlerOpts{}))
	defer target.Close()

	p := startPrometheus(t, server, strings.TrimPrefix(target.URL, "http://"))
	p.await(t, `eventbus_type_events_total{bus="shop",type="order.placed"}`, "1")
	p.await(t, `eventbus_subscription_successes_total{bus="shop",subscription="mail \"fast\""}`, "1")
	p.await(t, `count(eventbus_subscription_call_duration_seconds_bucket{le="+Inf"})`, "1")
	p.await(t, `up`, "1")

	for _, query := range queries(t) {
		if strings.HasPrefix(query, "label_values(") {
			continue // a function of Grafana
		}
		query = strings.NewReplacer("$bus", "shop", "$subscription", ".*", "$__rate_interval", "1m").Replace(query)
		_, err := p.query(query)
		require.NoError(t, err, query)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	require.NoError(t, p.get("rules", &rules))
	require.Len(t, rules.Groups, 1)
	require.Len(t, rules.Groups[0].Rules, len(alerts(t)))
	for _, r := range rules.Groups[0].Rules {
		require.NotEqual(t, "err", r.Health, "%s: %s", r.Name, r.LastError)
	}
}

// server is a running Prometheus.
type server struct {
	url    string
	client *http.Client
	log    *bytes.Buffer
	ended  chan struct{}
}

func startPrometheus(t *testing.T, path, target string) *server {
	t.Helper()
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	dir := t.TempDir()
	rules, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	config := fmt.Sprintf(`{"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [%q],
		"scrape_configs": [{"job_name": "bus", "static_configs": [{"targets": [%q]}]}]}`, rules, target)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	s := &server{
		url: "http://" + address + "/api/v1/", log: &bytes.Buffer{}, ended: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second},
	}
	command := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"), //nolint:noctx // Kill below ends it
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	command.Stdout, command.Stderr = s.log, s.log
	require.NoError(t, command.Start())
	go func() {
		_ = command.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-s.ended
	})
	return s
}

// get reads the data of an answer of the API.
func (s *server) get(path string, data any) error {
	response, err := s.client.Get(s.url + path) //nolint:noctx // the client has a timeout
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	return json.Unmarshal(body, &struct{ Data any }{data})
}

// query returns the value of the first series.
func (s *server) query(expr string) (string, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	err := s.get("query?query="+url.QueryEscape(expr), &data)
	if err != nil || len(data.Result) == 0 {
		return "", err
	}
	return fmt.Sprint(data.Result[0].Value[1]), nil
}

// await waits until a query has a value: a scrape comes each second, once the server has started.
func (s *server) await(t *testing.T, expr, want string) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := s.query(expr)
		if err == nil && got == want {
			return
		}
		select {
		case <-tick.C:
		case <-s.ended:
			t.Fatalf("the server has ended:\n%s", s.log)
		case <-deadline:
			t.Fatalf("%s is %q, want %q: %v", expr, got, want, err)
		}
	}
}
