//! The monitor, which compares the nodes' loads once per period and determines which node sheds documents to which.
//!
//! It runs when nodes report, never when a request arrives. A decision needs only the list of active offloads, which
//! is replaced as a whole, and the time at which the last one ends. Both change with reports only.
//!
//! Nodes report one after the other, so loads are compared at the end of a *round*: all nodes that take requests
//! have reported, or one reports again before another one has. The next comparison is due a period later, less an
//! eighth, so that rounds of about one period are each compared.

use super::super::gauge::Gauge;
use super::super::open_nodes::open_nodes;
use super::HaccSettings;
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, mix};
use crate::sync::Mutex;
use crate::sync::Swap;
use crate::time::Time;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// An active move of documents from one node to another.
#[derive(Clone, Copy, Debug)]
struct Offload {
    from: NodeId,
    to: NodeId,
    begun: Time,
    until: Time,
    /// The documents whose hash, mixed with this offload's number, is at most this value move.
    up_to: u64,
    number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Monitor {
    /// The active offloads, by the node that sheds. Each node is in at most one, so there are at most half as many
    /// as nodes.
    offloads: Swap<Vec<Offload>>,
    /// The end of the last offload, in nanoseconds.
    until: AtomicU64,
    rounds: Mutex<RoundState>,
}

#[derive(Debug, Default)]
struct RoundState {
    /// The time at which the next comparison is due.
    next: Time,
    /// Whether each node has reported in this round, by slot.
    reported: Vec<bool>,
    /// The number of nodes that have reported.
    count: usize,
    /// The number of offloads so far.
    number: u64,
}

impl Monitor {
    /// Processes a node's report; `put` updates the gauge.
    pub(super) fn on_report(
        &self,
        now: Time,
        node: NodeId,
        settings: &HaccSettings,
        gauge: &Gauge,
        nodes: ClusterView<'_>,
        put: impl FnOnce(),
    ) {
        let mut rounds = self.rounds.lock();
        if rounds.reported.get(node.index()) == Some(&true) {
            // A new round begins. The previous one was compared when it was complete; if it never was complete, it
            // is compared now.
            if rounds.count < nodes.open_count() {
                self.compare(now, settings, gauge, nodes, &mut rounds);
            }
            rounds.reported.fill(false);
            rounds.count = 0;
        }
        put();
        let slots = nodes.slots().max(node.index() + 1);
        rounds.reported.resize(slots, false);
        rounds.reported[node.index()] = true;
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
        rounds: &mut RoundState,
    ) {
        if now < rounds.next {
            return;
        }
        rounds.next = now + (settings.period - settings.period / 8);
        let mut offloads = Vec::clone(&self.offloads.load());
        offloads.retain(|offload| offload.until > now);
        let takes_part = |node: NodeId| offloads.iter().any(|o| o.from == node || o.to == node);
        let mut free: Vec<(u32, NodeId)> = open_nodes(nodes)
            .filter(|node| !takes_part(*node))
            .filter_map(|node| gauge.get(now, node, nodes).map(|load| (load, node)))
            .collect();
        // The nodes are sorted by load, equals by slot. The ends are therefore the least and the most loaded nodes
        // that are still free.
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

    /// Returns the node to which a document moves that has been at `from` since `since`; `None` if it stays.
    #[inline]
    pub(super) fn move_destination(
        &self,
        now: Time,
        target: TargetId,
        from: NodeId,
        since: Time,
    ) -> Option<NodeId> {
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

/// Returns the part of the highly loaded node's documents that moves, of 2^64. Moved load counts at the other node
/// by the ratio of their weights.
fn part(settings: &HaccSettings, high: (u32, NodeId), low: (u32, NodeId), nodes: ClusterView<'_>) -> u64 {
    let weight = |node| u128::from(nodes.weight(node).milli());
    let (from, to) = (weight(high.1), weight(low.1));
    let gap = u128::from(high.0 - low.0) * u128::from(settings.amount_permille) * 2 * to;
    let whole = u128::from(high.0) * 1000 * (from + to);
    // The gap is below 2^38, so that 2^64 times it fits.
    u64::try_from((gap << 64) / whole.max(1)).unwrap_or(u64::MAX)
}
