//! The monitor: compares the nodes' loads once per period and decides who sheds documents to whom.
//!
//! It works when nodes report, never when a request comes: what a decision needs of it is the list of offloads under way,
//! which is replaced as a whole, and until when there are any. Both change with reports only.
//!
//! Nodes report one after the other, so loads are compared when a *round* is over: when all nodes that take requests have
//! reported, or one reports again before another has at all. The next comparison is due a period later, less an eighth, so
//! that rounds of one period that do not come to the microsecond are each compared.

use super::super::gauge::Gauge;
use super::super::open_nodes::open;
use super::HaccSettings;
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, lock, mix};
use crate::time::Time;
use arc_swap::ArcSwap;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// Documents on their way from one node to another.
#[derive(Clone, Copy, Debug)]
struct Offload {
    from: NodeId,
    to: NodeId,
    begun: Time,
    until: Time,
    /// Documents whose hash, mixed with this offload's number, is at most this move.
    up_to: u64,
    number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Monitor {
    /// The offloads under way, by the node that sheds; each node is in at most one, so there are no more than half as many
    /// as nodes.
    offloads: ArcSwap<Vec<Offload>>,
    /// When the last of them ends, in nanoseconds.
    until: AtomicU64,
    rounds: Mutex<Rounds>,
}

#[derive(Debug, Default)]
struct Rounds {
    /// When the next comparison is due.
    next: Time,
    /// By slot: whether the node has reported in this round.
    reported: Vec<bool>,
    /// How many have.
    count: usize,
    /// Offloads so far.
    number: u64,
}

impl Monitor {
    /// A node has reported; `put` brings the gauge up to date.
    pub(super) fn on_report(
        &self,
        now: Time,
        node: NodeId,
        settings: &HaccSettings,
        gauge: &Gauge,
        nodes: ClusterView<'_>,
        put: impl FnOnce(),
    ) {
        let mut rounds = lock(&self.rounds);
        if rounds.on_report.get(node.index()) == Some(&true) {
            // Another round begins. The one before was compared when it was complete; if it never was, it is now.
            if rounds.count < nodes.open_count() {
                self.compare(now, settings, gauge, nodes, &mut rounds);
            }
            rounds.on_report.fill(false);
            rounds.count = 0;
        }
        put();
        let slots = nodes.slots().max(node.index() + 1);
        rounds.on_report.resize(slots, false);
        rounds.on_report[node.index()] = true;
        rounds.count += 1;
        if rounds.count >= nodes.open_count() {
            self.compare(now, settings, gauge, nodes, &mut rounds);
        }
    }

    fn compare(
        &self,
        now: Time,
        settings: &HaccSettings,
        gauge: &Gauge,
        nodes: ClusterView<'_>,
        rounds: &mut Rounds,
    ) {
        if now < rounds.next {
            return;
        }
        rounds.next = now + (settings.period - settings.period / 8);
        let mut offloads = Vec::clone(&self.offloads.load());
        offloads.retain(|offload| offload.until > now);
        let takes_part = |node: NodeId| offloads.iter().any(|o| o.from == node || o.to == node);
        let mut free: Vec<(u32, NodeId)> = open(nodes)
            .filter(|node| !takes_part(*node))
            .filter_map(|node| gauge.get(now, node, nodes).map(|load| (load, node)))
            .collect();
        // By load, equals by slot: the ends are then the least and the most loaded that are still free.
        free.sort_unstable();
        let mut free = free.as_slice();
        while let [low, rest @ .., high] = free {
            if high.0 - low.0 <= u32::from(settings.margin_permille) {
                break;
            }
            let until = now + settings.cooldown;
            let (up_to, number) = (part(settings, *high, *low, nodes), rounds.number);
            offloads.push(Offload { from: high.1, to: low.1, begun: now, until, up_to, number });
            rounds.number += 1;
            free = rest;
        }
        let until = offloads.iter().map(|offload| offload.until).max().unwrap_or(Time::ZERO);
        offloads.sort_unstable_by_key(|offload| offload.from);
        self.offloads.store(offloads.into());
        self.until.store(until.as_nanos(), Ordering::Release);
    }

    /// Where a document goes that has been at `from` since `since`, if it is to move.
    #[inline]
    pub(super) fn moved(&self, now: Time, target: TargetId, from: NodeId, since: Time) -> Option<NodeId> {
        if now.as_nanos() >= self.until.load(Ordering::Acquire) {
            return None;
        }
        let offloads = self.offloads.load();
        let at = offloads.binary_search_by_key(&from, |offload| offload.from).ok()?;
        let offload = offloads[at];
        let falls = mix(target.0 ^ mix(offload.number)) <= offload.up_to;
        (offload.until > now && since < offload.begun && falls).then_some(offload.to)
    }
}

/// The part of the documents of the node with the high load that moves to the other, of 2^64. Load moved counts at the other
/// node by the ratio of their weights.
fn part(settings: &HaccSettings, high: (u32, NodeId), low: (u32, NodeId), nodes: ClusterView<'_>) -> u64 {
    let weight = |node| u128::from(nodes.weight(node).milli());
    let (from, to) = (weight(high.1), weight(low.1));
    let gap = u128::from(high.0 - low.0) * u128::from(settings.amount_permille) * 2 * to;
    let whole = u128::from(high.0) * 1000 * (from + to);
    // The gap is below 2^38, so that 2^64 times it fits.
    u64::try_from((gap << 64) / whole.max(1)).unwrap_or(u64::MAX)
}
