//! Signals from nodes besides their replies: their load and the contents of their caches.
//!
//! ```text
//! poll (larder, node_exporter) --\
//!                                 > LoadReport -> Dispatcher::report        once a period and node
//! orca (reply headers) ----------/
//! follow (event stream) ---------\
//!                                 > CacheEvent -> Dispatcher::cache_event   as they come
//! Cache-Status: hit (replies) ---/
//!
//! engine (metrics of inference servers) -> SharedChains                     restarts, and capacities
//! ```
//! There is one source of load per switch ([`SignalSource`]). The module of each source states the source, unit and
//! meaning of every signal. Staleness is bounded by [`SignalsConfig::missing_after`] for load, and by
//! [`CacheSignalsConfig::silence`] for event streams. Missing is never zero: see [`larder_core::nodes::LoadReport`].
//! Input from nodes is limited in bytes, line length and time, each with a named outcome
//! ([`failure::SignalFailure`]).

mod cache_mirror;
mod client;
pub(crate) mod config;
mod counters;
mod engine;
mod exposition;
mod failure;
mod follow;
mod larder;
mod node_exporter;
mod orca;
mod poll;
pub(crate) mod state;

pub use config::{CacheSignalsConfig, SignalSource, SignalsConfig, UnknownSource};
pub use state::ReportStatus;

use crate::decider::Decider;
use crate::dial::Dialer;
use crate::node::Node;
use failure::SignalFailure;
use larder_core::dispatch::{CacheEvent, CacheResult};
use larder_core::nodes::LoadReport;
use larder_core::policy::PolicyKind;
use larder_core::policy::thresholds::LowRule;
use larder_core::{NodeId, Settings, TargetId};
use larder_edge::Fields;
use larder_peers::ClusterSecrets;
use state::EventKind;

/// Signals that the policies in use need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalNeeds {
    reports: bool,
    caches: bool,
}

impl SignalNeeds {
    /// Returns the signals that routes with these settings need.
    pub(crate) fn new<'a>(routes: impl IntoIterator<Item = &'a Settings>) -> Self {
        routes.into_iter().fold(Self::default(), |needs, route| Self {
            reports: needs.reports || uses_reports(route),
            caches: needs.caches || route.policy.mirrors_caches(),
        })
    }
}

/// Whether a route's policy uses load reports.
fn uses_reports(route: &Settings) -> bool {
    match route.policy {
        PolicyKind::WrrNum | PolicyKind::WrrTime | PolicyKind::LardUtil | PolicyKind::Hacc => true,
        PolicyKind::Lard | PolicyKind::LardR => matches!(route.thresholds.low, LowRule::Learned(_)),
        _ => false,
    }
}

/// Signals of a switch.
#[derive(Debug)]
pub(crate) struct Signals {
    config: SignalsConfig,
    source: SignalSource,
    follow: bool,
    /// Whether a policy mirrors caches, so that `Cache-Status` of replies is used.
    mirrored: bool,
}

impl Signals {
    pub(crate) fn new(config: SignalsConfig, needs: SignalNeeds) -> Self {
        let automatic = if needs.reports { SignalSource::Larder } else { SignalSource::Off };
        let source = config.source.unwrap_or(automatic);
        if needs.reports && source == SignalSource::Off {
            tracing::warn!("load reports: off, the policy decides without them");
        }
        let follow = config.cache.follow.unwrap_or(needs.caches);
        Self { config, source, follow, mirrored: needs.caches }
    }

    /// Returns the source of load reports.
    pub(crate) fn source(&self) -> SignalSource {
        self.source
    }

    /// Returns the secrets whose proof the nodes get. Returns `None` if the operator has chosen another source and no
    /// event streams: another program does not need the proof, and might log it or pass it on.
    fn secrets(&self) -> Option<&ClusterSecrets> {
        let is_larder = self.config.source.is_none_or(|source| source == SignalSource::Larder);
        self.config.secret.as_ref().filter(|_| is_larder || self.config.cache.follow == Some(true))
    }
}

/// Reads the signals of a node until it leaves.
pub(crate) async fn watch(
    (decider, signals): (std::sync::Arc<Decider>, std::sync::Arc<Signals>),
    node: NodeId,
) {
    let Some(node) = decider.nodes.get(node).and_then(|node| node.to_arc()) else { return };
    let load = async {
        match signals.source {
            SignalSource::Off => {}
            SignalSource::Orca => expire_reports((&decider, &signals), &node).await,
            source => poll::run((&decider, &signals), &node, source).await,
        }
    };
    let cache = async {
        if signals.follow {
            follow::run((&decider, &signals), &node).await;
        }
    };
    tokio::join!(load, cache, engine::run(&decider, &node));
}

/// Withdraws reports that are too old, for sources that are not polled.
async fn expire_reports((decider, signals): (&Decider, &Signals), node: &Node) {
    while !node.condition().left {
        tokio::time::sleep(signals.config.missing_after / 2).await;
        if node.signals.reports() > 0 {
            note_missing((decider, signals), node, SignalFailure::Timeout);
        }
    }
}

/// Returns the size of a larder node's memory cache; `None` if the node does not report it. The caller sets a
/// timeout.
pub(crate) async fn cache_bytes_max(signals: &Signals, node: Dialer) -> Option<u64> {
    const PAGE_MAX: usize = 64 << 10;
    let secrets = signals.secrets();
    let mut client = client::PageClient::new(node, "/.larder/load", "application/json", secrets);
    larder::cache_bytes_max(&client.page(PAGE_MAX).await.ok()?)
}

/// Passes a report to the dispatcher.
fn report_load(decider: &Decider, node: &Node, report: LoadReport) -> Result<(), SignalFailure> {
    let now = decider.clock.now();
    if !decider.dispatcher.report(now, node.id, report) {
        return Err(SignalFailure::NotTaken);
    }
    node.signals.record(now, report);
    if node.signals.missing_changed(false) {
        tracing::info!(node = &*node.name, "load reports: available again");
    }
    Ok(())
}

/// Handles a missing report: withdraws the last one if it is too old, and logs once.
fn note_missing((decider, signals): (&Decider, &Signals), node: &Node, cause: SignalFailure) {
    let now = decider.clock.now();
    if node.signals.age(now).is_some_and(|age| age <= signals.config.missing_after) {
        return;
    }
    if node.signals.age(now).is_some() {
        node.signals.forget();
        decider.dispatcher.report(now, node.id, LoadReport::default());
    }
    // A node that takes no requests needs no report.
    if cause != SignalFailure::NotTaken && node.signals.missing_changed(true) {
        let source = signals.source.name();
        tracing::warn!(node = &*node.name, source, cause = cause.name(), "load reports: missing");
    }
}

/// Reads the signals of a reply of `node` for `target`: its load, which is removed from the reply, and whether the
/// node's cache has the target.
pub(crate) fn note_reply(
    (decider, signals): (&Decider, &Signals),
    node: &Node,
    target: TargetId,
    cache: Option<CacheResult>,
    reply: &mut impl Fields,
) {
    if signals.source == SignalSource::Orca && orca::has_report(reply) {
        let now = decider.clock.now();
        if node.signals.claim(now, signals.config.period) {
            let report = orca::read(reply).map(|orca| orca.report(&signals.config.counters));
            if let Err(cause) = report.and_then(|taken| report_load(decider, node, taken)) {
                node.signals.failed(cause);
            }
        }
        for name in [orca::HEADER, orca::HEADER_BIN] {
            reply.remove(name.as_str());
        }
    }
    // A live stream is more accurate.
    if let Some(outcome) = cache
        && signals.mirrored
        && !node.signals.is_streaming()
    {
        let event = match outcome {
            CacheResult::Hit => CacheEvent::Stored,
            // The target is being fetched now, but the old copy has left.
            CacheResult::Miss => CacheEvent::Gone,
        };
        decider.dispatcher.cache_event(decider.clock.now(), node.id, target, event);
        node.signals.event(EventKind::Passive);
    }
}

/// Entry points for the fuzz targets.
#[doc(hidden)]
pub(crate) mod fuzzing {
    use super::{cache_mirror, exposition, larder, node_exporter, orca};
    use std::time::Duration;

    /// Parses a page of node_exporter, its labels, and a page of a larder node. Reports from two pages must be in
    /// range.
    pub fn fuzz_pages(bytes: &[u8]) {
        let half = bytes.len() / 2;
        let counters = ["a".to_owned(), "up".to_owned()];
        let exporter = |page: &[u8], s| node_exporter::read(page, Duration::from_secs(s), &[], &counters);
        let own = |page: &[u8]| larder::read(page, &counters);
        let pages = [
            (exporter(&bytes[..half], 1), exporter(&bytes[half..], 2)),
            (own(&bytes[..half]), own(&bytes[half..])),
        ];
        for (before, after) in pages {
            if let (Ok(before), Ok(after)) = (before, after)
                && let Ok(Some(report)) = after.since(&before)
            {
                let shares = [report.cpu_permille, report.disk_permille, report.memory_permille];
                assert!(shares.iter().flatten().all(|share| *share <= 1_000));
            }
        }
        let _ = exposition::parse(bytes, |point| drop(point.label("mode")));
    }

    /// Parses ORCA headers.
    pub fn fuzz_orca(bytes: &[u8]) {
        for orca in [orca::read_value(bytes), orca::read_bin(bytes)].into_iter().flatten() {
            let report = orca.report(&["a".to_owned()]);
            assert!(report.utilisation().is_none_or(|share| share <= 1_000));
        }
    }

    /// Parses an event stream in pieces of the size in the first byte, and whole. The results must be equal.
    pub fn fuzz_stream(bytes: &[u8]) {
        let Some((size, text)) = bytes.split_first() else { return };
        let read = |size: usize| {
            let (mut lines, mut mirror, mut told) =
                (cache_mirror::LineSplitter::default(), cache_mirror::CacheMirror::new(16), Vec::new());
            let end = text.chunks(size).try_for_each(|piece| {
                lines.feed(piece, |line| {
                    mirror.line(line, |target, event| told.push((target, event))).map(drop)
                })
            });
            (told, end.is_ok())
        };
        let (whole, pieces) = (read(text.len().max(1)), read(usize::from(*size).max(1)));
        // An endless line is noticed at different moments.
        if whole.1 && pieces.1 {
            assert_eq!(whole, pieces);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::policy::thresholds::TrainingSettings;

    #[test]
    fn signals_are_off_until_a_policy_needs_them() {
        let of = |policy| Settings { policy, ..Settings::default() };
        let mut learning = of(PolicyKind::LardR);
        learning.thresholds.low = LowRule::Learned(TrainingSettings::default());
        let signals = |routes: &[Settings], source| {
            let config = SignalsConfig { source, ..SignalsConfig::default() };
            let signals = Signals::new(config, SignalNeeds::new(routes));
            (signals.source, signals.follow)
        };
        assert_eq!(signals(&[of(PolicyKind::LardR), of(PolicyKind::Rr)], None), (SignalSource::Off, false));
        let mixed = [of(PolicyKind::LardR), of(PolicyKind::Hacc)];
        assert_eq!(signals(&mixed, None), (SignalSource::Larder, false), "any route counts");
        assert_eq!(signals(&[learning], None), (SignalSource::Larder, false));
        assert_eq!(signals(&[of(PolicyKind::LbGc)], None), (SignalSource::Off, true));
        assert_eq!(signals(&mixed, Some(SignalSource::Orca)), (SignalSource::Orca, false));
        assert_eq!(signals(&mixed, Some(SignalSource::Off)), (SignalSource::Off, false));
    }

    #[test]
    fn the_proof_is_sent_to_larder_nodes_only() {
        let secret: ClusterSecrets = larder_peers::ClusterSecret::new([1; 32]).into();
        let shows = |source, follow| {
            let mut config =
                SignalsConfig { source, secret: Some(secret.clone()), ..SignalsConfig::default() };
            config.cache.follow = follow;
            Signals::new(config, SignalNeeds { caches: true, ..SignalNeeds::default() }).secrets().is_some()
        };
        assert!(shows(None, None) && shows(Some(SignalSource::Larder), None));
        for other in [SignalSource::Off, SignalSource::NodeExporter, SignalSource::Orca] {
            assert!(!shows(Some(other), None), "{other}");
            assert!(shows(Some(other), Some(true)), "{other}: larder alone has event streams");
        }
    }
}
