package otellock_test

import (
	"bufio"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.yaml.in/yaml/v3"

	otellock "github.com/mortiselock/lock/observe/otel"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// program returns the path of a program of Debian's package prometheus, or skips the test.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if slices.Contains(strings.Split(os.Getenv("LOCK_TEST_REQUIRE"), ","), "prometheus") {
		t.Fatalf("%s is missing, and LOCK_TEST_REQUIRE wants it; run: apt-get install prometheus", name)
	}
	t.Skipf("%s is not installed; run: apt-get install prometheus", name)
	return ""
}

// exporter returns a page of metrics for Prometheus, and the options that have an observer
// write to it.
func exporter(t *testing.T) (*prometheus.Registry, *otellock.Options) {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	require.NoError(t, err)
	return registry, &otellock.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
}

// exported returns the names and labels that Prometheus gets when everything has happened.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	registry, opts := exporter(t)
	exercise(t, opts)
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	names := map[string]bool{}
	for lines := bufio.NewScanner(page.Body); lines.Scan(); {
		if sample := regexp.MustCompile(`^(\w+)(?:\{(.*)\})? `).FindStringSubmatch(lines.Text()); sample != nil {
			names[sample[1]] = true
			for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(sample[2], -1) {
				names[label[1]] = true
			}
		}
	}
	return names
}

// unknown returns the names of this package in a text that are not exported.
func unknown(text string, exported map[string]bool) (names []string) {
	for _, name := range regexp.MustCompile(`\b(mortise_\w+|error_type)\b`).FindAllString(text, -1) {
		if !exported[name] {
			names = append(names, name)
		}
	}
	return names
}

// TestNamesAreExported: each metric and label that the dashboard and the rules name is one
// that the exporter gives. The test of the rules must use no others either.
func TestNamesAreExported(t *testing.T) {
	t.Parallel()
	known := exported(t)
	for _, file := range []string{"grafana.json", "alerts.yml", "alerts_test.yml"} {
		text := read(t, file)
		require.Contains(t, text, "mortise_losses_total")
		assert.Empty(t, unknown(text, known), file)
		for _, name := range []string{"mortise_losses_total", "mortise_backend"} {
			assert.Contains(t, unknown(strings.ReplaceAll(text, name, name+"x"), known), name+"x", "a flawed name in %s", file)
		}
	}
}

// rule is one of alerts.yml.
type rule struct{ Alert, Expr string }

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "alerts.yml")), &file))
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// queries returns what the panels of the dashboard ask, by their titles, with the variables
// of Grafana replaced.
func queries(t *testing.T) map[string][]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, "grafana.json")), &dashboard))
	asked := map[string][]string{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			asked[panel.Title] = append(asked[panel.Title], strings.NewReplacer("$__rate_interval", "5s", "$__range", "1m", "$job", ".*", "$backend", ".*").Replace(target.Expr))
		}
	}
	require.NotEmpty(t, asked)
	return asked
}

// TestAlertRules has promtool run the tests of the rules, which must notice when a rule
// never fires.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool")
	run := func(rules string) (string, error) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), []byte(rules), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts_test.yml"), []byte(read(t, "alerts_test.yml")), 0o600))
		cmd := exec.CommandContext(t.Context(), promtool, "test", "rules", "alerts_test.yml")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	text := read(t, "alerts.yml")
	out, err := run(text)
	require.NoError(t, err, "%s", out)
	for _, r := range rules(t) {
		_, of, found := strings.Cut(text, "alert: "+r.Alert+"\n")
		require.True(t, found)
		at := len(text) - len(of)
		flawed := text[:at] + strings.Replace(of, "mortise_", "wrong_", 1)
		out, err := run(flawed)
		assert.Error(t, err, "no test notices that %s never fires: %s", r.Alert, out)
		assert.Contains(t, out, r.Alert)
	}
	always := strings.Replace(text, "[10m])) > 0\n", "[10m])) >= 0\n", 1)
	require.NotEqual(t, text, always)
	out, err = run(always)
	assert.Error(t, err, "no test notices an alert without a reason: %s", out)
}
