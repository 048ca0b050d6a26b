//! Counts of configuration reloads, for the metrics.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use std::fmt;

/// The outcomes of a node's reloads. The caller that reads the configuration counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReloadCounts {
    /// Reloads that were applied.
    pub done: u64,
    /// Reloads with an invalid configuration, or with a change that needs a restart.
    pub refused: u64,
    /// Reloads that could not be applied although the configuration was valid, for example because of a
    /// certificate.
    pub failed: u64,
    /// Time at which the last reload ended, in seconds since 1970; 0 if there was none.
    pub last_unix_s: f64,
    /// Whether the last reload changed nothing.
    pub last_failed: bool,
}

impl ReloadCounts {
    /// Returns the metrics in the Prometheus text format.
    pub(crate) fn metrics_text(self, node: &str) -> String {
        let labels = [("node".into(), node.to_owned().into())];
        let mut registry = Registry::with_prefix_and_labels("larder_node", labels.into_iter());
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

impl Collector for ReloadCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Reloads of the config that were done, refused or failed";
        let mut reloads = encoder.encode_descriptor("reloads", help, None, MetricType::Counter)?;
        for (how, count) in [("done", self.done), ("refused", self.refused), ("failed", self.failed)] {
            ConstCounter::new(count).encode(reloads.encode_family(&[("outcome", how)])?)?;
        }
        let help = "End of the last reload, seconds since 1970; 0 if there was none";
        let name = "last_reload_timestamp_seconds";
        let at = ConstGauge::new(self.last_unix_s);
        at.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let help = "1 if the last reload succeeded or there was none, otherwise 0";
        let success = ConstGauge::new(u64::from(!self.last_failed));
        success.encode(encoder.encode_descriptor("last_reload_success", help, None, MetricType::Gauge)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_documented_with_its_meaning() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/reload.md");
        let document = std::fs::read_to_string(path).expect("the document");
        let text = ReloadCounts::default().metrics_text("a");
        let helps: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' ')).collect();
        assert_eq!(helps.len(), 3, "{text}");
        for (name, help) in helps {
            let counter = text.contains(&format!("# TYPE {name} counter"));
            let name = if counter { format!("{name}_total") } else { name.to_owned() };
            let row = document.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            assert!(row.is_some_and(|row| row.contains(help.trim_end_matches('.'))), "{name}: {help}");
        }
    }
}
