package otellock_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	otellock "github.com/mortiselock/lock/observe/otel"
)

// onPage returns the metrics of the table of a page, and the alerts there.
func onPage(page string) (metrics, alerts []string) {
	for _, row := range regexp.MustCompile("(?m)^\\| `(mortise\\.[a-z.]+)` \\|[^|]*\\|([^|]*)\\|$").FindAllStringSubmatch(page, -1) {
		metrics = append(metrics, row[1])
		for _, alert := range regexp.MustCompile("`(Lock\\w+)`").FindAllStringSubmatch(row[2], -1) {
			alerts = append(alerts, alert[1])
		}
	}
	return metrics, alerts
}

// TestPage: the table of docs/operating.md has each metric and each alert, once.
func TestPage(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	exercise(t, &otellock.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	seen, err := collect(reader)
	require.NoError(t, err)
	named := map[string]bool{}
	for series := range seen {
		name, _, _ := strings.Cut(series, "{")
		named[name] = true
	}
	var exist, fire []string
	for name := range named {
		exist = append(exist, name)
	}
	for _, r := range rules(t) {
		fire = append(fire, r.Alert)
	}
	metrics, alerts := onPage(read(t, "../../docs/operating.md"))
	assert.ElementsMatch(t, exist, metrics)
	assert.ElementsMatch(t, fire, alerts)
}
