//! The gates of the fast path: how loaded nodes are, and up to where the plane may go by itself.
//!
//! The plane opens a connection while `base + opened - seen` is below the gate's limit; `opened` is its own count, `base`
//! what the dispatcher counts, and `seen` what part of `opened` the dispatcher was told of. Both sides write what they are
//! about to do before they read what the other has done: whoever is about to ask the dispatcher *reserves* a place at the
//! sum's gate first ([`ForwardingPlane::reserve`]) and then looks at what the plane has opened ([`Edge::catch_up`]), and the plane
//! counts its connection first and then looks at `base`. So one of the two sees the other, and S is kept exactly.
//!
//! A node's limit is kept less strictly: its place is known only when the dispatcher has answered.

use super::edge::Edge;
use super::fabric::Fabric as _;
use crate::decider::ForwardingPlane;
use larder_core::nodes::GroupId;
use larder_core::{NodeId, RouteId};
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// How often the plane's reports are awaited before the dispatcher is asked all the same.
const CATCHES_MAX: usize = 16;

impl ForwardingPlane for Edge {
    fn reserve(self: Arc<Self>) {
        self.reserved.fetch_add(1, SeqCst);
        self.set_sum();
        // The place is taken before what the plane has taken is read.
        fence(SeqCst);
        self.catch_up();
    }

    fn release(&self) {
        self.reserved.fetch_sub(1, SeqCst);
        self.set_sum();
    }
}

impl Edge {
    /// Takes what the plane has told while its connections, which the dispatcher is yet to be told of, could be the last
    /// that there is room for. With a place reserved.
    fn catch_up(self: &Arc<Self>) {
        let limit = self.decider.dispatcher.admission_limit();
        for _ in 0..CATCHES_MAX {
            let untold = self.fabric.opened(None).wrapping_sub(self.peers.opened_seen_sum());
            let known = self.decider.dispatcher.outstanding_in(GroupId::ALL);
            let all = u64::from(known) + u64::from(self.reserved.load(Relaxed)) + u64::from(untold);
            if untold == 0 || all <= u64::from(limit) {
                return;
            }
            // Counted before it is told: another processor is at it.
            match self.listen() {
                0 => std::thread::yield_now(),
                // What has been told beside is not handled here: a request is being admitted.
                _ => self.caught_up.notify_one(),
            }
        }
    }

    /// Lets the plane know how loaded all nodes together are.
    pub(super) fn set_sum(&self) {
        let dispatcher = &self.decider.dispatcher;
        let _alone = super::lock::lock(&self.writing_gates);
        // Whoever waits comes first, and takes the place of one that leaves: the count may be one less in between. Nobody
        // begins to wait unseen, for he has reserved.
        let queued = dispatcher.queued_in(GroupId::ALL) > 0;
        let limit = dispatcher.admission_limit();
        let seen = self.peers.opened_seen_sum();
        let known = dispatcher.outstanding_in(GroupId::ALL).saturating_add(self.reserved.load(SeqCst));
        self.fabric.set_base(None, if queued { known.max(limit) } else { known }, seen);
        self.fabric.set_gate(None, limit, !queued && self.config.fast);
    }

    /// Lets the plane know how loaded a node is.
    pub(super) fn set_node_base(&self, node: NodeId) {
        let _alone = super::lock::lock(&self.writing_gates);
        // First what was opened, then the load: a connection counted in between is counted twice for a moment, never not.
        let seen = self.peers.opened_seen(node);
        self.fabric.set_base(Some(node), self.decider.dispatcher.nodes().short_lived(node), seen);
    }

    /// A node has one more: both gates say so at once.
    pub(crate) fn set_bases(&self, node: NodeId) {
        self.set_node_base(node);
        self.set_sum();
    }

    /// T_high at the gates, which stand for nodes and not for routes: the least of those in force on routes whose decisions
    /// may be used again, so that none of them is exceeded.
    fn t_high(&self) -> u32 {
        let dispatcher = &self.decider.dispatcher;
        let routes = (0..dispatcher.routes()).filter_map(|route| u16::try_from(route).ok()).map(RouteId);
        let highs =
            routes.filter(|route| self.may_reuse(*route)).map(|route| dispatcher.thresholds_of(route).1);
        highs.min().unwrap_or(1)
    }

    /// Whether decisions of a route may be used again: not where each request has a turn or a lot of its own, not where a part
    /// of the nodes has an S of its own, for which there is no gate, and not where any route edits what passes.
    pub(super) fn may_reuse(&self, route: RouteId) -> bool {
        self.config.fast
            && !self.decider.routing.any_edits
            && !self.decider.routing.is_split(route)
            && self.decider.dispatcher.settings_of(route).policy.is_by_target()
            && self.decider.dispatcher.group_of(route) == GroupId::ALL
    }

    /// Lets the plane know how loaded nodes are, and up to where it may go by itself.
    pub(super) fn set_gates(&self) {
        let dispatcher = &self.decider.dispatcher;
        let t_high = u64::from(self.t_high());
        for row in dispatcher.nodes().rows() {
            let peer = self.peers.capability(row.id);
            let shaky = self.decider.nodes.get(row.id).is_none_or(|node| node.failures.load(Relaxed) > 0);
            let usable = dispatcher.nodes().takes(row.id, GroupId::ALL)
                && peer.up
                && peer.cookie
                && peer.linked
                && !shaky;
            let limit = u32::try_from(t_high * u64::from(row.weight.milli()) / 1000).unwrap_or(u32::MAX);
            self.set_node_base(row.id);
            self.fabric.set_gate(Some(row.id), limit.max(1), usable);
        }
        self.set_sum();
    }
}
