package otellock_test

import (
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPrometheus starts a Prometheus that scrapes a real exporter. Each query of the
// dashboard must have numbers, and each rule must be evaluated. The alert of a loss fires.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	binary := program(t, "prometheus")
	registry, opts := exporter(t)
	page := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(page.Close)
	api := startPrometheus(t, binary, strings.TrimPrefix(page.URL, "http://"))

	asked := queries(t)
	missing := func() (without []string) {
		for panel, exprs := range asked {
			for _, expr := range exprs {
				if !hasNumbers(t, api, expr) {
					without = append(without, panel+": "+expr)
				}
			}
		}
		return without
	}
	alerts := func() (lost, broken []string) {
		var answer struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
		get(t, api+"/rules", &answer)
		for _, group := range answer.Groups {
			for _, rule := range group.Rules {
				if rule.Name == "LockLost" && rule.State == "firing" {
					lost = append(lost, rule.Name)
				}
				if rule.Health != "ok" {
					broken = append(broken, fmt.Sprint(rule.Name, ": ", rule.Health, ", ", rule.LastError))
				}
			}
		}
		return lost, broken
	}
	var without, lost, broken []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		l := exercise(t, opts)
		time.Sleep(200 * time.Millisecond) // for a scrape
		without = missing()
		lost, broken = alerts()
		_ = l.Close()
		if len(without) == 0 && len(broken) == 0 && len(lost) > 0 {
			break
		}
	}
	assert.Empty(t, without, "queries of the dashboard without a number")
	assert.Empty(t, broken, "rules that are not evaluated")
	assert.NotEmpty(t, lost, "a loss must have an alert")
	assert.False(t, hasNumbers(t, api, "sum(mortise_losses)"), "a query with a flawed name has numbers")
}

// startPrometheus returns the address of the API of one that scrapes a target.
func startPrometheus(t *testing.T, binary, target string) (api string) {
	t.Helper()
	rules, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 200ms, evaluation_interval: 200ms}
rule_files: [%q]
scrape_configs: [{job_name: app, static_configs: [{targets: [%q]}]}]
`, rules, target), 0o600))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("prometheus said:\n%s", text)
		}
	})
	eventually(t, "Prometheus is ready", func() bool {
		answer, err := http.Get("http://" + address + "/-/ready")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return "http://" + address + "/api/v1"
}

// get asks the API.
func get(t *testing.T, address string, data any) {
	t.Helper()
	response, err := http.Get(address)
	require.NoError(t, err)
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
	require.Equal(t, "success", answer.Status, "%s: %s", address, answer.Error)
}

// hasNumbers reports whether each time series that the query gives is a number, and there is
// one at least.
func hasNumbers(t *testing.T, api, query string) bool {
	t.Helper()
	var answer struct{ Result []struct{ Value []any } }
	get(t, api+"/query?query="+url.QueryEscape(query), &answer)
	for _, series := range answer.Result {
		if len(series.Value) != 2 || series.Value[1] == "NaN" {
			return false
		}
	}
	return len(answer.Result) > 0
}
