//! What the switch hears from its nodes besides replies: how loaded they are, and what their caches hold.
//!
//! ```text
//! poll (larder, node_exporter) --\
//!                                 > LoadReport -> Dispatcher::report        once a period and node
//! orca (reply headers) ----------/
//! follow (event stream) ---------\
//!                                 > CacheEvent -> Dispatcher::cache_event   as they come
//! Cache-Status: hit (replies) ---/
//! ```
//! One source of load per switch ([`SignalSource`]). Every signal states its source, unit and meaning in the module of
//! its source; the staleness is bounded by [`SignalsConfig::missing_after`] for load, and by
//! [`CacheSignalsConfig::silence`] for event streams. Missing is never zero: see [`larder_core::nodes::LoadReport`].
//! What a node sends is limited in bytes, line length and time, each with a named outcome ([`cause::Cause`]).

mod cause;
mod client;
pub(crate) mod config;
mod exposition;
mod follow;
mod larder;
mod mirror;
mod node_exporter;
mod orca;
mod poll;
mod sample;
pub(crate) mod state;

pub use config::{CacheSignalsConfig, SignalSource, SignalsConfig, UnknownSource};
pub use state::ReportStatus;

use crate::decider::Decider;
use crate::dial::Dialer;
use crate::node::Node;
use cause::Cause;
use larder_core::dispatch::{CacheEvent, Found};
use larder_core::nodes::LoadReport;
use larder_core::policy::PolicyKind;
use larder_core::policy::thresholds::LowRule;
use larder_core::{NodeId, Settings, TargetId};
use larder_edge::Fields;
use larder_peers::ClusterSecrets;
use state::EventKind;

/// What the policies in use need to hear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    reports: bool,
    caches: bool,
}

impl Needs {
    /// What the policies of routes with these settings need.
    pub(crate) fn of<'a>(routes: impl IntoIterator<Item = &'a Settings>) -> Self {
        routes.into_iter().fold(Self::default(), |needs, route| Self {
            reports: needs.reports || goes_by_reports(route),
            caches: needs.caches || route.policy.mirrors_caches(),
        })
    }
}

/// Whether a route's policy goes by load reports.
fn goes_by_reports(route: &Settings) -> bool {
    match route.policy {
        PolicyKind::WrrNum | PolicyKind::WrrTime | PolicyKind::LardUtil | PolicyKind::Hacc => true,
        PolicyKind::Lard | PolicyKind::LardR => matches!(route.thresholds.low, LowRule::Learned(_)),
        _ => false,
    }
}

/// The signals of a switch.
#[derive(Debug)]
pub(crate) struct Signals {
    config: SignalsConfig,
    source: SignalSource,
    follow: bool,
    /// A policy mirrors caches, so that replies' `Cache-Status` is news.
    mirrored: bool,
}

impl Signals {
    pub(crate) fn new(config: SignalsConfig, needs: Needs) -> Self {
        let automatic = if needs.reports { SignalSource::Larder } else { SignalSource::Off };
        let source = config.source.unwrap_or(automatic);
        if needs.reports && source == SignalSource::Off {
            tracing::warn!(
                "the policy goes by load reports, and signals are off: it does what it does without them"
            );
        }
        let follow = config.cache.follow.unwrap_or(needs.caches);
        Self { config, source, follow, mirrored: needs.caches }
    }

    /// Where load reports come from.
    pub(crate) fn source(&self) -> SignalSource {
        self.source
    }

    /// The secrets whose proof the nodes are shown. `None` if the operator has stated a source that is not larder's own and does not
    /// follow event streams: another program has no use for the proof, and might log it or pass it on.
    fn secrets(&self) -> Option<&ClusterSecrets> {
        let is_larder = self.config.source.is_none_or(|source| source == SignalSource::Larder);
        self.config.secret.as_ref().filter(|_| is_larder || self.config.cache.follow == Some(true))
    }
}

/// Listens to one node until it leaves.
pub(crate) async fn watch(
    (decider, signals): (std::sync::Arc<Decider>, std::sync::Arc<Signals>),
    node: NodeId,
) {
    let Some(node) = decider.nodes.get(node).and_then(|node| node.to_arc()) else { return };
    let load = async {
        match signals.source {
            SignalSource::Off => {}
            SignalSource::Orca => fade((&decider, &signals), &node).await,
            source => poll::run((&decider, &signals), &node, source).await,
        }
    };
    let cache = async {
        if signals.follow {
            follow::run((&decider, &signals), &node).await;
        }
    };
    tokio::join!(load, cache);
}

/// Withdraws reports that nothing follows, where nobody polls.
async fn fade((decider, signals): (&Decider, &Signals), node: &Node) {
    while !node.condition().left {
        tokio::time::sleep(signals.config.missing_after / 2).await;
        if node.signals.reports() > 0 {
            note_missing((decider, signals), node, Cause::Timeout);
        }
    }
}

/// The size of a larder node's memory, as it says; `None` if it does not. The caller bounds the time.
pub(crate) async fn cache_bytes_max(signals: &Signals, node: Dialer) -> Option<u64> {
    const PAGE_MAX: usize = 64 << 10;
    let secrets = signals.secrets();
    let mut client = client::Client::new(node, "/.larder/load", "application/json", secrets);
    larder::cache_bytes_max(&client.page(PAGE_MAX).await.ok()?)
}

/// Hands a report to the dispatcher.
fn take(decider: &Decider, node: &Node, report: LoadReport) -> Result<(), Cause> {
    let now = decider.clock.now();
    if !decider.dispatcher.report(now, node.id, report) {
        return Err(Cause::NotTaken);
    }
    node.signals.reported(now, report);
    if node.signals.turns(false) {
        tracing::info!(node = &*node.name, "load reports come again");
    }
    Ok(())
}

/// No report has come, for this cause: the last one is withdrawn if it is too old, and the operator told once.
fn note_missing((decider, signals): (&Decider, &Signals), node: &Node, cause: Cause) {
    let now = decider.clock.now();
    if node.signals.age(now).is_some_and(|age| age <= signals.config.missing_after) {
        return;
    }
    if node.signals.age(now).is_some() {
        node.signals.forget();
        decider.dispatcher.report(now, node.id, LoadReport::default());
    }
    // Of a node that takes no requests no report is wanted.
    if cause != Cause::NotTaken && node.signals.turns(true) {
        let source = signals.source.name();
        tracing::warn!(node = &*node.name, source, cause = cause.name(), "load reports are missing");
    }
}

/// Takes what a reply of `node` for `target` says: its load, which the client does not get to see, and that the node's
/// cache holds the target.
pub(crate) fn note_reply(
    (decider, signals): (&Decider, &Signals),
    node: &Node,
    target: TargetId,
    cache: Option<Found>,
    reply: &mut impl Fields,
) {
    if signals.source == SignalSource::Orca && orca::is_in(reply) {
        let now = decider.clock.now();
        if node.signals.claim(now, signals.config.period) {
            let report = orca::read(reply).map(|orca| orca.report(&signals.config.counters));
            if let Err(cause) = report.and_then(|report| take(decider, node, report)) {
                node.signals.failed(cause);
            }
        }
        for name in [orca::HEADER, orca::HEADER_BIN] {
            reply.remove(name.as_str());
        }
    }
    // Where a stream is live, it knows better.
    if let Some(outcome) = cache
        && signals.mirrored
        && !node.signals.is_streaming()
    {
        let event = match outcome {
            Found::Hit => CacheEvent::Stored,
            // Now it is on its way there, but what was there has left.
            Found::Miss => CacheEvent::Gone,
        };
        decider.dispatcher.cache_event(decider.clock.now(), node.id, target, event);
        node.signals.event(EventKind::Passive);
    }
}

/// Entry points for the fuzz targets.
#[doc(hidden)]
pub(crate) mod fuzzing {
    use super::{exposition, larder, mirror, node_exporter, orca};
    use std::time::Duration;

    /// Reads a page of node_exporter, its labels, and a page of a larder node; what two pages say is in range.
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
        let _ = exposition::read(bytes, |point| drop(point.label("mode")));
    }

    /// Reads ORCA headers.
    pub fn fuzz_orca(bytes: &[u8]) {
        for orca in [orca::read_value(bytes), orca::read_bin(bytes)].into_iter().flatten() {
            let report = orca.report(&["a".to_owned()]);
            assert!(report.utilisation().is_none_or(|share| share <= 1_000));
        }
    }

    /// Reads an event stream in pieces of the size that the first byte says, and whole: alike.
    pub fn fuzz_stream(bytes: &[u8]) {
        let Some((size, text)) = bytes.split_first() else { return };
        let read = |size: usize| {
            let (mut lines, mut mirror, mut told) =
                (mirror::Lines::default(), mirror::Mirror::new(16), Vec::new());
            let end = text.chunks(size).try_for_each(|piece| {
                lines.feed(piece, |line| {
                    mirror.line(line, |target, event| told.push((target, event))).map(drop)
                })
            });
            (told, end.is_ok())
        };
        let (whole, pieces) = (read(text.len().max(1)), read(usize::from(*size).max(1)));
        // A line that never ends is noticed at different moments.
        if whole.1 && pieces.1 {
            assert_eq!(whole, pieces);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::policy::thresholds::Training;

    #[test]
    fn signals_are_off_until_a_policy_needs_them() {
        let of = |policy| Settings { policy, ..Settings::default() };
        let mut learning = of(PolicyKind::LardR);
        learning.thresholds.low = LowRule::Learned(Training::default());
        let signals = |routes: &[Settings], source| {
            let config = SignalsConfig { source, ..SignalsConfig::default() };
            let signals = Signals::new(config, Needs::of(routes));
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
    fn the_proof_is_for_larder_nodes_alone() {
        let secret: ClusterSecrets = larder_peers::ClusterSecret::new([1; 32]).into();
        let shows = |source, follow| {
            let mut config =
                SignalsConfig { source, secret: Some(secret.clone()), ..SignalsConfig::default() };
            config.cache.follow = follow;
            Signals::new(config, Needs { caches: true, ..Needs::default() }).secrets().is_some()
        };
        assert!(shows(None, None) && shows(Some(SignalSource::Larder), None));
        for other in [SignalSource::Off, SignalSource::NodeExporter, SignalSource::Orca] {
            assert!(!shows(Some(other), None), "{other}");
            assert!(shows(Some(other), Some(true)), "{other}: larder alone has event streams");
        }
    }
}
