//! Periodic work: idle and forgotten connections, and dead nodes.

use super::datapath::Datapath as _;
use super::edge::Edge;
use super::parts;
use crate::lock::lock;
use larder_core::handoff::{Flow, FlowTarget, Input};
use larder_core::{NodeState, Time};
use larder_handoff::channel::message::ToNode;
use larder_kernel::FlowKey;
use std::sync::Arc;
use std::time::Duration;

/// Silence after which a client counts as gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

impl Edge {
    /// Passes the time to the machine.
    pub(super) fn tick(&self, now: Time) {
        self.handle_input_at(now, Input::Tick);
    }

    /// Reviews active connections: detects idle ones and ones that the plane has forgotten.
    pub(super) fn review(&self) {
        let active = lock(&self.machine).active();
        for key in active {
            self.handle_input(Input::Review { key });
        }
        let now = self.decider.clock.now();
        self.tick(now);
        self.counts.unaccepted(self.expire_pending_accepts(now));
        self.drop_dead_nodes(false);
        self.request_release();
    }

    /// Sweeps the whole flow table: detects ended connections, connections from before a restart, and connections
    /// that the table no longer has.
    pub(super) fn sweep(self: &Arc<Self>) {
        self.handle_input(Input::SweepBegins);
        let now = Time::from_nanos(self.datapath.now_ns());
        let mut odd: Vec<(FlowKey, Flow)> = Vec::new();
        self.datapath.each_flow(&mut |key, flow| {
            let flow = parts::flow(&flow);
            if lock(&self.machine).record_seen(key, &flow, now) {
                odd.push((key, flow));
            }
        });
        self.handle_input(Input::SweepEnds);
        for (key, flow) in odd {
            self.handle_input(Input::Seen { key, flow });
        }
        self.sweep_departed(self.decider.clock.now());
        self.restore_tags();
    }

    /// Returns the number of connections that the plane forwards, including idle ones that do not count as load, but
    /// without those whose clients have been silent very long.
    pub(super) fn forwarded(&self) -> usize {
        let now = Time::from_nanos(self.datapath.now_ns());
        let mut count = 0;
        self.datapath.each_flow(&mut |_, flow| {
            let flow = parts::flow(&flow);
            let goes_on = matches!(flow.to, FlowTarget::Node(_)) && !flow.has_ended();
            count += usize::from(goes_on && flow.silence(now) < FORGOTTEN_AFTER);
        });
        count
    }

    /// Resets the connections of dead nodes, or with `newly` only of nodes that have just died.
    pub(super) fn drop_dead_nodes(&self, newly: bool) {
        for row in self.decider.dispatcher.nodes().rows() {
            let node = row.id;
            let dead = self.is_dead(node);
            let died = self.channels.set_dead(node, dead);
            if dead && (died || !newly) {
                self.handle_input(Input::Dead { node });
            } else if dead {
                self.handle_input(Input::GiveUp { node });
            }
        }
    }

    /// Requests draining nodes to release their connections.
    fn request_release(&self) {
        for row in self.decider.dispatcher.nodes().rows() {
            let node = row.id;
            let drains = self.decider.dispatcher.nodes().state(node) == NodeState::Draining;
            if drains
                && self.channels.capability(node).up
                && lock(&self.machine).has_any(node)
                && let Err(error) = self.channels.send(node, &ToNode::ReleaseIdle)
            {
                // The request is repeated at the next review.
                tracing::debug!(%error, %node, "handoff: release request not sent to the draining node");
            }
        }
    }
}
