package otellock_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/mortiselock/lock"
	_ "github.com/mortiselock/lock/memory"
	otellock "github.com/mortiselock/lock/observe/otel"
)

// The metrics for Prometheus, by OpenTelemetry's exporter.
func Example() {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		log.Fatal(err)
	}
	observer, err := otellock.NewObserver(&otellock.Options{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	locker, err := lock.Open(ctx, "mem:", &lock.Options{Observer: observer})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{}) // serve it as /metrics

	err = lock.Do(ctx, locker, "nightly-report", func(context.Context, lock.Lease) error {
		page := httptest.NewRecorder()
		metrics.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		for lines := bufio.NewScanner(page.Body); lines.Scan(); {
			if name, labels, _ := strings.Cut(lines.Text(), "{"); name == "mortise_holders" {
				fmt.Println(name, labels[strings.LastIndex(labels, " ")+1:])
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// mortise_holders 1
}
