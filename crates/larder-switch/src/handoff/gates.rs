//! Gates of the fast path: they tell the plane the loads of nodes, and up to which load it may open connections by
//! itself.
//!
//! The plane opens a connection while `base + opened - seen` is below the gate's limit. `opened` is the plane's own
//! count, `base` the dispatcher's count, and `seen` the part of `opened` that the dispatcher knows. Each side writes
//! what it is about to do before it reads what the other side has done. A thread that is about to ask the dispatcher
//! first *reserves* an admission at the total gate ([`ForwardingPlane::reserve`]) and then reads what the plane has
//! opened ([`Edge::catch_up`]). The plane first counts its connection and then reads `base`. One of the two therefore
//! sees the other, and the admission limit S is exact.
//!
//! The limit of a single node is less strict, because the node is known only after the dispatcher's decision.

use super::datapath::Datapath as _;
use super::edge::Edge;
use crate::decider::ForwardingPlane;
use larder_core::nodes::GroupId;
use larder_core::{NodeId, RouteId};
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// Number of attempts to read the plane's reports before the dispatcher is asked anyway.
const CATCH_UPS_MAX: usize = 16;

impl ForwardingPlane for Edge {
    fn reserve(self: Arc<Self>) {
        self.reserved.fetch_add(1, SeqCst);
        self.set_total_gate();
        // The reservation is visible before the plane's count is read.
        fence(SeqCst);
        self.catch_up();
    }

    fn release(&self) {
        self.reserved.fetch_sub(1, SeqCst);
        self.set_total_gate();
    }
}

impl Edge {
    /// Reads the plane's events while its uncounted connections could take the last admissions. The caller has a
    /// reservation.
    fn catch_up(self: &Arc<Self>) {
        let limit = self.decider.dispatcher.admission_limit();
        for _ in 0..CATCH_UPS_MAX {
            let unreported = self.datapath.opened(None).wrapping_sub(self.channels.opened_seen_sum());
            let counted = self.decider.dispatcher.outstanding_in(GroupId::ALL);
            let all = u64::from(counted) + u64::from(self.reserved.load(Relaxed)) + u64::from(unreported);
            if unreported == 0 || all <= u64::from(limit) {
                return;
            }
            // The plane counts before it reports: another processor is about to report.
            match self.read_events() {
                0 => std::thread::yield_now(),
                // Other events are not handled here, because a request is being admitted.
                _ => self.caught_up.notify_one(),
            }
        }
    }

    /// Sets the total gate.
    pub(super) fn set_total_gate(&self) {
        let dispatcher = &self.decider.dispatcher;
        let _alone = crate::lock::lock(&self.writing_gates);
        // A waiting request comes first and takes the admission of one that ends; the count may be one less in
        // between. No request begins to wait unseen, because it has a reservation.
        let queued = dispatcher.queued_in(GroupId::ALL) > 0;
        let limit = dispatcher.admission_limit();
        let seen = self.channels.opened_seen_sum();
        let counted = dispatcher.outstanding_in(GroupId::ALL).saturating_add(self.reserved.load(SeqCst));
        self.datapath.set_base(None, if queued { counted.max(limit) } else { counted }, seen);
        self.datapath.set_gate(None, limit, !queued && self.config.fast);
    }

    /// Sets the base of a node's gate.
    pub(super) fn set_node_base(&self, node: NodeId) {
        let _alone = crate::lock::lock(&self.writing_gates);
        // `opened` is read before the load: a connection counted in between is counted twice for a moment, never not
        // at all.
        let seen = self.channels.opened_seen(node);
        self.datapath.set_base(Some(node), self.decider.dispatcher.nodes().short_lived(node), seen);
    }

    /// Updates both gates after a change of a node's load.
    pub(crate) fn set_bases(&self, node: NodeId) {
        self.set_node_base(node);
        self.set_total_gate();
    }

    /// Returns T_high for the gates, which belong to nodes and not to routes: the minimum over the routes whose
    /// decisions may be reused.
    fn t_high(&self) -> u32 {
        let dispatcher = &self.decider.dispatcher;
        let routes = (0..dispatcher.routes()).filter_map(|route| u16::try_from(route).ok()).map(RouteId);
        let highs =
            routes.filter(|route| self.may_reuse(*route)).map(|route| dispatcher.thresholds_of(route).1);
        highs.min().unwrap_or(1)
    }

    /// Whether decisions of a route may be reused. They may not if the policy uses turns or random draws, if the
    /// route's group has its own admission limit, or if any route has edits.
    pub(super) fn may_reuse(&self, route: RouteId) -> bool {
        self.config.fast
            && !self.decider.routing.any_edits
            && !self.decider.routing.is_split(route)
            && self.decider.dispatcher.settings_of(route).policy.is_by_target()
            && self.decider.dispatcher.group_of(route) == GroupId::ALL
    }

    /// Sets all gates.
    pub(super) fn set_gates(&self) {
        let dispatcher = &self.decider.dispatcher;
        let t_high = u64::from(self.t_high());
        for row in dispatcher.nodes().rows() {
            let capability = self.channels.capability(row.id);
            let shaky = self.decider.nodes.get(row.id).is_none_or(|node| node.failures.load(Relaxed) > 0);
            let usable = dispatcher.nodes().takes(row.id, GroupId::ALL)
                && capability.up
                && capability.cookie
                && capability.linked
                && !shaky;
            let limit = u32::try_from(t_high * u64::from(row.weight.milli()) / 1000).unwrap_or(u32::MAX);
            self.set_node_base(row.id);
            self.datapath.set_gate(Some(row.id), limit.max(1), usable);
        }
        self.set_total_gate();
    }
}
