//! The monitor: compares the nodes' loads once per period and decides who sheds documents to whom.

use super::super::measured::open;
use super::HaccSettings;
use crate::id::{NodeId, TargetId};
use crate::nodes::{Sight, mix};
use crate::time::Time;

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

/// The offloads under way; each node is in at most one, so there are no more than half as many as nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Monitor {
    next: Time,
    offloads: Vec<Offload>,
    /// Offloads so far.
    number: u64,
    pub(super) visits: u64,
}

impl Monitor {
    /// Compares loads if a period has passed; `load` gives a node's, or that it is unknown.
    pub(super) fn check(
        &mut self,
        now: Time,
        settings: &HaccSettings,
        nodes: Sight<'_>,
        load: impl Fn(NodeId) -> Option<u32>,
    ) {
        if now < self.next {
            return;
        }
        self.next = now + settings.period;
        self.offloads.retain(|offload| offload.until > now);
        let takes_part = |node: NodeId| self.offloads.iter().any(|o| o.from == node || o.to == node);
        let mut free: Vec<(u32, NodeId)> = open(nodes)
            .filter(|node| !takes_part(*node))
            .filter_map(|node| load(node).map(|load| (load, node)))
            .collect();
        // By load, equals by slot: the ends are then the least and the most loaded that are still free.
        free.sort_unstable();
        let mut free = free.as_slice();
        while let [(low, to), rest @ .., (high, from)] = free {
            let gap = high - low;
            if gap <= u32::from(settings.margin_permille) {
                break;
            }
            let moved = (u128::from(gap) * u128::from(settings.amount_permille)) << 64;
            let up_to = u64::try_from(moved / (u128::from(*high) * 1000)).unwrap_or(u64::MAX);
            let until = now + settings.cooldown;
            self.offloads.push(Offload {
                from: *from,
                to: *to,
                begun: now,
                until,
                up_to,
                number: self.number,
            });
            self.number += 1;
            free = rest;
        }
    }

    /// Where a document goes that has been at `from` since `since`, if it is to move.
    pub(super) fn moved(&self, now: Time, target: TargetId, from: NodeId, since: Time) -> Option<NodeId> {
        let offload = self.offloads.iter().find(|offload| offload.from == from && offload.until > now)?;
        let falls = mix(target.0 ^ mix(offload.number)) <= offload.up_to;
        (since < offload.begun && falls).then_some(offload.to)
    }
}
