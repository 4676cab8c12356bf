package driver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the plugin's numbers for Prometheus.
type Metrics struct {
	gpus          *prometheus.GaugeVec
	failures      prometheus.Counter
	prepared      prometheus.Gauge
	durations     *prometheus.HistogramVec
	corrupt       prometheus.Counter
	reconciled    prometheus.Counter
	publishErrors prometheus.Counter
}

// NewMetrics registers the driver's metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		gpus: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tessera_gpus", Help: "GPUs of this node by what the last discovery saw: healthy or failed.",
		}, []string{"state"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tessera_discovery_failures_total", Help: "Times that a GPU could not be read and was left out.",
		}),
		prepared: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tessera_claims_prepared", Help: "ResourceClaims that are prepared on this node.",
		}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tessera_prepare_duration_seconds", Help: "Time to prepare or unprepare one claim.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12),
		}, []string{"operation", "outcome"}),
		corrupt: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tessera_journal_corrupt_records_total", Help: "Journal records that could not be read and were set aside.",
		}),
		reconciled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tessera_reconcile_removed_total", Help: "Claims that were released because they are gone from the API server.",
		}),
		publishErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tessera_publish_errors_total", Help: "Failures to write ResourceSlices; each is tried again.",
		}),
	}
	registerer.MustRegister(m.gpus, m.failures, m.prepared, m.durations, m.corrupt, m.reconciled, m.publishErrors)
	return m
}

// observe starts a clock; the returned function stops it with the operation's outcome.
func (m *Metrics) observe(operation string) func(error) {
	start := time.Now()
	return func(err error) {
		outcome := "ok"
		if err != nil {
			outcome = "error"
		}
		m.durations.WithLabelValues(operation, outcome).Observe(time.Since(start).Seconds())
	}
}
