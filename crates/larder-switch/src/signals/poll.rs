//! Polls a node for its load, once per period.
//!
//! After a failed poll, the last report stays until it is older than `missing_after`. Then it is withdrawn (replaced
//! by an empty report) and this is logged once, until reports arrive again. A node that takes no requests is polled
//! too, so that its counters are known when it returns, but its reports are not used. A poll that takes longer than a
//! period delays the next one; missed polls are not repeated.

use super::client::PageClient;
use super::config::{SignalSource, SignalsConfig};
use super::counters::NodeCounters;
use super::failure::SignalFailure;
use super::{Signals, larder, node_exporter};
use crate::decider::Decider;
use crate::dial::Dialer;
use crate::health::Jitter;
use crate::node::Node;
use larder_core::nodes::LoadReport;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

const NODE_EXPORTER_PORT: u16 = 9100;

/// Poller of a node's counters.
struct Poller<'a> {
    config: &'a SignalsConfig,
    source: SignalSource,
    client: PageClient,
    began: Instant,
    before: Option<NodeCounters>,
}

/// Polls `node` until it leaves. Does nothing if `source` is not polled.
pub(super) async fn run((decider, signals): (&Decider, &Signals), node: &Node, source: SignalSource) {
    let config = &signals.config;
    let Some(mut poller) = Poller::new(config, source, &node.dial) else { return };
    let first_within = config.period.min(Duration::from_secs(1));
    tokio::time::sleep(first_within.mul_f64(Jitter::new(node.id.0).next())).await;
    let mut ticks = tokio::time::interval(config.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !node.condition().left {
        ticks.tick().await;
        let polled = tokio::time::timeout(config.timeout, poller.poll()).await;
        let taken = match polled.unwrap_or(Err(SignalFailure::Timeout)) {
            Ok(Some(report)) => super::report_load(decider, node, report),
            // The first sample has nothing to compare with.
            Ok(None) => Ok(()),
            Err(cause) => Err(cause),
        };
        if let Err(cause) = taken {
            node.signals.failed(cause);
            super::note_missing((decider, signals), node, cause);
        }
    }
}

impl<'a> Poller<'a> {
    fn new(config: &'a SignalsConfig, source: SignalSource, dial: &Dialer) -> Option<Self> {
        let node = dial.address;
        let (path, port, accept) = match source {
            SignalSource::Larder => ("/.larder/load", node.port(), "application/json"),
            SignalSource::NodeExporter if config.counters.is_empty() => {
                (node_exporter::PATH, NODE_EXPORTER_PORT, "text/plain;version=0.0.4")
            }
            // The counters may belong to any collector.
            SignalSource::NodeExporter => ("/metrics", NODE_EXPORTER_PORT, "text/plain;version=0.0.4"),
            SignalSource::Orca | SignalSource::Off => return None,
        };
        let address = SocketAddr::new(node.ip(), config.port.unwrap_or(port));
        // Other programs do not need the proof, and might log it.
        let secrets = config.secret.as_ref().filter(|_| source == SignalSource::Larder);
        let client =
            PageClient::new(dial.at(address), config.path.as_deref().unwrap_or(path), accept, secrets);
        Some(Self { config, source, client, began: Instant::now(), before: None })
    }

    /// Returns the report for the time since the last poll.
    async fn poll(&mut self) -> Result<Option<LoadReport>, SignalFailure> {
        let page = self.client.page(self.config.body_max).await?;
        let at: Duration = self.began.elapsed();
        let (disks, counters) = (&self.config.disks, &self.config.counters);
        let sample = match self.source {
            SignalSource::Larder => larder::read(&page, counters)?,
            _ => node_exporter::read(&page, at, disks, counters)?,
        };
        let report = match &self.before {
            Some(before) => sample.since(before).map_err(|_| SignalFailure::Restarted),
            None => Ok(None),
        };
        // Two polls may see the same page; then the older sample is kept for the comparison.
        if !matches!((&report, &self.before), (Ok(None), Some(_))) {
            self.before = Some(sample);
        }
        report
    }
}
