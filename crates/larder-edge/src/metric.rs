//! Definition of a metric, for its encoding and its documentation.

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A monotonic counter.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A histogram of times in seconds.
    Histogram,
}

impl MetricKind {
    /// Returns the Prometheus name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Definition of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Heading of the metric in the reference.
    pub topic: &'static str,
    /// Prometheus name.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Help text.
    pub help: &'static str,
}

impl Metric {
    /// Returns the name of the metric family. The encoder adds `_total` to the names of counters itself.
    pub fn family(&self) -> &'static str {
        match self.kind {
            MetricKind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            MetricKind::Gauge | MetricKind::Histogram => self.name,
        }
    }
}
