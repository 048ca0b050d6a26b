//! Definitions of metrics in tables, and their encoding.
//!
//! A table has the metrics of one struct. Each row defines a metric and the function that reads its value from
//! the struct.

use larder_edge::{Metric, MetricKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// The function that reads the value of a metric.
enum Reader<T> {
    Integer(fn(&T) -> u64),
    Float(fn(&T) -> f64),
}

/// A metric with one value, which a struct of type `T` contains.
pub(crate) struct Row<T> {
    metric: Metric,
    reader: Reader<T>,
}

/// Makes the rows of a table.
#[derive(Clone, Copy)]
pub(crate) struct Topic {
    /// Heading of the metrics in the reference.
    pub(crate) name: &'static str,
}

impl Topic {
    /// Returns the definition of a metric with labels.
    pub(crate) const fn labelled(
        self,
        kind: MetricKind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric { topic: self.name, name, kind, labels, help }
    }

    /// Returns a counter without labels.
    pub(crate) const fn counter<T>(
        self,
        name: &'static str,
        help: &'static str,
        read: fn(&T) -> u64,
    ) -> Row<T> {
        let metric = self.labelled(MetricKind::Counter, name, &[], help);
        Row { metric, reader: Reader::Integer(read) }
    }

    /// Returns a counter of seconds without labels.
    pub(crate) const fn seconds<T>(
        self,
        name: &'static str,
        help: &'static str,
        read: fn(&T) -> f64,
    ) -> Row<T> {
        let metric = self.labelled(MetricKind::Counter, name, &[], help);
        Row { metric, reader: Reader::Float(read) }
    }

    /// Returns a gauge of an integer without labels.
    pub(crate) const fn gauge<T>(
        self,
        name: &'static str,
        help: &'static str,
        read: fn(&T) -> u64,
    ) -> Row<T> {
        let metric = self.labelled(MetricKind::Gauge, name, &[], help);
        Row { metric, reader: Reader::Integer(read) }
    }

    /// Returns a gauge of a floating-point number without labels.
    pub(crate) const fn ratio<T>(
        self,
        name: &'static str,
        help: &'static str,
        read: fn(&T) -> f64,
    ) -> Row<T> {
        let metric = self.labelled(MetricKind::Gauge, name, &[], help);
        Row { metric, reader: Reader::Float(read) }
    }
}

impl<T> Row<T> {
    fn encode(&self, of: &T, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let encoded = describe(encoder, &self.metric)?;
        match (self.metric.kind, &self.reader) {
            (MetricKind::Counter, Reader::Integer(read)) => ConstCounter::new(read(of)).encode(encoded),
            (MetricKind::Counter, Reader::Float(read)) => ConstCounter::new(read(of)).encode(encoded),
            (_, Reader::Integer(read)) => ConstGauge::new(read(of)).encode(encoded),
            (_, Reader::Float(read)) => ConstGauge::new(read(of)).encode(encoded),
        }
    }
}

/// Encodes all rows of a table.
pub(crate) fn encode_rows<T>(rows: &[Row<T>], of: &T, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    rows.iter().try_for_each(|row| row.encode(of, encoder))
}

/// Encodes the name, help and kind of a metric.
pub(crate) fn describe<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'a Metric,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    let kind = match metric.kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge => MetricType::Gauge,
        MetricKind::Histogram => MetricType::Histogram,
    };
    // The encoder adds the unit to the name.
    match metric.family().strip_suffix("_seconds").filter(|_| metric.kind == MetricKind::Counter) {
        Some(name) => encoder.encode_descriptor(name, metric.help, Some(&Unit::Seconds), kind),
        None => encoder.encode_descriptor(metric.family(), metric.help, None, kind),
    }
}

/// Encodes a collector as Prometheus text with these labels on all values.
pub(crate) fn encode_text(labels: &[(&'static str, &str)], collector: impl Collector + 'static) -> String {
    let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).to_owned().into()));
    let mut registry = Registry::with_labels(labels);
    registry.register_collector(Box::new(collector));
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut out, &registry);
    out
}

/// Returns the metrics of rows.
pub(crate) fn definitions<T>(rows: &[Row<T>]) -> impl Iterator<Item = Metric> {
    rows.iter().map(|row| row.metric)
}
