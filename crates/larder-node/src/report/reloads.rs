//! Counts of configuration reloads, for the metrics.

use crate::metric_table::{Row, Topic, definitions, describe, encode_rows, encode_text};
use larder_edge::{Metric, MetricKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
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

const TOPIC: Topic = Topic { name: "Node: reloads" };

const RELOADS: Metric = TOPIC.labelled(
    MetricKind::Counter,
    "larder_node_reloads_total",
    &["outcome"],
    "Reloads of the config, by outcome (done, refused, failed)",
);

const ROWS: &[Row<ReloadCounts>] = &[
    TOPIC.ratio(
        "larder_node_last_reload_timestamp_seconds",
        "End of the last reload, in seconds since 1970; 0 if there was none",
        |counts| counts.last_unix_s,
    ),
    TOPIC.gauge(
        "larder_node_last_reload_success",
        "1 if the last reload succeeded or there was none, otherwise 0",
        |counts| u64::from(!counts.last_failed),
    ),
];

impl ReloadCounts {
    /// Returns the definitions of the metrics.
    pub(crate) fn metrics() -> Vec<Metric> {
        [RELOADS].into_iter().chain(definitions(ROWS)).collect()
    }

    /// Returns the metrics in the Prometheus text format.
    pub(crate) fn metrics_text(self, node: &str) -> String {
        encode_text(&[("node", node)], self)
    }
}

impl Collector for ReloadCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut reloads = describe(&mut encoder, &RELOADS)?;
        for (how, count) in [("done", self.done), ("refused", self.refused), ("failed", self.failed)] {
            ConstCounter::new(count).encode(reloads.encode_family(&[("outcome", how)])?)?;
        }
        encode_rows(ROWS, self, &mut encoder)
    }
}
